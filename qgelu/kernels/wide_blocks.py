"""Parameters of the wide kernel, laid out as its vector paths read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgelu.kernels.layout import aligned, block_lanes, repetitions


@dataclass(frozen=True, eq=False)
class WideBlocks:
    """Parameters for rows of ``width`` elements, a whole number of repetitions of the channels.

    Attributes
    ----------
    width : int
    limit, left_shift : int32 arrays of shape [width]
    blocks : int64 array of shape [blocks, words]
        One row per block of channels; the last is the block that ends at ``width``.
    coefficients : int32 array of shape [degree + 1, 32]
        By degree.
    general : bool
        Whether u or a result could leave 32 bits before it is clamped.
    lift : int
        Codes added to every result, by way of the offset, to keep it from being negative; 0 if general.
    """

    width: int
    limit: NDArray[np.int32]
    left_shift: NDArray[np.int32]
    blocks: NDArray[np.int64]
    coefficients: NDArray[np.int32]
    general: bool
    lift: int


def _lift(given: Mapping[str, NDArray[np.int64]], largest_tail: int) -> int | None:
    """Return how many codes keep every result from being negative, or None if u or a result would leave 32 bits."""
    exact = {name: [int(value) for value in array] for name, array in given.items()}
    channels = range(len(exact["limit"]))
    lowest = [
        exact["offset"][c] - largest_tail * exact["tail_multiplier"][c] >> exact["output_shift"][c] for c in channels
    ]
    lift = max(0, -min(lowest))
    for c in channels:
        widest = exact["limit"][c] << exact["left_shift"][c]
        shift = exact["argument_shift"][c]
        u = widest * exact["argument_multiplier"][c] + (1 << shift >> 1) >> shift
        total = widest * exact["linear_multiplier"][c] + exact["offset"][c] + (lift << exact["output_shift"][c])
        if u >= 1 << 31 or total >= 1 << 63 or total >> exact["output_shift"][c] >= 1 << 31:
            return None
    return lift


def pack_wide_blocks(
    channel_arrays: Mapping[str, NDArray[Any]], coefficients: NDArray[np.int32], words: int, unrolled: int
) -> WideBlocks:
    """Lay parameters out.

    Parameters
    ----------
    channel_arrays : mapping of str to array of shape [channels]
        As :class:`qgelu.wide.WideParameters` names them.
    coefficients : int32 array of shape [32, degree + 1]
    words, unrolled : int
        Lanes of one vector, and vectors of one block.
    """
    given: dict[str, NDArray[np.int64]] = {name: array.astype(np.int64) for name, array in channel_arrays.items()}
    channels = given["limit"].size
    block = words * unrolled
    lanes = block_lanes(channels, block)
    # |phi| <= 1/2, and each floor takes less than 1: no Horner sum is larger.
    lift = _lift(given, int(np.abs(coefficients.astype(np.int64)).sum(axis=1).max()))
    values = (
        given["argument_multiplier"],
        np.int64(1) << (given["argument_shift"] - 1),
        given["argument_shift"],
        given["linear_multiplier"],
        given["tail_multiplier"],
        given["offset"] + (np.int64(lift or 0) << given["output_shift"]),
        given["output_shift"],
    )
    # Per vector, the even lanes and then the odd ones.
    order = np.arange(block).reshape(unrolled, words // 2, 2).transpose(0, 2, 1).reshape(-1)
    parts = [array[lanes[:, order]] for array in values]
    width = channels * repetitions(channels, block)
    repeated = np.arange(width) % channels
    return WideBlocks(
        width=width,
        limit=aligned(given["limit"][repeated].astype(np.int32)),
        left_shift=aligned(given["left_shift"][repeated].astype(np.int32)),
        blocks=aligned(np.concatenate(parts, axis=1)),
        coefficients=aligned(coefficients.T),
        general=lift is None,
        lift=lift or 0,
    )
