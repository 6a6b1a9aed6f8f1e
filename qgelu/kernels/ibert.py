"""i-GELU as I-BERT publishes it, in integers."""

from typing import Any

import numba
import numpy as np

from qgelu.kernels.options import JIT


@numba.njit(**JIT)
def requantize(
    values: Any,
    erf_clip: Any,
    erf_constant: Any,
    one: Any,
    multiplier: Any,
    shift: Any,
    zero_point: Any,
    code_minimum: Any,
    code_maximum: Any,
    out: Any,
) -> None:
    """Write the codes of i-GELU: docs/arithmetic.md, equations (30) to (34).

    Parameters
    ----------
    values : int64 array of shape [n]
        Input codes less the zero point, or accumulators.
    erf_clip, erf_constant : int
        -floor(b / S') and floor(c / (a S'^2)) of the published polynomial.
    one : int
        floor(1 / S_erf), which is negative: S_erf is.
    multiplier, shift : int
        Output multiplier (negative, since S_erf is) and right shift.
    zero_point, code_minimum, code_maximum : int
    out : array of shape [n]
    """
    half = np.int64(1) << (shift - 1)
    for i in range(values.size):
        v = values[i]
        magnitude = min(abs(v), erf_clip)
        square = (magnitude - erf_clip) * (magnitude - erf_clip) + erf_constant
        erf = square if v > 0 else (-square if v < 0 else np.int64(0))
        erf = erf >> 14  # floor, as published
        result = (v * (erf + one) * multiplier + half) >> shift
        out[i] = min(max(result + zero_point, code_minimum), code_maximum)
