"""How channels are laid out in blocks: what the parameters of all block kernels have in common."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LARGEST_WASTE: Final = 1.125
"""Lanes computed per lane needed; few channels are repeated over several rows until it is this small."""


def repetitions(channels: int, block: int) -> int:
    """Return how often to repeat channels so that blocks are well filled: at least one block."""
    repeats = -(-block // channels)
    while -(-channels * repeats // block) * block > LARGEST_WASTE * channels * repeats:
        repeats += 1
    return repeats


def block_lanes(channels: int, block: int) -> NDArray[np.int64]:
    """Return the channel of every lane of every block, of shape [blocks, block].

    The last block is the one that ends where the row of repeated channels ends; where that is not one of the others, it
    follows them. A lane beyond the row is computed and thrown away: any channel does.
    """
    width = channels * repetitions(channels, block)
    starts = [*range(0, width, block)]
    if width % block:
        starts.append(width - block)
    lanes = np.minimum(np.array(starts, dtype=np.int64)[:, None] + np.arange(block), width - 1) % channels
    return np.asarray(lanes)


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous copy that starts at a multiple of 64 bytes: no vector of it straddles two cache lines."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
