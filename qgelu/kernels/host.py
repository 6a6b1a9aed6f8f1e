"""What the kernels run on, and which paths were chosen."""

import importlib.metadata
import json
import os
import platform
from typing import Any

from qgelu import __version__
from qgelu.errors import QGeluError
from qgelu.kernels.cpu import VARIABLE, offered, target
from qgelu.kernels.registry import KERNELS, selected
from qgelu.native.loader import native_library_path


def get_config() -> dict[str, Any]:
    """Return the versions, the CPU and the path of every kernel, and the native library, as JSON values.

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
        "native": _native(),
    }


def _native() -> dict[str, str | None]:
    """Return where the native library for ONNX Runtime is, or how to get it."""
    try:
        return {"library": str(native_library_path()), "missing": None}
    except QGeluError as error:
        return {"library": None, "missing": str(error)}


def show_config() -> None:
    """Print :func:`get_config` as JSON."""
    print(json.dumps(get_config(), indent=2))
