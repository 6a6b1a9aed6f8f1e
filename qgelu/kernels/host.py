"""What the kernels run on, and which paths were chosen."""

import importlib.metadata
import json
import os
import platform
from typing import Any

from qgelu import __version__
from qgelu.kernels.cpu import VARIABLE, offered, target
from qgelu.kernels.registry import KERNELS, selected


def get_config() -> dict[str, Any]:
    """Return the versions, the CPU and the path of every kernel, as JSON values.

    Raises
    ------
    QGeluError
        If the environment variable ``QGELU_KERNELS`` asks for a path that this CPU does not offer.
    """
    triple, name, features = target()
    return {
        "versions": {
            "python": platform.python_version(),
            "qgelu": __version__,
            **{package: importlib.metadata.version(package) for package in ("numpy", "numba", "llvmlite")},
        },
        "target": triple,
        "cpu": name,
        "cpu_count": os.cpu_count(),
        "paths_offered": offered(features),
        VARIABLE: os.environ.get(VARIABLE) or None,
        "kernels": {kernel: selected(kernel).path for kernel in KERNELS},
    }


def show_config() -> None:
    """Print :func:`get_config` as JSON."""
    print(json.dumps(get_config(), indent=2))
