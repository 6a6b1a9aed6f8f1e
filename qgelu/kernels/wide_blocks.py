"""Parameters of the wide kernel, laid out as its vector paths read them."""

from collections.abc import Mapping, Sequence
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
        By power.
    upper_coefficients : int16 array of shape [2, 32]
        Those of the highest two powers, the highest first; of no meaning if general.
    general : bool
        Whether u or a result could leave 32 bits before it is clamped, or the sums of the first two Horner steps 16, or
        there are less than three steps.
    lift : int
        Codes added to every result, by way of the offset, to keep it from being negative; 0 if general or not lifted.
    """

    width: int
    limit: NDArray[np.int32]
    left_shift: NDArray[np.int32]
    blocks: NDArray[np.int64]
    coefficients: NDArray[np.int32]
    upper_coefficients: NDArray[np.int16]
    general: bool
    lift: int


def _lift(given: Mapping[str, NDArray[np.int64]], largest_tail: int, lifted: bool) -> int | None:
    """Return how many codes keep every result from being negative (0 if not ``lifted``).

    None if u or a result would leave 32 bits.
    """
    exact = {name: [int(value) for value in array] for name, array in given.items()}
    channels = range(len(exact["limit"]))
    lowest = [
        exact["offset"][c] - largest_tail * exact["tail_multiplier"][c] >> exact["output_shift"][c] for c in channels
    ]
    if min(lowest) < -(1 << 31):
        return None
    lift = max(0, -min(lowest)) if lifted else 0
    for c in channels:
        widest = exact["limit"][c] << exact["left_shift"][c]
        shift = exact["argument_shift"][c]
        u = widest * exact["argument_multiplier"][c] + (1 << shift >> 1) >> shift
        total = widest * exact["linear_multiplier"][c] + exact["offset"][c] + (lift << exact["output_shift"][c])
        if u >= 1 << 31 or total >= 1 << 63 or total >> exact["output_shift"][c] >= 1 << 31:
            return None
    return lift


def _upper_fit_16_bits(coefficients: NDArray[np.int32]) -> bool:
    """Return whether the sums of the first two Horner steps fit 16 bits."""
    upper = np.abs(coefficients[:, -2:].astype(np.int64))
    # |fraction| <= 1/2, and the floor takes less than 1.
    sums = upper[:, 0] + upper[:, 1] // 2 + 1
    return coefficients.shape[1] > 3 and int(upper[:, 1].max()) <= 32767 and int(sums.max()) <= 32767


def pack_wide_blocks(
    channel_arrays: Mapping[str, NDArray[Any]],
    coefficients: NDArray[np.int32],
    words: int,
    unrolled: int,
    names: Sequence[str],
    lifted: bool,
) -> WideBlocks:
    """Lay parameters out.

    Parameters
    ----------
    channel_arrays : mapping of str to array of shape [channels]
        As :class:`qgelu.wide.WideParameters` names them.
    coefficients : int32 array of shape [32, degree + 1]
    words, unrolled : int
        Lanes of one vector, and vectors of one block.
    names : sequence of str
        What of a channel is stored in its block, in order.
    lifted : bool
        Whether results must not be negative.
    """
    given: dict[str, NDArray[np.int64]] = {name: array.astype(np.int64) for name, array in channel_arrays.items()}
    channels = given["limit"].size
    block = words * unrolled
    lanes = block_lanes(channels, block)
    # |phi| <= 1/2, and each floor takes less than 1: no Horner sum is larger.
    lift = _lift(given, int(np.abs(coefficients.astype(np.int64)).sum(axis=1).max()), lifted)
    # A factor of 52 bits: m * 2**(53 - shift).
    factor_shift = 53 - given["argument_shift"]
    factor_fits = bool(np.all((factor_shift >= 0) & (factor_shift <= 21)))
    if not _upper_fit_16_bits(coefficients) or not factor_fits:
        lift = None
    values = {
        **given,
        "argument_shift": given["argument_shift"] - 1,
        "argument_factor": given["argument_multiplier"] << np.clip(factor_shift, 0, 21),
        "offset": given["offset"] + (np.int64(lift or 0) << given["output_shift"]),
    }
    # Per vector, the even lanes and then the odd ones.
    order = np.arange(block).reshape(unrolled, words // 2, 2).transpose(0, 2, 1).reshape(-1)
    parts = [values[name][lanes[:, order]] for name in names]
    width = channels * repetitions(channels, block)
    repeated = np.arange(width) % channels
    return WideBlocks(
        width=width,
        limit=aligned(given["limit"][repeated].astype(np.int32)),
        left_shift=aligned(given["left_shift"][repeated].astype(np.int32)),
        blocks=aligned(np.concatenate(parts, axis=1)),
        coefficients=aligned(coefficients.T),
        upper_coefficients=aligned(coefficients[:, :-3:-1].T.astype(np.int16)),
        general=lift is None,
        lift=lift or 0,
    )
