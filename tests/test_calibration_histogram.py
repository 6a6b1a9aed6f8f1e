import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration import CalibrationError, Histogram
from calibration.histogram import BINS

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def counted_by_hand(values, exponent):
    """Return {bin index: count} in exact integer arithmetic."""
    counts = {}
    for value in np.asarray(values, dtype=np.float64).ravel().tolist():
        numerator, denominator = value.as_integer_ratio()
        scaled = (numerator << 200) // denominator  # exact: float32's smallest step is 2**-149
        index = scaled >> (200 + exponent)
        counts[index] = counts.get(index, 0) + 1
    return counts


def as_map(histogram):
    return {histogram.first + place: count for place, count in enumerate(histogram.counts.tolist()) if count}


@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_every_value_is_in_its_bin(values):
    histogram = Histogram.of(np.array(values, dtype=np.float32))
    assert as_map(histogram) == counted_by_hand(values, histogram.exponent)
    assert histogram.total == len(values)
    assert histogram.counts.size <= BINS


@settings(max_examples=200)
@given(st.lists(st.lists(FLOATS, min_size=1, max_size=8), min_size=2, max_size=4), st.randoms())
def test_splits_and_merge_orders_give_the_same_histogram(parts, random):
    whole = Histogram.of(np.array([value for part in parts for value in part], dtype=np.float32))
    histograms = [Histogram.of(np.array(part, dtype=np.float32)) for part in parts]
    for order in itertools.permutations(histograms):
        queue = list(order)
        while len(queue) > 1:  # pairs at random: every way of putting brackets
            place = random.randrange(len(queue) - 1)
            queue[place : place + 2] = [queue[place].merge(queue[place + 1])]
        assert queue[0] == whole


def test_bins_are_as_fine_as_their_number_allows():
    values = np.linspace(-3.0, 4.9999, 100_000, dtype=np.float32)
    histogram = Histogram.of(values)
    assert BINS / 2 <= histogram.counts.size <= BINS
    assert histogram.width == 2.0**-10
    np.testing.assert_array_equal(histogram.edges[[0, -1]], [-3.0, 5.0])


def test_memory_is_fixed_while_the_range_grows():
    histogram = Histogram.of(np.array([1e-30], dtype=np.float32))
    for exponent in range(-30, 38):
        values = np.float32(10.0**exponent) * np.array([-1.0, 0.3, 1.0], dtype=np.float32)
        histogram = histogram.merge(Histogram.of(values))
        assert histogram.counts.nbytes <= 8 * BINS
    assert histogram.total == 1 + 68 * 3


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3.25, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38])
def test_a_constant_takes_one_bin(value):
    histogram = Histogram.of(np.full(7, value, dtype=np.float32))
    assert histogram.counts.tolist() == [7]
    assert histogram.edges[0] <= np.float32(value) < histogram.edges[1]


def test_merging_very_different_widths_keeps_signs():
    tiny = Histogram.of(np.array([-1e-40, 1e-40], dtype=np.float32))
    merged = tiny.merge(Histogram.of(np.array([1e30], dtype=np.float32)))
    assert as_map(merged)[-1] == 1
    assert as_map(merged)[0] == 1


def test_round_trip():
    histogram = Histogram.of(np.random.default_rng(1).normal(size=1000).astype(np.float32))
    assert Histogram.from_dict(histogram.to_dict()) == histogram


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counts": []}, "0 bins"),
        ({"counts": [1] * (BINS + 1)}, "8193 bins"),
        ({"counts": [1, -1, 1]}, "below 0"),
        ({"counts": [0, 1]}, "empty first"),
        ({"counts": [1, 0]}, "empty first"),
        ({"counts": [1, 2.0]}, "whole numbers"),
        ({"counts": [True]}, "whole numbers"),
        ({"counts": [1 << 70]}, "too large"),
        ({"exponent": 1000}, "exponent"),
        ({"exponent": True}, "exponent"),
        ({"first": "0"}, "first"),
        ({"extra": 1}, "unknown 'extra'"),
    ],
)
def test_damaged_content_is_refused(change, message):
    content = {"exponent": 0, "first": 0, "counts": [1, 2]}
    assert Histogram.from_dict(content).total == 3
    with pytest.raises(CalibrationError, match=message):
        Histogram.from_dict(content | change)


def test_counts_are_read_only():
    histogram = Histogram.of(np.ones(3, dtype=np.float32))
    with pytest.raises(ValueError, match="read-only"):
        histogram.counts[0] = 2
    assert math.isclose(histogram.width, 2.0**-23)
