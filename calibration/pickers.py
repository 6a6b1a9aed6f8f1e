"""From a tensor's statistics to a range, and from a range to a scale and zero point."""

from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calibration.entropy import entropy_range
from calibration.errors import CalibrationError
from calibration.observers import TensorStatistics
from calibration.range_search import search_range
from qgelu.qparams import MAX_BITS, MIN_BITS, QParams

Method = Literal["minmax", "percentile", "mse", "entropy"]
METHODS: Final[tuple[Method, ...]] = get_args(Method)

DEFAULT_PERCENTILE: Final = 99.99
"""Share of the values, in percent, that the percentile method keeps; half of the rest at each end."""

_SMALLEST_SCALE: Final = float(np.finfo(np.float32).tiny)


def check_bits(bits: int) -> int:
    """Return bits, or raise CalibrationError unless it is a whole number that QParams takes."""
    if isinstance(bits, bool) or not isinstance(bits, int | np.integer) or not MIN_BITS <= bits <= MAX_BITS:
        raise CalibrationError(f"bits must be a whole number from {MIN_BITS} to {MAX_BITS}, not {bits!r}")
    return int(bits)


def pick_range(
    statistics: TensorStatistics,
    method: Method,
    bits: int,
    signed: bool,
    *,
    percentile: float = DEFAULT_PERCENTILE,
) -> tuple[float, float]:
    """Return the range (low, high) to spend a tensor's codes on; low <= 0 <= high.

    Parameters
    ----------
    statistics : TensorStatistics
        Of the tensor.
    method : str
        ``minmax``: everything that was seen. ``percentile``: all but a share of the values. ``mse``: both
        ends searched for the least squared error. ``entropy``: the least Kullback-Leibler divergence of the
        quantized distribution, as TensorRT and ONNX Runtime pick it.
    bits : int
        Width of the codes, 2 to 16.
    signed : bool
        Whether codes are signed. Affine codes have a zero point, so the range is the same either way.
    percentile : float
        For ``percentile``: above 0, at most 100.

    Raises
    ------
    CalibrationError
        If method, bits or percentile is not one of these.
    """
    check_bits(bits)
    low, high = min(statistics.minimum, 0.0), max(statistics.maximum, 0.0)
    if method not in METHODS:
        raise CalibrationError(f"method {method!r} is not known: use one of {', '.join(METHODS)}")
    if method == "minmax" or statistics.minimum == statistics.maximum:
        return low, high
    if method == "percentile":
        low, high = _percentile_range(statistics, percentile)
    elif method == "mse":
        low, high = _mse_range(statistics, bits, signed)
    else:
        low, high = entropy_range(statistics, bits)
    return min(low, 0.0), max(high, 0.0)


def qparams_from_range(low: float, high: float, bits: int, signed: bool) -> QParams:
    """Return the scale and zero point whose codes cover a range.

    The range is widened to include 0, which gets a code of its own. The scale is a float32 number; the
    rounding of the zero point leaves no value of the range further than half a scale from a code.

    Raises
    ------
    CalibrationError
        If bits is out of range, or low and high are not finite and in order.
    """
    check_bits(bits)
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise CalibrationError(f"range {low} to {high} must be finite and in order")
    low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        return QParams(1.0, 0, bits, signed)
    steps = (1 << bits) - 1
    # Divided before subtracted: the width of the widest range is beyond float32 until then.
    scale = max(float(np.float32(high / steps - low / steps)), _SMALLEST_SCALE)
    lowest_code = -(1 << (bits - 1)) if signed else 0
    zero_point = lowest_code + round(min(max(-low / scale, 0.0), float(steps)))
    return QParams(scale, zero_point, bits, signed)


def _percentile_range(statistics: TensorStatistics, percentile: float) -> tuple[float, float]:
    """Return the quantiles that leave (100 - percentile) / 2 percent at each end, even within bins."""
    if not 0.0 < percentile <= 100.0:
        raise CalibrationError(f"percentile must be above 0 and at most 100, not {percentile}")
    histogram = statistics.histogram
    cumulative = np.concatenate([[0], np.cumsum(histogram.counts)])
    left_out = statistics.count * (100.0 - percentile) / 200.0
    low, high = np.interp([left_out, statistics.count - left_out], cumulative, histogram.edges)
    return max(float(low), statistics.minimum), min(float(high), statistics.maximum)


def error_integral(u: NDArray[np.float64], bits: int) -> NDArray[np.float64]:
    """Return the integral from 0 to u of the squared error of codes 0 to N = 2**bits - 1, in units of a code.

    With n = clip(round(u), 0, N) and r = u - n:

        integral from 0 to u of (t - clip(round(t), 0, N))**2 dt = n / 12 + r**3 / 3           (1)

    since each whole code adds 1/12, and the error is r around a code and outside of [0, N] alike.
    """
    nearest = np.clip(np.rint(u), 0.0, float((1 << bits) - 1))
    rest = u - nearest
    return np.asarray(nearest / 12.0 + rest * rest * rest / 3.0)


def _mse_range(statistics: TensorStatistics, bits: int, signed: bool) -> tuple[float, float]:
    """Return the range of the least squared error of the values.

    With values spread evenly within a bin, the error of a bin is a difference of :func:`error_integral`. It
    holds for scales below the bin width too, where the error at the middle of a bin would say nothing.
    """
    histogram = statistics.histogram
    edges, density = histogram.edges, histogram.counts / histogram.width

    def error(low: float, high: float) -> float:
        params = qparams_from_range(low, high, bits, signed)
        integral = error_integral(edges / params.scale + float(params.zero_point - params.qmin), bits)
        return float(np.sum(density * np.diff(integral))) * float(params.scale) ** 3

    return search_range(error, statistics.minimum, statistics.maximum)
