"""Which instruction sets the CPU has, as Numba compiles for it, and which the environment allows."""

import functools
import os
from typing import Final

from qgelu.errors import QGeluError

VARIABLE: Final = "QGELU_KERNELS"
"""Environment variable that names the best path to use."""

PATHS: Final[dict[str, frozenset[str]]] = {
    "portable": frozenset(),
    "neon": frozenset({"neon"}),
    "avx2": frozenset({"avx2"}),
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl"}),
    "avx512_ifma": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512ifma"}),
}
"""Features of LLVM's that a CPU must have to offer a path; better paths come later."""


@functools.cache
def target() -> tuple[str, str, frozenset[str]]:
    """Return LLVM's triple, CPU name and features that Numba compiles for.

    Numba's own variables (``NUMBA_CPU_NAME``, ``NUMBA_CPU_FEATURES``) are taken into account: code for what they
    leave out would not compile.
    """
    from numba.core.registry import cpu_target

    triple, name, flags = cpu_target.target_context.codegen().magic_tuple()
    features = {flag[1:] for flag in flags.split(",") if flag.startswith("+")}
    if triple.startswith(("aarch64", "arm64")):
        features.add("neon")  # part of the base architecture
    return triple, name, frozenset(features)


def offered(features: frozenset[str]) -> list[str]:
    """Return the paths that a CPU with these features offers, the best last."""
    return [path for path, needed in PATHS.items() if needed <= features]


def allowed(features: frozenset[str], wish: str | None) -> list[str]:
    """Return the paths that may be used, the best last.

    Parameters
    ----------
    wish : str, optional
        Best path to use; the best of all if not given or empty.

    Raises
    ------
    QGeluError
        If the wish is unknown, or the CPU does not offer it.
    """
    paths = offered(features)
    if not wish:
        return paths
    if wish not in paths:
        problem = "is not offered by this CPU" if wish in PATHS else "is not a path"
        raise QGeluError(f"{VARIABLE}={wish} {problem}: use {', '.join(paths)}, or leave it unset")
    return paths[: paths.index(wish) + 1]


@functools.cache
def usable() -> tuple[list[str], frozenset[str]]:
    """Return the paths that may be used in this process, and the CPU's features; decided once.

    Raises
    ------
    QGeluError
        If the environment variable asks for what is not there.
    """
    features = target()[2]
    return allowed(features, os.environ.get(VARIABLE)), features
