"""What is kept of a tensor that was observed: counts, ranges, moments and a histogram, in fixed memory."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibration.errors import CalibrationError
from calibration.fields import take_keys, take_number, take_number_array, take_whole
from calibration.histogram import Histogram
from calibration.row_sample import RowSample

_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
_CHUNK: Final = 1 << 18
_KEYS: Final = (
    "count",
    "minimum",
    "maximum",
    "sum",
    "sum_of_squares",
    "histogram",
    "channel_minimum",
    "channel_maximum",
    "rows",
)


@dataclass(frozen=True, eq=False)
class TensorStatistics:
    """Statistics of the values of one tensor.

    Whatever the split into batches and the order of merges, counts, ranges, histogram and rows are the same to
    the last bit; the two sums are the same to float64 rounding.

    Parameters
    ----------
    count : int
        Values seen, at least 1.
    minimum, maximum : float
        Their range.
    sum, sum_of_squares : float
        Accumulated in float64.
    histogram : Histogram
        All values.
    channel_minimum, channel_maximum : float64 array of shape [C], or None
        Ranges along the last axis, where they were asked for.
    rows : RowSample or None
        Some rows along the last axis, where they were asked for.
    """

    count: int
    minimum: float
    maximum: float
    sum: float
    sum_of_squares: float
    histogram: Histogram
    channel_minimum: NDArray[np.float64] | None = None
    channel_maximum: NDArray[np.float64] | None = None
    rows: RowSample | None = None

    def __post_init__(self) -> None:
        for array in (self.channel_minimum, self.channel_maximum):
            if array is not None:
                array.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorStatistics) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return self.sum / self.count

    @property
    def root_mean_square(self) -> float:
        """Square root of the mean of the squares."""
        return math.sqrt(self.sum_of_squares / self.count)

    @property
    def channels(self) -> int | None:
        """Number of channels whose ranges are known, or None."""
        return None if self.channel_minimum is None else self.channel_minimum.size

    def merge(self, other: "TensorStatistics") -> "TensorStatistics":
        """Return the statistics of both sets of values.

        Raises
        ------
        CalibrationError
            If the two differ in channels.
        """
        if self.channels != other.channels:
            raise CalibrationError(f"channels differ: {self.channels} and {other.channels}")
        if (self.rows is None) != (other.rows is None):
            raise CalibrationError("one has a sample of rows, the other has not")
        channel_minimum = channel_maximum = None
        if self.channel_minimum is not None and other.channel_minimum is not None:
            channel_minimum = np.minimum(self.channel_minimum, other.channel_minimum)
        if self.channel_maximum is not None and other.channel_maximum is not None:
            channel_maximum = np.maximum(self.channel_maximum, other.channel_maximum)
        return TensorStatistics(
            self.count + other.count,
            min(self.minimum, other.minimum),
            max(self.maximum, other.maximum),
            self.sum + other.sum,
            self.sum_of_squares + other.sum_of_squares,
            self.histogram.merge(other.histogram),
            channel_minimum,
            channel_maximum,
            None if self.rows is None or other.rows is None else self.rows.merge(other.rows),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the content in JSON's types; floats survive the round trip exactly."""
        return {
            "count": self.count,
            "minimum": self.minimum,
            "maximum": self.maximum,
            "sum": self.sum,
            "sum_of_squares": self.sum_of_squares,
            "histogram": self.histogram.to_dict(),
            "channel_minimum": None if self.channel_minimum is None else self.channel_minimum.tolist(),
            "channel_maximum": None if self.channel_maximum is None else self.channel_maximum.tolist(),
            "rows": None if self.rows is None else self.rows.to_dict(),
        }

    @classmethod
    def from_dict(cls, content: object) -> "TensorStatistics":
        """Return the statistics that :meth:`to_dict` described.

        Raises
        ------
        CalibrationError
            If a value is missing, unknown, of a wrong type, or contradicts another.
        """
        fields = take_keys(content, "tensor", _KEYS)
        count = take_whole(fields["count"], "count", 1)
        minimum, maximum, total, squares = (take_number(fields[key], key) for key in _KEYS[1:5])
        if not -_FLOAT32_MAX <= minimum <= maximum <= _FLOAT32_MAX:
            raise CalibrationError("minimum and maximum are not a range of float32")
        histogram = Histogram.from_dict(fields["histogram"])
        ends = [math.floor(math.ldexp(end, -histogram.exponent)) for end in (minimum, maximum)]
        if histogram.total != count or ends != [histogram.first, histogram.last]:
            raise CalibrationError("histogram contradicts count, minimum or maximum")
        if fields["channel_minimum"] is None and fields["channel_maximum"] is None:
            if fields["rows"] is not None:
                raise CalibrationError("rows without channel ranges")
            return cls(count, minimum, maximum, total, squares, histogram)
        lows, highs = (take_number_array(fields[key], key) for key in ("channel_minimum", "channel_maximum"))
        if lows.size == 0 or lows.shape != highs.shape or (lows > highs).any():
            raise CalibrationError("channel_minimum and channel_maximum contradict each other")
        if lows.min() != minimum or highs.max() != maximum:
            raise CalibrationError("channel ranges contradict minimum or maximum")
        rows = None if fields["rows"] is None else RowSample.from_dict(fields["rows"])
        if rows is not None and (
            rows.rows.shape[1] != lows.size
            or (rows.rows < lows.astype(np.float32)).any()
            or (rows.rows > highs.astype(np.float32)).any()
        ):
            raise CalibrationError("rows contradict the channel ranges")
        return cls(count, minimum, maximum, total, squares, histogram, lows, highs, rows)


