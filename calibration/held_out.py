"""A share of the samples that is kept apart from calibration, to measure on."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibration.data import BatchSource
from calibration.errors import CalibrationError
from calibration.inputs import Feed, InputSpec

HELD_OUT_EVERY: Final = 4
"""Of so many samples (of batches, where the model fixes their size), the last is held out."""


def held_out_samples(count: int, inputs: Sequence[InputSpec]) -> NDArray[np.int64]:
    """Return the indices of the samples that :func:`hold_out` keeps apart, int64, ascending."""
    return np.flatnonzero(_is_held_out(0, count, _unit(inputs)))


def hold_out(source: BatchSource, inputs: Sequence[InputSpec]) -> tuple[BatchSource, BatchSource]:
    """Return the samples to calibrate on, and those that are held out.

    Which ones depends on their places in the data alone: with a dynamic batch size every fourth sample, with a fixed
    one every fourth batch.

    Parameters
    ----------
    source : BatchSource
        Gone through again for each of the two.
    inputs : sequence of InputSpec
        What the model takes.

    Raises
    ------
    CalibrationError
        On the way through, if a batch's inputs differ in their number of samples.
    """
    unit = _unit(inputs)

    def part(held: bool) -> BatchSource:
        def start() -> Iterator[Feed]:
            first = 0
            for number, feed in enumerate(source, start=1):
                count = _samples(feed, number)
                chosen = _is_held_out(first, count, unit) == held
                first += count
                if chosen.any():
                    yield {name: array[chosen] if _has_samples(array, count) else array for name, array in feed.items()}

        return BatchSource(start, None)

    return part(False), part(True)


def _unit(inputs: Sequence[InputSpec]) -> int:
    """Return how many samples stay together."""
    return max((spec.shape[0] or 1 for spec in inputs if spec.shape), default=1)


def _is_held_out(first: int, count: int, unit: int) -> NDArray[np.bool_]:
    return np.asarray(np.arange(first, first + count) // unit % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)


def _has_samples(array: NDArray[Any], count: int) -> bool:
    return bool(array.ndim) and len(array) == count


def _samples(feed: Feed, number: int) -> int:
    """Return the samples of a batch; an input with a first axis of 1, or none, is shared by all of them."""
    sizes = {len(array) for array in feed.values() if array.ndim}
    count = max(sizes, default=1)
    if sizes - {1, count}:
        raise CalibrationError(
            f"batch {number}: inputs differ in their first axis ({', '.join(map(str, sorted(sizes)))}), so no samples "
            "can be held out: give test data of its own"
        )
    return count
