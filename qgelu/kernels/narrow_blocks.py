"""Parameters of the narrow kernel, laid out as its vector paths read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LARGEST_WASTE: Final = 1.125
"""Lanes computed per lane needed; few channels are repeated over several rows until it is this small."""


@dataclass(frozen=True, eq=False)
class NarrowBlocks:
    """Parameters for rows of ``width`` elements, a whole number of repetitions of the channels.

    Attributes
    ----------
    repeats : int
        How often the channels occur in one row.
    width : int
    saturated : int
        From this |accumulator + bias| on, both branches of every channel have saturated.
    general : bool
        Whether clamping must be per channel, or a channel is shifted left.
    limit, left_shift : int32 arrays of shape [width]
    blocks : int32 array of shape [blocks, words]
        One row per block of channels; the last is the block that ends at ``width``.
    coefficients : int16 array of shape [128]
        By degree, then the same by segment.
    """

    repeats: int
    width: int
    saturated: int
    general: bool
    limit: NDArray[np.int32]
    left_shift: NDArray[np.int32]
    blocks: NDArray[np.int32]
    coefficients: NDArray[np.int16]


def repetitions(channels: int, block: int) -> int:
    """Return how often to repeat channels so that blocks are well filled: at least one block."""
    repeats = -(-block // channels)
    while -(-channels * repeats // block) * block > LARGEST_WASTE * channels * repeats:
        repeats += 1
    return repeats


def pack_blocks(
    channel_arrays: Mapping[str, NDArray[np.int32]], coefficients: NDArray[np.int32], half_order: list[int]
) -> NarrowBlocks:
    """Lay parameters out.

    Parameters
    ----------
    channel_arrays : mapping of str to int32 array of shape [channels]
        As :class:`qgelu.narrow.NarrowParameters` names them.
    coefficients : int32 array of shape [16, 4]
    half_order : list of int
        Channel, within a block, of each 16-bit lane; as long as a block.
    """
    given: dict[str, NDArray[np.int64]] = {name: array.astype(np.int64) for name, array in channel_arrays.items()}
    block = len(half_order)
    channels = given["limit"].size
    repeats = repetitions(channels, block)
    width = channels * repeats
    starts = [*range(0, width, block)]
    if width % block:
        starts.append(width - block)
    # A channel beyond the width is computed and thrown away; any parameters do.
    lanes = np.minimum(np.array(starts)[:, None] + np.arange(block), width - 1) % channels
    one = np.int64(1)
    words = (
        (one << given["linear_shift"]) >> 1,
        given["linear_shift"],
        (one << given["argument_shift"]) >> 1,
        given["argument_shift"],
    )
    # Doubled, a 15-bit multiplier's product is shifted by 16: the upper half of a 32-bit product.
    halves = (
        2 * given["linear_multiplier"],
        2 * given["argument_multiplier"],
        given["tail_multiplier"],
        given["offset"],
    )
    ordered = lanes[:, half_order]
    parts: list[NDArray[Any]] = [array[lanes].astype(np.int32) for array in words]
    parts += [array[ordered].astype(np.uint16, order="C").view(np.int32) for array in halves]
    saturated = np.int64(65536) << np.maximum(given["linear_shift"], given["argument_shift"])
    repeated = np.arange(width) % channels
    return NarrowBlocks(
        repeats=repeats,
        width=width,
        saturated=int(saturated.max()),
        general=bool(np.any(given["left_shift"] > 0) or np.any(given["limit"] < saturated)),
        limit=given["limit"][repeated].astype(np.int32),
        left_shift=given["left_shift"][repeated].astype(np.int32),
        blocks=np.ascontiguousarray(np.concatenate(parts, axis=1)),
        coefficients=np.concatenate([coefficients.T.reshape(-1), coefficients.reshape(-1)]).astype(np.int16),
    )