def observe(
    array: NDArray[Any],
    keep: NDArray[np.bool_] | None = None,
    *,
    per_channel: bool = False,
    sample_rows: bool = False,
) -> TensorStatistics | None:
    """Return the statistics of one array, or None if it has no values to observe.

    Parameters
    ----------
    array : floating-point array
        The last axis holds the channels.
    keep : bool array, optional
        Leading positions to observe: its shape is that of array's leading axes, the last axis left out.
    per_channel : bool
        Whether to keep the range of each channel too.
    sample_rows : bool
        Whether to keep some rows too; goes with ``per_channel``.

    Raises
    ------
    CalibrationError
        If the array is not of floats, has no channel axis where one is needed, does not fit ``keep``, or
        holds values (in kept positions) that are NaN, infinite or beyond float32.
    """
    if array.dtype.kind != "f":
        raise CalibrationError(f"is of dtype {array.dtype}, and only floats can be observed")
    if per_channel and array.ndim == 0:
        raise CalibrationError("is a scalar and has no channels")
    if keep is not None:
        if keep.ndim >= max(array.ndim, 1) or keep.shape != array.shape[: keep.ndim]:
            raise CalibrationError(f"has shape {list(array.shape)}, and the mask {list(keep.shape)}")
        array = array[keep]
    if array.size == 0:
        return None
    low, high = float(array.min()), float(array.max())
    if not (low >= -_FLOAT32_MAX and high <= _FLOAT32_MAX):
        bad = array.size - int(np.count_nonzero(np.abs(array, dtype=np.float64) <= _FLOAT32_MAX))
        raise CalibrationError(f"holds {bad} of {array.size} values that are NaN, infinite or beyond float32")
    flat = array.reshape(-1)
    total = squares = 0.0
    for start in range(0, flat.size, _CHUNK):
        chunk = flat[start : start + _CHUNK].astype(np.float64)
        total += float(chunk.sum())
        squares += float(np.square(chunk).sum())
    channel_minimum = channel_maximum = sample = None
    if per_channel:
        rows = array.reshape(-1, array.shape[-1])
        # Adding 0 turns -0 into +0: which of the two a minimum returns depends on the order.
        channel_minimum = rows.min(axis=0).astype(np.float64) + 0.0
        channel_maximum = rows.max(axis=0).astype(np.float64) + 0.0
        sample = RowSample.of(rows) if sample_rows else None
    return TensorStatistics(
        flat.size, low + 0.0, high + 0.0, total, squares, Histogram.of(flat), channel_minimum, channel_maximum, sample
    )


class TensorObserver:
    """Gathers the statistics of one tensor, batch by batch; its memory does not grow."""

    def __init__(self, *, per_channel: bool = False, sample_rows: bool = False) -> None:
        self._per_channel = per_channel
        self._sample_rows = sample_rows
        self._statistics: TensorStatistics | None = None

    def update(self, array: NDArray[Any], keep: NDArray[np.bool_] | None = None) -> None:
        """Add one batch. Parameters and errors as for :func:`observe`."""
        batch = observe(array, keep, per_channel=self._per_channel, sample_rows=self._sample_rows)
        if batch is not None:
            self._statistics = batch if self._statistics is None else self._statistics.merge(batch)

    @property
    def statistics(self) -> TensorStatistics:
        """What was gathered.

        Raises
        ------
        CalibrationError
            If no value was seen.
        """
        if self._statistics is None:
            raise CalibrationError("has no values: the data is empty, or the mask leaves all of it out")
        return self._statistics
