"""Numba options of every kernel, in one place."""

from typing import Any, Final

JIT: Final[dict[str, Any]] = {"nogil": True, "cache": True, "error_model": "numpy"}
"""Kernels release the GIL and are cached on disk; nothing compiles before its first call."""

INLINE: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy", "inline": "never"}
"""Scalar steps that other kernels call; LLVM inlines them."""
