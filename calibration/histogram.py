"""A histogram of fixed memory whose content depends on the data alone.

Bins are aligned to zero and 2**exponent wide: bin i holds 2**e * i <= x < 2**e * (i + 1). The exponent is
the smallest that keeps the occupied bins within :data:`BINS` (and no finer than float32 can tell values
apart). Coarser bins are unions of finer ones, so neither the split of the data into batches nor the order
of merges changes a single count:

    floor(floor(x / 2**e) / 2) = floor(x / 2**(e + 1)).                                    (1)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibration.errors import CalibrationError
from calibration.fields import take_keys, take_whole, take_whole_array

BINS: Final = 8192
"""Most bins that a histogram holds: 64 KiB of counts, 32 bins for each code of 8 bits."""

_MANTISSA_BITS: Final = 24  # of float32: finer bins than this cannot be filled
_LOWEST_EXPONENT: Final = -160  # below every float32, subnormals included
_HIGHEST_EXPONENT: Final = 128
_CHUNK: Final = 1 << 18  # elements worked on at once, so that temporaries stay in cache


def _finest_exponent(low: float, high: float) -> int:
    magnitude = max(abs(low), abs(high))
    if magnitude == 0.0:
        return _LOWEST_EXPONENT
    return max(math.frexp(magnitude)[1] - _MANTISSA_BITS, _LOWEST_EXPONENT)


def _coarser_steps(first: int, last: int) -> int:
    """Return how often bins must be paired until first..last are at most BINS."""
    steps = 0
    while (last >> steps) - (first >> steps) >= BINS:
        steps += 1
    return steps


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of values in bins of width 2**exponent, aligned to zero.

    Parameters
    ----------
    exponent : int
        log2 of the bin width.
    first : int
        Index of the first bin: it starts at ``first * 2**exponent``.
    counts : int64 array of shape [n], 1 <= n <= BINS
        Values per bin, the first and the last above 0.
    """

    exponent: int
    first: int
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, values: NDArray[np.floating[Any]]) -> "Histogram":
        """Count finite values of any shape, at least one, of magnitudes within float32's range."""
        flat = values.reshape(-1)
        low, high = float(flat.min()), float(flat.max())
        exponent = _finest_exponent(low, high)
        first, last = (math.floor(math.ldexp(end, -exponent)) for end in (low, high))
        steps = _coarser_steps(first, last)
        exponent, first, last = exponent + steps, first >> steps, last >> steps
        counts = np.zeros(last - first + 1, dtype=np.int64)
        inverse_width = math.ldexp(1.0, -exponent)
        for start in range(0, flat.size, _CHUNK):
            # Scaling by a power of two is exact in float64, so every value lands in its own bin.
            scaled = flat[start : start + _CHUNK].astype(np.float64) * inverse_width
            index = np.floor(scaled).astype(np.int64) - first
            counts += np.bincount(index, minlength=counts.size)
        return cls(exponent, first, counts)

    def __post_init__(self) -> None:
        self.counts.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Histogram)
            and (self.exponent, self.first) == (other.exponent, other.first)
            and np.array_equal(self.counts, other.counts)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def width(self) -> float:
        """Width of a bin, in the unit of the values."""
        return math.ldexp(1.0, self.exponent)

    @property
    def last(self) -> int:
        """Index of the last bin."""
        return self.first + self.counts.size - 1

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    @property
    def edges(self) -> NDArray[np.float64]:
        """Edges of the bins, float64 of shape [n + 1]; exact."""
        return np.arange(self.first, self.last + 2, dtype=np.float64) * self.width

    def coarsened(self, exponent: int) -> "Histogram":
        """Return the same counts in bins of width 2**exponent, not finer than now."""
        if exponent == self.exponent:
            return self
        steps = min(exponent - self.exponent, 62)  # an int64 shifted by more is 0 or -1 all the same
        index = np.arange(self.first, self.last + 1, dtype=np.int64) >> steps
        first = int(index[0])
        counts = np.zeros(int(index[-1]) - first + 1, dtype=np.int64)
        np.add.at(counts, index - first, self.counts)
        return Histogram(exponent, first, counts)

    def merge(self, other: "Histogram") -> "Histogram":
        """Return the histogram of both sets of values, exactly; associative and commutative."""
        exponent = max(self.exponent, other.exponent)
        a, b = self.coarsened(exponent), other.coarsened(exponent)
        exponent += _coarser_steps(min(a.first, b.first), max(a.last, b.last))
        a, b = a.coarsened(exponent), b.coarsened(exponent)
        first = min(a.first, b.first)
        counts = np.zeros(max(a.last, b.last) - first + 1, dtype=np.int64)
        for part in (a, b):
            counts[part.first - first : part.last + 1 - first] += part.counts
        return Histogram(exponent, first, counts)

    def to_dict(self) -> dict[str, Any]:
        """Return the content in JSON's types."""
        return {"exponent": self.exponent, "first": self.first, "counts": self.counts.tolist()}

    @classmethod
    def from_dict(cls, content: object) -> "Histogram":
        """Return the histogram that :meth:`to_dict` described.

        Raises
        ------
        CalibrationError
            If the content is not that of a histogram.
        """
        fields: Mapping[str, object] = take_keys(content, "histogram", ("exponent", "first", "counts"))
        exponent = take_whole(fields["exponent"], "exponent", _LOWEST_EXPONENT, _HIGHEST_EXPONENT)
        limit = 1 << (_MANTISSA_BITS + 1)
        first = take_whole(fields["first"], "first", -limit, limit)
        counts = take_whole_array(fields["counts"], "counts")
        if not 1 <= counts.size <= BINS:
            raise CalibrationError(f"histogram has {counts.size} bins instead of 1 to {BINS}")
        if counts.min() < 0 or counts[0] == 0 or counts[-1] == 0:
            raise CalibrationError("histogram has a count below 0, or an empty first or last bin")
        return cls(exponent, first, counts)
