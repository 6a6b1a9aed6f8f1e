"""The correctly rounded answer: y = saturate(nearest(f(s_x k) / s_y) + z_y), k the input code less its zero point.

float64 decides wherever its error cannot reach the nearest tie; exact rationals and arbitrary precision decide the
rest. f is transcendental at every rational x but 0, so f(x) / s_y is never a tie and "nearest" needs no convention.
"""

from fractions import Fraction
from typing import Any, Final

import mpmath
import numpy as np
from numpy.typing import NDArray

from qgelu.activations import TANH_CUBIC, Activation, evaluate, sigmoid_slope
from qgelu.errors import QGeluError

# The C library's erfc and exp err by a few units of 2**-53 and x = s k by one; the condition number of f is at most x^2
# where |f| still matters. 2**-40 is hundreds of times all of that together.
_RELATIVE_ERROR: Final = 2.0**-40
_START_PRECISION: Final = 160
_MAX_PRECISION: Final = 20_000


def _evaluate_exactly(x: Any, activation: Activation, alpha: float) -> Any:
    """Return f(x) in mpmath's current precision."""
    if activation == "gelu":
        return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2
    if activation == "gelu_tanh":
        z = 2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf(TANH_CUBIC) * x**3)
    else:
        z = mpmath.mpf(sigmoid_slope(activation, alpha)) * x
    return x / (1 + mpmath.exp(-z))


def nearest_exactly(
    k: int, input_scale: float, output_scale: float, activation: Activation, alpha: float
) -> int:
    """Return nearest(f(input_scale * k) / output_scale), by exact and arbitrary-precision arithmetic."""
    if k == 0:
        return 0
    linear = Fraction(input_scale) * k / Fraction(output_scale)
    if k > 0 and (linear - Fraction(1, 2)).denominator == 1:
        # x / s_y is a tie and f(x) < x. The caller comes here for a y next to a tie: it is this one, or y is
        # further below it than any precision asked for here, which the loop then sees.
        gap = evaluate(-abs(input_scale * k), activation, alpha) / output_scale
        if abs(float(gap)) < 0.25:
            return int(linear - Fraction(1, 2))
    precision = _START_PRECISION
    while precision <= _MAX_PRECISION:
        with mpmath.workprec(precision):
            x = mpmath.mpf(input_scale) * k
            y = _evaluate_exactly(x, activation, alpha) / mpmath.mpf(output_scale)
            down = mpmath.floor(y)
            distance = abs(y - down - mpmath.mpf(1) / 2)
            if distance > abs(y) * mpmath.mpf(2) ** (40 - precision):
                return int(down) + (1 if y - down > mpmath.mpf(1) / 2 else 0)
        precision *= 2
    raise QGeluError(f"no rounding found for code {k} at scales {input_scale}, {output_scale}")


def nearest(
    k: NDArray[np.int64],
    input_scale: float,
    output_scale: float,
    low: int,
    high: int,
    activation: Activation,
    alpha: float,
) -> NDArray[np.int64]:
    """Return clip(nearest(f(input_scale * k) / output_scale), low, high), each correctly rounded.

    Parameters
    ----------
    k : int64 array
        Input codes less the zero point.
    input_scale, output_scale : float
    low, high : int
        Codes less the output's zero point.
    """
    y = evaluate(input_scale * k.astype(np.float64), activation, alpha) / output_scale
    clipped = np.clip(y, low - 1.0, high + 1.0)
    down = np.floor(clipped)
    fraction = clipped - down
    result = (down + (fraction > 0.5)).astype(np.int64)
    doubtful = np.abs(fraction - 0.5) <= _RELATIVE_ERROR * (np.abs(clipped) + 1.0)
    for index in np.flatnonzero(doubtful):
        result[index] = nearest_exactly(int(k[index]), input_scale, output_scale, activation, alpha)
    return np.clip(result, low, high)
