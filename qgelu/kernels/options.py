"""Numba options of every kernel, in one place."""

from collections.abc import Callable
from typing import Any, Final

import numba

JIT: Final[dict[str, Any]] = {"nogil": True, "cache": True, "error_model": "numpy"}
"""Kernels release the GIL and are cached on disk; nothing compiles before its first call."""

INLINE: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy", "inline": "never"}
"""Scalar steps that other kernels call; LLVM inlines them."""


def named(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a function that a factory makes a name of its own.

    Numba tells compiled functions apart by name, argument types and a number that counts them in one process. Of two
    functions of one name that other processes have compiled and cached, with the same number, the first one loaded
    would run in place of both.
    """

    def rename(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__qualname__ = f"{function.__qualname__}_{name}"
        return function

    return rename


def compiled(name: str, **more: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that a factory makes, with the options of all kernels, under a name of its own."""

    def compile_function(function: Callable[..., Any]) -> Any:
        return numba.njit(**JIT, **more)(named(name)(function))

    return compile_function
