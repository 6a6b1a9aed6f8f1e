"""What may be passed along with codes when a plan is called."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgelu.errors import QGeluError


def check_threads(threads: int | None) -> int:
    """Return the number of threads, 1 if none is given; raise QGeluError if it is no whole number of 1 or more."""
    if threads is None:
        return 1
    if not isinstance(threads, int | np.integer) or threads < 1:
        raise QGeluError(f"threads must be a whole number of 1 or more, not {threads!r}")
    return int(threads)


def check_out(out: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise QGeluError unless ``out`` is a writeable array of that shape and dtype."""
    if not isinstance(out, np.ndarray):
        raise QGeluError(f"out must be an array, not {type(out).__name__}")
    if out.shape != shape or out.dtype != dtype:
        raise QGeluError(f"out is {out.dtype} {out.shape}, it must be {dtype} {shape}")
    if not out.flags.writeable:
        raise QGeluError("out is read-only: give a writeable array")


def can_write(out: NDArray[Any], source: NDArray[Any]) -> bool:
    """Return whether a kernel may write straight to ``out``: contiguous, and apart from ``source`` or the same."""
    if not out.flags.c_contiguous:
        return False
    if not np.may_share_memory(out, source):
        return True
    # Different widths at one address: writing would overtake reading.
    same = out.__array_interface__["data"][0] == source.__array_interface__["data"][0]
    return same and out.itemsize == source.itemsize
