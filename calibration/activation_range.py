"""The range of an activation's input that serves the activation's output best."""

import math
from typing import Final, Literal, get_args

import numpy as np

from calibration.errors import CalibrationError
from calibration.observers import TensorStatistics
from calibration.pickers import METHODS, Method, check_bits, pick_range, qparams_from_range
from calibration.range_search import search_range
from qgelu.activations import Activation, dip, evaluate, tail

ActivationMethod = Literal["minmax", "percentile", "mse", "entropy", "output"]
ACTIVATION_METHODS: Final[tuple[ActivationMethod, ...]] = get_args(ActivationMethod)

_GOLDEN: Final = (math.sqrt(5.0) - 1.0) / 2.0
_POINTS: Final = 4  # in each bin, to stand for the values in it


def negligible_below(activation: Activation, alpha: float, bits: int) -> float:
    """Return the x below which the output may be taken for its value there: |f(x)| <= 2**-(bits + 5).

    About -4.0 for gelu at 8 bits. 2**-(bits + 5) is below a quarter of a code's width for any output whose
    range is 1/8 or more (at 8 bits: 1.2e-4), and outputs range further than their dip alone.
    """
    tolerance = 2.0 ** -(bits + 5)
    near, far = -dip(activation, alpha).x, -dip(activation, alpha).x
    while float(tail(far, activation, alpha)) > tolerance:
        far *= 2.0
    for _ in range(60):
        middle = 0.5 * (near + far)
        if float(tail(middle, activation, alpha)) > tolerance:
            near = middle
        else:
            far = middle
    return -far


def clipping_weight(bits: int) -> float:
    """Return how many times the squared error of a clipped value counts: 2**(bits - 5), 1 at the least.

    Rounding errs both ways and averages out in the sums of the next matmul; clipping errs one way, and by
    most in the samples that stand out. The more codes there are, the less rounding is left to trade for it.
    docs/calibration.md has the measurement.
    """
    return max(1.0, 2.0 ** (bits - 5))


def pick_activation_input_range(
    statistics: TensorStatistics,
    activation: Activation,
    alpha: float,
    bits: int,
    method: ActivationMethod = "output",
    *,
    signed: bool = True,
) -> tuple[float, float]:
    """Return the range (low, high) to spend the codes of an activation's input on; low <= 0 <= high.

    Parameters
    ----------
    statistics : TensorStatistics
        Of the activation's input x.
    activation : str
        f: ``gelu``, ``gelu_tanh``, ``quick_gelu`` or ``silu``.
    alpha : float
        Slope of ``quick_gelu``.
    bits : int
        Width of the codes, 2 to 16.
    method : str
        ``output``: both ends searched for the least squared error of f(x), errors of clipped values counted
        :func:`clipping_weight` times. Any method of :func:`calibration.pick_range`: that range, its negative
        side cut where the output is about 0.
    signed : bool
        Whether codes are signed; affine codes give the same range either way.

    Raises
    ------
    CalibrationError
        If method or bits is not one of these.
    """
    check_bits(bits)
    if method not in ACTIVATION_METHODS:
        raise CalibrationError(f"method {method!r} is not known: use one of {', '.join(ACTIVATION_METHODS)}")
    floor = negligible_below(activation, alpha, bits)
    if method != "output":
        low, high = pick_range(statistics, _picker(method), bits, signed)
        return max(low, floor), high
    if statistics.minimum == statistics.maximum:
        return max(min(statistics.minimum, 0.0), floor), max(statistics.maximum, 0.0)
    histogram = statistics.histogram
    filled = np.flatnonzero(histogram.counts)
    weights = np.repeat(histogram.counts[filled] / _POINTS, _POINTS)
    # Points in each part of a bin, shifted by the golden ratio: even ones would fall into step with scales
    # about as wide as a bin.
    place = (np.arange(_POINTS) + (filled * _GOLDEN % 1.0)[:, None]) / _POINTS
    x = (histogram.edges[filled][:, None] + place * histogram.width).reshape(-1)
    x = np.clip(x, statistics.minimum, statistics.maximum)
    y = evaluate(x, activation, alpha)
    weight_beyond = clipping_weight(bits)

    def error(low: float, high: float) -> float:
        params = qparams_from_range(low, high, bits, signed)
        nearest = np.rint(x / params.scale) + params.zero_point
        code = np.clip(nearest, params.qmin, params.qmax)
        # x ascends, so its codes are within the first and the last; each of them is evaluated once.
        used = np.arange(code[0], code[-1] + 1.0)
        of_code = evaluate(params.scale * (used - params.zero_point), activation, alpha)
        difference = of_code[(code - code[0]).astype(np.int64)] - y
        # Not a dot product: the BLAS behind it may sum in another order on another machine.
        beyond = np.where(code == nearest, 1.0, weight_beyond)
        return float(np.sum(weights * beyond * np.square(difference)))

    return search_range(error, statistics.minimum, statistics.maximum)


def _picker(method: ActivationMethod) -> Method:
    return next(name for name in METHODS if name == method)
