"""Scales and zero points for each channel of a matmul's input, balanced against its weight."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.errors import CalibrationError
from calibration.pickers import check_bits

_WIDEST_RATIO: Final = 2.0**-16
"""Channels of less than this part of the largest range, or rows of less than this part of the largest
weight, are treated as of that part: their error is far below the others' already, and scales stay within
float32."""

_SHIFT_PRECISION: Final = 2.0**-20
"""x / scale + zero_point is computed in float32 (24 bits): no zero point may exceed 2**19, so that the sum
is right to 2**-5 of a code."""


@dataclass(frozen=True, eq=False)
class ChannelScales:
    """Affine codes of a matmul's input, one scale for each channel: x[:, j] = scale[j] * (q - zero_point[j]).

    Parameters
    ----------
    scale : float64 array of shape [K]
        Finite, above 0.
    zero_point : float64 array of shape [K]
        Real numbers, in units of codes from 0: they are folded into the next bias, not rounded.
    """

    scale: NDArray[np.float64]
    zero_point: NDArray[np.float64]

    def __post_init__(self) -> None:
        self.scale.setflags(write=False)
        self.zero_point.setflags(write=False)


def equalize(
    channel_minimum: ArrayLike,
    channel_maximum: ArrayLike,
    weight: NDArray[Any],
    exponent: float,
    bits: int,
    *,
    clip: float = 1.0,
) -> ChannelScales:
    """Return scales that share a matmul's quantization error between its input and its weight.

    With r_j half the range of channel j, m_j its middle, w_j row j of the weight and N = 2**bits - 1:

        scale_j = S * f_j,   f_j = r_j**exponent / max|w_j|**(1 - exponent)                    (1)
        zero_point_j = N / 2 - m_j / scale_j                                                   (2)
        S = clip * max over j of (r_j / f_j) * 2 / N                                           (3)

    so that codes 0 to N hold every channel, moved to its middle, whole if clip is 1. The weight to quantize
    is scale_j * w_j. (1) is SmoothQuant's migration (Xiao et al. 2023, equation 4) with shifts added, as in
    Outlier Suppression+ (Wei et al. 2023).

    Channels and rows that are constant, zero or next to it get scales as if they had 2**-16 of the largest
    range or weight; all their values still fit the codes.

    Parameters
    ----------
    channel_minimum, channel_maximum : array_like of shape [K]
        Range of each channel of the input.
    weight : array of shape [K, N]
        The input is multiplied by it from the right.
    exponent : float
        0 (all of the balance by the weight) to 1 (all of it by the input).
    bits : int
        Width of the input's codes, 2 to 16.
    clip : float
        Part of the range that codes cover; above 0, at most 1.

    Raises
    ------
    CalibrationError
        If shapes do not fit, numbers are not finite, or a parameter is out of its range.
    """
    check_bits(bits)
    if not 0.0 <= exponent <= 1.0:
        raise CalibrationError(f"exponent must be from 0 to 1, not {exponent}")
    if not 0.0 < clip <= 1.0:
        raise CalibrationError(f"clip must be above 0 and at most 1, not {clip}")
    low = np.asarray(channel_minimum, dtype=np.float64)
    high = np.asarray(channel_maximum, dtype=np.float64)
    if weight.ndim != 2 or weight.size == 0 or low.shape != weight.shape[:1] or high.shape != low.shape:
        raise CalibrationError(
            f"channel ranges {list(low.shape)} and {list(high.shape)} do not fit weight "
            f"{list(weight.shape)}: give one range for each of its rows"
        )
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        raise CalibrationError("channel ranges must be finite and in order")
    if not np.isfinite(weight).all():
        raise CalibrationError("weight holds NaN or infinity: check the model")

    last_code = float((1 << bits) - 1)
    middle = 0.5 * low + 0.5 * high
    radius = 0.5 * high - 0.5 * low
    radius = np.maximum(radius, np.abs(middle) * last_code * _SHIFT_PRECISION)
    radius = _lifted(radius)
    magnitude = _lifted(np.abs(weight).max(axis=1).astype(np.float64))
    # In logarithms: products of powers of very large and very small numbers stay exact enough.
    log_balance = exponent * np.log(radius) - (1.0 - exponent) * np.log(magnitude)
    log_share = np.max(np.log(radius) - log_balance)
    scale = np.exp(log_share + log_balance) * (2.0 / last_code) * clip
    return ChannelScales(scale, 0.5 * last_code - middle / scale)


def _lifted(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sizes, the smallest raised to a fixed part of the largest; ones if all are 0."""
    largest = float(sizes.max())
    if largest == 0.0:
        return np.ones_like(sizes)
    return np.maximum(sizes, largest * _WIDEST_RATIO)
