"""How far ranges seen on few samples must be widened to hold on other data."""

from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

_COVERED: Final = 1e-5
"""Share of values out of sample that may lie beyond the range, on each side."""


def sampling_margin(samples: float) -> float:
    """Return the factor by which to widen a range seen on that many values of a channel; 1 or more.

    The largest of n values of a normal distribution lies near its 1 - 1/n quantile; the factor brings that to
    the 1 - 1e-5 quantile. From 100,000 values on it is 1.
    """
    if samples * _COVERED >= 1.0:
        return 1.0
    quantile = NormalDist().inv_cdf
    return quantile(1.0 - _COVERED) / quantile(1.0 - 1.0 / max(samples, 4.0))


def widen(
    low: NDArray[np.float64], high: NDArray[np.float64], samples: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return per-channel ranges widened about their middles by :func:`sampling_margin`.

    Parameters
    ----------
    low, high : float64 arrays of shape [C]
    samples : float
        Values seen in each channel.
    """
    middle, half = 0.5 * (low + high), 0.5 * (high - low) * sampling_margin(samples)
    return middle - half, middle + half
