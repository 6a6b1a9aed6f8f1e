"""int32 accumulators to codes of up to 16 bits: a 20-bit argument, 64-bit products, one rounding at the end.

The steps and their numbers are those of docs/arithmetic.md, equations (20) to (25).
"""

from typing import Any

import numba
import numpy as np

from qgelu.kernels.options import INLINE, JIT


@numba.njit(**INLINE)
def tail_value(u: Any, coefficients: Any) -> Any:
    """Return p(u) of equation (23): the tail, scaled by the gain.

    Parameters
    ----------
    u : int in [0, 2**20 - 1]
    coefficients : int32 array of shape [32, degree + 1]
        All but the first of each row within 18 bits.
    """
    segment = u >> 15
    fraction = (u & 32767) - 16384
    degree = coefficients.shape[1] - 1
    p = np.int64(coefficients[segment, degree])
    for k in range(degree - 1, -1, -1):
        p = coefficients[segment, k] + ((p * fraction) >> 15)
    return max(p, 0)


@numba.njit(**INLINE)
def requantize_one(
    v: Any,
    left_shift: Any,
    argument_multiplier: Any,
    argument_shift: Any,
    linear_multiplier: Any,
    tail_multiplier: Any,
    offset: Any,
    output_shift: Any,
    coefficients: Any,
    code_range: Any,
) -> Any:
    """Return the code, counted from 0, of one clamped accumulator plus bias ``v`` (int64)."""
    v = v << left_shift  # (21)
    half = np.int64(1) << (argument_shift - 1)
    u = min((abs(v) * argument_multiplier + half) >> argument_shift, 1048575)  # (22)
    p = tail_value(u, coefficients)  # (23)
    result = max(v, 0) * linear_multiplier + offset - p * tail_multiplier  # (24)
    return min(max(result, 0) >> output_shift, code_range)  # (25)


@numba.njit(**JIT)
def requantize(
    accumulator: Any,
    bias: Any,
    lower: Any,
    upper: Any,
    left_shift: Any,
    argument_multiplier: Any,
    argument_shift: Any,
    linear_multiplier: Any,
    tail_multiplier: Any,
    offset: Any,
    output_shift: Any,
    coefficients: Any,
    code_range: Any,
    code_minimum: Any,
    out: Any,
) -> None:
    """Write the codes of int32 accumulators.

    Parameters
    ----------
    accumulator : int32 array of shape [rows, C]
    bias, lower, upper, left_shift, argument_multiplier, argument_shift, linear_multiplier, tail_multiplier, \
output_shift : int32 arrays of shape [C]
        ``lower`` and ``upper`` clamp the accumulator before the bias is added (20).
    offset : int64 array of shape [C]
    coefficients : int32 array of shape [32, degree + 1]
    code_range, code_minimum : int
        Largest code minus smallest code, and the smallest code.
    out : (u)int8 or (u)int16 array of shape [rows, C]
    """
    rows, channels = accumulator.shape
    for row in range(rows):
        for c in range(channels):
            v = np.int64(min(max(accumulator[row, c], lower[c]), upper[c])) + bias[c]  # (20)
            code = requantize_one(
                v,
                left_shift[c],
                np.int64(argument_multiplier[c]),
                argument_shift[c],
                np.int64(linear_multiplier[c]),
                np.int64(tail_multiplier[c]),
                offset[c],
                output_shift[c],
                coefficients,
                code_range,
            )
            out[row, c] = code + code_minimum
