"""The correctly rounded answer: y = saturate(nearest(f(s_x k) / s_y) + z_y), k the input code less its zero point.

float64 decides wherever its error cannot reach the nearest tie; exact rationals and arbitrary precision decide the
rest. f is transcendental at every rational x but 0, so f(x) / s_y is never a tie and "nearest" needs no convention.
"""

from fractions import Fraction
from typing import Any, Final

import mpmath
import numpy as np
from numpy.typing import NDArray

from qgelu.activations import TANH_CUBIC, Activation, evaluate, sigmoid_slope, tail
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


def nearest_exactly(k: int, input_scale: float, output_scale: float, activation: Activation, alpha: float) -> int:
    """Return nearest(f(input_scale * k) / output_scale), by exact and arbitrary-precision arithmetic."""
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


def _linear_ties(k: NDArray[np.int64], input_scale: float, output_scale: float) -> NDArray[np.bool_]:
    """Return where k * input_scale / output_scale is exactly half-way between two whole numbers."""
    ratio = Fraction(input_scale) / Fraction(output_scale)
    if ratio.denominator > 2 * int(np.abs(k).max(initial=0)) or ratio.numerator % 2 == 0:
        return np.zeros(k.shape, np.bool_)
    # k p / q = n + 1/2, p and q coprime: q divides 2 k, and (2 k / q) p is odd.
    quotient, remainder = np.divmod(2 * k, ratio.denominator)
    return np.asarray((remainder == 0) & (quotient % 2 != 0))


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
    x = input_scale * k.astype(np.float64)
    y = evaluate(x, activation, alpha) / output_scale
    clipped = np.clip(y, low - 1.0, high + 1.0)
    down = np.floor(clipped)
    fraction = clipped - down
    result = (down + (fraction > 0.5)).astype(np.int64)
    doubtful = (np.abs(fraction - 0.5) <= _RELATIVE_ERROR * (np.abs(clipped) + 1.0)) & (k != 0)
    # Where x / s_y is a tie and g(x) / s_y < 1/4, f(x) < x decides, however small g(x) is.
    ties = doubtful & (k > 0) & _linear_ties(k, input_scale, output_scale)
    ties &= tail(np.abs(x), activation, alpha) / output_scale < 0.25
    result[ties] = (np.rint(2.0 * clipped[ties]).astype(np.int64) - 1) // 2
    doubtful &= ~ties
    for index in np.flatnonzero(doubtful):
        result[index] = nearest_exactly(int(k[index]), input_scale, output_scale, activation, alpha)
    return np.clip(result, low, high)
