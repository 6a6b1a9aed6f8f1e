"""int32 accumulators to codes of up to 8 bits, all of it in 16-bit lanes after the first shifts.

The steps and their numbers are those of docs/arithmetic.md, equations (10) to (18).
"""

from typing import Any

import numba
import numpy as np

from qgelu.kernels.options import INLINE, JIT


@numba.njit(**INLINE)
def tail_value(u: Any, coefficients: Any) -> Any:
    """Return p(u) of equation (15): the tail, scaled by the gain, as a 15-bit integer.

    Parameters
    ----------
    u : int in [0, 65535]
    coefficients : int32 array of shape [16, 4]
        Each within int16.
    """
    segment = u >> 12
    fraction = ((u & 4095) << 4) - 32768
    p = np.int64(coefficients[segment, 3])
    p = coefficients[segment, 2] + ((p * fraction) >> 16)
    p = coefficients[segment, 1] + ((p * fraction) >> 16)
    p = coefficients[segment, 0] + ((p * fraction) >> 16)
    return max(p, 0)


@numba.njit(**INLINE)
def requantize_one(
    v: Any,
    left_shift: Any,
    linear_shift: Any,
    linear_multiplier: Any,
    argument_shift: Any,
    argument_multiplier: Any,
    tail_multiplier: Any,
    offset: Any,
    coefficients: Any,
    code_range: Any,
) -> Any:
    """Return the code, counted from 0, of one clamped accumulator plus bias ``v`` (int64)."""
    v = v << left_shift  # (11)
    linear_half = (np.int64(1) << linear_shift) >> 1
    linear = min((max(v, 0) + linear_half) >> linear_shift, 65535)  # (12)
    linear = min(linear + ((linear * linear_multiplier) >> 15), 65535)  # (13)
    argument_half = (np.int64(1) << argument_shift) >> 1
    argument = min((abs(v) + argument_half) >> argument_shift, 65535)  # (14)
    u = min(argument + ((argument * argument_multiplier) >> 15), 65535)
    p = tail_value(u, coefficients)  # (15)
    difference = min(linear + offset, 65535) - ((p * tail_multiplier) >> 16)  # (16), (17)
    return min(max(difference, 0) >> 7, code_range)  # (18)


@numba.njit(**JIT)
def requantize(
    accumulator: Any,
    bias: Any,
    lower: Any,
    upper: Any,
    left_shift: Any,
    linear_shift: Any,
    linear_multiplier: Any,
    argument_shift: Any,
    argument_multiplier: Any,
    tail_multiplier: Any,
    offset: Any,
    coefficients: Any,
    code_range: Any,
    code_minimum: Any,
    out: Any,
) -> None:
    """Write the codes of int32 accumulators.

    Parameters
    ----------
    accumulator : int32 array of shape [rows, C]
    bias, lower, upper, left_shift, linear_shift, linear_multiplier, argument_shift, argument_multiplier, \
tail_multiplier, offset : int32 arrays of shape [C]
        ``lower`` and ``upper`` clamp the accumulator before the bias is added (10).
    coefficients : int32 array of shape [16, 4]
    code_range, code_minimum : int
        Largest code minus smallest code, and the smallest code.
    out : (u)int8 array of shape [rows, C]
    """
    rows, channels = accumulator.shape
    for row in range(rows):
        for c in range(channels):
            v = np.int64(min(max(accumulator[row, c], lower[c]), upper[c])) + bias[c]  # (10)
            code = requantize_one(
                v,
                left_shift[c],
                linear_shift[c],
                linear_multiplier[c],
                argument_shift[c],
                argument_multiplier[c],
                tail_multiplier[c],
                offset[c],
                coefficients,
                code_range,
            )
            out[row, c] = code + code_minimum
