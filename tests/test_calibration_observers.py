import json
import math

import numpy as np
import pytest

from calibration import CalibrationError, TensorObserver, TensorStatistics, observe
from calibration.histogram import BINS


def data(seed=0, shape=(40, 6, 5)):
    return (np.random.default_rng(seed).standard_t(2, size=shape)).astype(np.float32)


def gathered(parts, per_channel=True):
    observer = TensorObserver(per_channel=per_channel)
    for part in parts:
        observer.update(part)
    return observer.statistics


def assert_same(a, b):
    """All but the sums to the last bit."""
    assert math.isclose(a.sum, b.sum, rel_tol=1e-12, abs_tol=1e-9)
    assert math.isclose(a.sum_of_squares, b.sum_of_squares, rel_tol=1e-12)
    sums = {"sum": 0.0, "sum_of_squares": 0.0}
    assert a.to_dict() | sums == b.to_dict() | sums


def test_values_against_numpy():
    x = data()
    s = observe(x, per_channel=True)
    assert (s.count, s.minimum, s.maximum) == (x.size, x.min(), x.max())
    assert math.isclose(s.mean, x.astype(np.float64).mean(), rel_tol=1e-12)
    assert math.isclose(s.root_mean_square, np.sqrt(np.square(x.astype(np.float64)).mean()), rel_tol=1e-12)
    np.testing.assert_array_equal(s.channel_minimum, x.min(axis=(0, 1)))
    np.testing.assert_array_equal(s.channel_maximum, x.max(axis=(0, 1)))
    assert s.histogram.total == x.size
    assert s.channels == 5
    assert observe(x).channels is None


@pytest.mark.parametrize("cuts", [[1], [7, 8, 30], list(range(1, 40))])
def test_the_split_into_batches_does_not_matter(cuts):
    x = data()
    assert_same(gathered(np.split(x, cuts)), gathered([x]))


def test_the_order_of_merges_does_not_matter():
    parts = [observe(np.float32(10.0) ** k * data(k, (3, 4)), per_channel=True) for k in range(5)]
    a = parts[0].merge(parts[1]).merge(parts[2]).merge(parts[3]).merge(parts[4])
    b = parts[4].merge(parts[2].merge(parts[0])).merge(parts[3].merge(parts[1]))
    assert_same(a, b)


def test_large_arrays_are_the_same_as_small_ones():
    x = data(shape=(700, 1000))
    assert_same(observe(x, per_channel=True), gathered(np.array_split(x, 9)))


def test_keep_leaves_positions_out():
    x = data(shape=(4, 3, 2))
    keep = np.random.default_rng(1).random((4, 3)) < 0.5
    x[~keep] = np.nan
    assert observe(x, keep, per_channel=True) == observe(x[keep], per_channel=True)
    assert observe(x, np.zeros((4, 3), dtype=bool)) is None


@pytest.mark.parametrize("shape", [(4,), (4, 3, 2), (3, 4)])
def test_keep_must_fit(shape):
    x = data(shape=(4, 3, 2))
    if shape == (4,):
        observe(x, np.ones(shape, dtype=bool))
    else:
        with pytest.raises(CalibrationError, match="mask"):
            observe(x, np.ones(shape, dtype=bool))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_counted(bad):
    x = data(shape=(5, 4))
    x[1, 2] = x[3, 3] = bad
    with pytest.raises(CalibrationError, match="holds 2 of 20 values that are NaN, infinite"):
        observe(x)


def test_float64_beyond_float32_is_refused():
    with pytest.raises(CalibrationError, match=r"1 of 2 values .* beyond float32"):
        observe(np.array([1.0, 1e39]))


def test_other_types_and_scalars_are_refused():
    with pytest.raises(CalibrationError, match="int64"):
        observe(np.arange(3))
    with pytest.raises(CalibrationError, match="scalar"):
        observe(np.float32(1.0) * np.ones(()), per_channel=True)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_float_types(dtype):
    s = observe(np.array([-0.5, 0.25, 3.0], dtype=dtype))
    assert (s.minimum, s.maximum, s.sum, s.sum_of_squares) == (-0.5, 3.0, 2.75, 9.3125)


def test_negative_zero_leaves_no_trace_of_order():
    a = observe(np.array([[0.0], [-0.0]], dtype=np.float32), per_channel=True)
    b = observe(np.array([[-0.0], [0.0]], dtype=np.float32), per_channel=True)
    assert json.dumps(a.to_dict()) == json.dumps(b.to_dict())
    assert "-0.0" not in json.dumps(observe(np.full((2, 1), -0.0, dtype=np.float32)).to_dict())


def test_nothing_seen():
    observer = TensorObserver()
    observer.update(np.zeros((0, 4), dtype=np.float32))
    with pytest.raises(CalibrationError, match="no values"):
        _ = observer.statistics


def test_channels_must_agree():
    with pytest.raises(CalibrationError, match="channels differ: 4 and 5"):
        observe(data(shape=(2, 4)), per_channel=True).merge(observe(data(shape=(2, 5)), per_channel=True))
    with pytest.raises(CalibrationError, match="channels differ: 4 and None"):
        observe(data(shape=(2, 4)), per_channel=True).merge(observe(data(shape=(2, 4))))


def test_memory_does_not_grow():
    observer = TensorObserver(per_channel=True)
    for k in range(50):
        observer.update(np.float32(1.7**k) * data(k, (10, 8)))
    s = observer.statistics
    assert s.histogram.counts.nbytes <= 8 * BINS
    assert s.channel_minimum.nbytes == 64
    assert s.count == 50 * 80


@pytest.mark.parametrize("per_channel", [False, True])
def test_json_round_trip_is_exact(per_channel):
    s = observe(data() * np.float32(1e-20) / np.float32(3.0), per_channel=per_channel)
    assert TensorStatistics.from_dict(json.loads(json.dumps(s.to_dict()))) == s


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 5}, "contradicts"),
        ({"count": 0}, "count"),
        ({"count": True}, "count"),
        ({"minimum": -100.0}, "contradicts"),
        ({"maximum": 1e300}, "range of float32"),
        ({"maximum": None}, "maximum"),
        ({"sum": float("nan")}, "sum"),
        ({"sum": 10**400}, "too large"),
        ({"histogram": []}, "histogram is not an object"),
        ({"channel_minimum": None}, "channel_minimum"),
        ({"channel_minimum": [0.0]}, "contradict"),
        ({"channel_minimum": ["a", 0.0]}, "channel_minimum"),
        ({"more": 1}, "unknown 'more'"),
    ],
)
def test_damaged_content_is_refused(change, message):
    content = observe(np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32), per_channel=True).to_dict()
    TensorStatistics.from_dict(content)
    with pytest.raises(CalibrationError, match=message):
        TensorStatistics.from_dict(content | change)
    del content["sum"]
    with pytest.raises(CalibrationError, match="no 'sum'"):
        TensorStatistics.from_dict(content)
