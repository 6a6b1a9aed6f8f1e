"""How far values out of sample lie beyond those that were seen, channel by channel."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_MOST_ORDERED: Final = 16
"""Of a channel's values, how many of the largest tell how its tail falls off."""

_PART_ORDERED: Final = 8
"""With few rows, at most one in eight of them."""


@dataclass(frozen=True, eq=False)
class Tails:
    """Mean excess of every channel at both ends.

    An exponential tail beyond the largest of n values, with mean excess b, has the squared error

        E[max(x - end, 0)**2] = 2 b**2 exp(-(end - largest) / b) / n

    for a value x out of sample and an end of the codes at or beyond the largest value.

    Parameters
    ----------
    low, high : float64 array of shape [C]
        Mean excess below the minimum and above the maximum; 0 or more.
    count : float
        Values seen in each channel.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    count: float

    def risk(self, margin: NDArray[np.float64], *, high: bool) -> NDArray[np.float64]:
        """Return the expected squared error of values beyond ends that lie ``margin`` (0 or more) outside."""
        excess = self.high if high else self.low
        decay = np.exp(-margin / np.maximum(excess, np.finfo(np.float64).tiny))
        return np.asarray(2.0 * np.square(excess) * decay / self.count)


def measure_tails(rows: NDArray[np.float32], count: float) -> Tails:
    """Return the tails of every channel.

    A channel's own mean excess is that of its largest k of n values over the next one, k = min(16, n / 8), 1 at
    least. Rare values make it uncertain, and a channel may have shown none yet: what is used is the geometric mean
    of it and of the mean over all channels.

    Parameters
    ----------
    rows : float32 array of shape [n, C]
        Some of the values; n is at least 1.
    count : float
        Values seen in each channel, n at least.
    """
    ordered = min(max(1, min(_MOST_ORDERED, len(rows) // _PART_ORDERED)), len(rows) - 1)
    if ordered == 0:
        nothing = np.zeros(rows.shape[1])
        return Tails(nothing, nothing, count)

    def excess(values: NDArray[np.float32]) -> NDArray[np.float64]:
        smallest = np.sort(np.partition(values, ordered, axis=0)[: ordered + 1], axis=0).astype(np.float64)
        own = smallest[ordered] - smallest[:ordered].mean(axis=0)
        return np.asarray(np.sqrt(own * own.mean()))

    return Tails(excess(rows), excess(-rows), count)
