"""Parameters of the narrow kernel, laid out as its vector paths read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgelu.kernels.layout import aligned, block_lanes, repetitions


@dataclass(frozen=True, eq=False)
class NarrowBlocks:
    """Parameters for rows of ``width`` elements, a whole number of repetitions of the channels.

    Attributes
    ----------
    width : int
    general : bool
        Whether a channel is shifted left or clamped before both of its branches have saturated, or a tail is negative.
    limit, left_shift : int32 arrays of shape [width]
    blocks : int32 array of shape [blocks, words]
        One row per block of channels; the last is the block that ends at ``width``.
    coefficients : int16 array of shape [128]
        By degree, then the same by segment.
    """

    width: int
    general: bool
    limit: NDArray[np.int32]
    left_shift: NDArray[np.int32]
    blocks: NDArray[np.int32]
    coefficients: NDArray[np.int16]


@lru_cache(maxsize=16)
def _least_tail(coefficients: bytes) -> int:
    """Return the least p(u) of equation (15) before it is raised to 0, over every u."""
    rows = np.frombuffer(coefficients, np.int32).reshape(16, 4).astype(np.int64)
    fraction = (np.arange(4096) << 4) - 32768
    p = rows[:, 3:]
    for degree in (2, 1, 0):
        p = rows[:, degree, None] + ((p * fraction) >> 16)
    return int(p.min())


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
    lanes = block_lanes(channels, block)
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
    width = channels * repetitions(channels, block)
    repeated = np.arange(width) % channels
    return NarrowBlocks(
        width=width,
        general=bool(
            np.any(given["left_shift"] > 0)
            or np.any(given["limit"] < saturated)
            or _least_tail(coefficients.astype(np.int32).tobytes()) < 0
        ),
        limit=aligned(given["limit"][repeated].astype(np.int32)),
        left_shift=aligned(given["left_shift"][repeated].astype(np.int32)),
        blocks=aligned(np.concatenate(parts, axis=1)),
        coefficients=aligned(np.concatenate([coefficients.T.reshape(-1), coefficients.reshape(-1)]).astype(np.int16)),
    )
