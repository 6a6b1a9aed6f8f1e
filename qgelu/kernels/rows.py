"""A kernel over many rows, divided among threads where there is enough to do."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qgelu.kernels.binding import BoundKernel
from qgelu.kernels.workers import run_pieces

Kernel = Callable[[NDArray[np.int32] | None, NDArray[Any], NDArray[Any]], None]
"""Takes a bias of shape [C] (or [1], or None), a flat source and a flat target of whole rows of C."""

MIN_BYTES_PER_THREAD: Final = 1 << 18
"""Below this a second thread costs more than it saves."""


def run_rows(
    kernel: Kernel,
    bias: NDArray[np.int32] | None,
    source: NDArray[Any],
    target: NDArray[Any],
    width: int,
    threads: int,
) -> None:
    """Run a kernel on rows of ``width`` elements, on several threads if there are many.

    Parameters
    ----------
    kernel : callable
    source, target : arrays of shape [n], contiguous
        n is a multiple of ``width``.
    """
    if threads == 1 or source.nbytes < 2 * MIN_BYTES_PER_THREAD:
        kernel(bias, source, target)
        return
    rows = source.size // width
    count = max(1, min(threads, source.nbytes // MIN_BYTES_PER_THREAD, rows))
    if isinstance(kernel, BoundKernel) and kernel.run_in_pieces(bias, source, target, width, count):
        return
    bounds = [rows * piece // count * width for piece in range(count + 1)]
    pieces = [(bias, source[i:j], target[i:j]) for i, j in zip(bounds[:-1], bounds[1:], strict=True)]
    run_pieces(kernel, pieces)
