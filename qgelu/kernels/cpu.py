"""Which instruction sets the CPU has, as Numba compiles for it, and which the environment allows."""

import functools
import os
import platform
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


_X86: Final = frozenset({"x86_64", "amd64", "x86", "i386", "i686"})
_VNNI: Final = frozenset({"avx512vnni", "avxvnni"})


@functools.cache
def host() -> tuple[str, frozenset[str]]:
    """Return the machine's name and LLVM's features of the very CPU, whatever Numba compiles for.

    Without features where LLVM cannot tell them.
    """
    import llvmlite.binding

    try:
        found = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell on this platform
        return platform.machine(), frozenset()
    return platform.machine(), frozenset(name for name, there in found.items() if there)


def lacks_vnni(machine: str, features: frozenset[str]) -> bool:
    """Return whether a CPU is an x86 one, known to have no instruction that adds four byte products in int32.

    Parameters
    ----------
    machine : str
        As :func:`platform.machine` says it.
    features : frozenset of str
        LLVM's names; if empty, nothing is known.
    """
    return machine.lower() in _X86 and bool(features) and not features & _VNNI


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
