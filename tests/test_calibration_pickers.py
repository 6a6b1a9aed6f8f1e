import functools
import itertools

import numpy as np
import pytest

from calibration import (
    CalibrationError,
    observe,
    pick_activation_input_range,
    pick_range,
    qparams_from_range,
)
from calibration.activation_range import clipping_weight, negligible_below
from calibration.pickers import METHODS, error_integral
from calibration.range_search import search_range
from qgelu.activations import ACTIVATIONS, evaluate


@functools.cache
def draw(name, size=20_000):
    rng = np.random.default_rng(7)
    values = {
        "normal": lambda: rng.normal(size=size),
        "heavy tails": lambda: 1.5 * rng.standard_t(3, size=size) - 1.0,
        "one outlier": lambda: np.append(rng.normal(size=size), 300.0),
        "positive": lambda: rng.gamma(1.0, 2.0, size=size),
        "negative": lambda: -1.0 - rng.gamma(1.0, 2.0, size=size),
        "after gelu": lambda: evaluate(3.0 * rng.normal(size=size)),
        "clipped": lambda: np.clip(4.0 * rng.normal(size=size), 0.0, 6.0),
        "tiny": lambda: 1e-30 * rng.normal(size=size),
        "huge": lambda: 1e37 * rng.normal(size=size),
        "two values": lambda: np.array([0.0] * 10 + [3.0]),
    }
    return values[name]().astype(np.float32)


NAMES = (
    "normal",
    "heavy tails",
    "one outlier",
    "positive",
    "negative",
    "after gelu",
    "clipped",
    "tiny",
    "huge",
    "two values",
)


def squared_error(x, low, high, bits, function=lambda x: x, clipped=1.0):
    """Return the mean squared error of function(x); what is clipped counts ``clipped`` times."""
    params = qparams_from_range(low, high, bits, False)
    x = x.astype(np.float64)
    codes = np.rint(x / params.scale) + params.zero_point
    weight = np.where((codes < params.qmin) | (codes > params.qmax), clipped, 1.0)
    return float((weight * np.square(function(params.dequantize(params.quantize(x))) - function(x))).mean())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_ranges_hold_zero_and_stay_within_the_values(name, method, bits):
    s = observe(draw(name))
    low, high = pick_range(s, method, bits, True)
    assert min(s.minimum, 0.0) <= low <= 0.0 <= high <= max(s.maximum, 0.0)
    assert low < high
    assert (low, high) == pick_range(s, method, bits, False)


@pytest.mark.parametrize("value", [0.0, 3.5, -1e-30, 1e38])
@pytest.mark.parametrize("method", [*METHODS, "output"])
def test_constants_give_valid_scales(value, method):
    s = observe(np.full((5, 4), value, dtype=np.float32))
    if method == "output":
        low, high = pick_activation_input_range(s, "gelu", 1.702, 8, method)
    else:
        low, high = pick_range(s, method, 8, False)
    assert (low, high) == (min(s.minimum, 0.0), max(s.minimum, 0.0))
    params = qparams_from_range(low, high, 8, False)
    assert params.scale > 0.0
    assert params.dequantize(params.quantize(value)) == pytest.approx(s.minimum, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [3, 8])
def test_mse_is_near_the_least_squared_error(name, bits):
    x = draw(name)
    s = observe(x)
    found = squared_error(x, *pick_range(s, "mse", bits, False), bits)
    ends = 2.0 ** -np.linspace(0.0, 8.0, 33)
    pairs = itertools.product(min(s.minimum, 0.0) * ends, max(s.maximum, 0.0) * ends)
    least = min(squared_error(x, low, high, bits) for low, high in set(pairs))
    assert found <= 1.03 * least


def test_the_integral_of_the_squared_error():
    t = np.linspace(-3.0, 6.0, 900_001)
    middle = (t[1:] + t[:-1]) / 2
    square = np.square(middle - np.clip(np.rint(middle), 0, 3))
    summed = np.cumsum(square) * (t[1] - t[0])
    integral = error_integral(t, 2)
    np.testing.assert_allclose(integral[1:] - integral[0], summed, atol=1e-8)
    assert error_integral(np.zeros(1), 2) == 0.0


def test_mse_of_scales_below_the_bin_width():
    x = draw("one outlier")
    low, high = pick_range(observe(x), "mse", 16, False)
    assert squared_error(x, low, high, 16) <= 1.001 * squared_error(x, x.min(), x.max(), 16)


def test_percentile_leaves_out_what_it_says():
    x = np.arange(100_000, dtype=np.float32) - 30_000.0
    low, high = pick_range(observe(x), "percentile", 8, False, percentile=99.0)
    assert low == pytest.approx(-29_500.0, abs=1.0)
    assert high == pytest.approx(69_500.0, abs=1.0)
    low, high = pick_range(observe(x), "percentile", 8, False)
    assert (low, high) == pytest.approx((-29_995.0, 69_995.0), abs=1.0)
    assert pick_range(observe(x), "percentile", 8, False, percentile=100.0) == (x.min(), x.max())


def test_entropy_leaves_a_lone_outlier_out_and_keeps_an_even_spread():
    assert pick_range(observe(draw("one outlier")), "entropy", 8, True)[1] < 30.0
    assert pick_range(observe(-draw("one outlier")), "entropy", 8, True)[0] > -30.0
    # What is clipped counts: a tenth of the values on one side may not be thrown away for nothing.
    for sign, end in ((1, 1), (-1, 0)):
        lumps = sign * np.append(draw("normal"), np.linspace(20.0, 24.0, 2_000, dtype=np.float32))
        assert abs(pick_range(observe(lumps), "entropy", 8, True)[end]) > 15.0
    even = np.linspace(-3.0, 5.0, 50_000, dtype=np.float32)
    low, high = pick_range(observe(even), "entropy", 8, True)
    assert low == -3.0
    assert high > 4.5


def test_pickers_prefer_no_clipping_where_it_gains_nothing():
    x = np.tile(np.arange(-7.0, 9.0, dtype=np.float32), 100)  # 16 values, 16 codes
    assert pick_range(observe(x), "mse", 16, False) == (-7.0, 8.0)


@pytest.mark.parametrize("bits", [2, 8, 16])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 3.0), (0.0, 5.0), (2.0, 5.0), (-3.0, -1.0), (-1e-44, 0.0), (-3.4e38, 3.4e38)]
)
def test_qparams_cover_the_range(low, high, bits, signed):
    params = qparams_from_range(low, high, bits, signed)
    assert (params.bits, params.signed) == (bits, signed)
    assert params.scale == np.float32(params.scale)
    assert params.dequantize(params.zero_point) == 0.0
    ends = params.dequantize([params.qmin, params.qmax])
    half = params.scale * (0.5 + 1e-3)
    assert ends[0] - half <= min(low, 0.0)
    assert ends[1] + half >= max(high, 0.0)
    width = max(high, 0.0) - min(low, 0.0)
    assert params.scale == max(np.float32(width / (2**bits - 1)), np.finfo(np.float32).tiny)


def test_a_range_of_nothing_has_a_scale():
    params = qparams_from_range(0.0, 0.0, 4, True)
    assert (params.scale, params.zero_point) == (1.0, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: pick_range(s, "best", 8, True), "method 'best' is not known: use one of minmax, "),
        (lambda s: pick_range(s, "mse", 1, True), "bits must be a whole number from 2 to 16, not 1"),
        (lambda s: pick_range(s, "mse", 17, True), "not 17"),
        (lambda s: pick_range(s, "mse", 8.0, True), r"not 8\.0"),
        (lambda s: pick_range(s, "percentile", 8, True, percentile=0.0), "percentile must be above 0"),
        (lambda s: pick_range(s, "percentile", 8, True, percentile=101.0), "at most 100"),
        (lambda s: qparams_from_range(1.0, 0.0, 8, True), "in order"),
        (lambda s: qparams_from_range(0.0, np.inf, 8, True), "finite"),
        (lambda s: pick_activation_input_range(s, "gelu", 1.7, 8, "best"), "use one of .*output"),
        (lambda s: pick_activation_input_range(s, "gelu", 1.7, 99), "not 99"),
    ],
)
def test_parameters_out_of_range(call, message):
    with pytest.raises(CalibrationError, match=message):
        call(observe(draw("normal", 100)))


def test_where_the_output_is_next_to_nothing():
    assert negligible_below("gelu", 1.702, 8) == pytest.approx(-4.01, abs=0.01)
    for activation in ACTIVATIONS:
        for bits in (2, 4, 8, 16):
            x = negligible_below(activation, 1.702, bits)
            assert float(evaluate(x, activation)) == pytest.approx(-(2.0 ** -(bits + 5)), rel=1e-6)
    assert negligible_below("quick_gelu", 1e-3, 8) < negligible_below("quick_gelu", 1.702, 8)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bits", [4, 8, 12])
@pytest.mark.parametrize("name", ["normal", "heavy tails", "negative", "positive"])
def test_output_is_best_for_the_output(activation, bits, name):
    x = 3.0 * draw(name)
    s = observe(x)

    def error(method):
        low, high = pick_activation_input_range(s, activation, 1.702, bits, method)
        assert low <= 0.0 <= high
        return squared_error(x, low, high, bits, lambda x: evaluate(x, activation), clipping_weight(bits))

    searched = error("output")
    plain = squared_error(x, s.minimum, s.maximum, bits, lambda x: evaluate(x, activation))
    for other in (plain, *(error(method) for method in METHODS)):
        assert searched <= 1.03 * other


def test_output_gains_what_clipping_alone_does_not():
    """Min-max is worse than the same with its negative side cut, and that worse than both ends searched."""
    x = draw("heavy tails")
    s = observe(x)
    for bits in (8, 6, 4):
        plain, cut, searched = (
            squared_error(x, *ends, bits, evaluate)
            for ends in (
                pick_range(s, "minmax", bits, False),
                pick_activation_input_range(s, "gelu", 1.702, bits, "minmax"),
                pick_activation_input_range(s, "gelu", 1.702, bits),
            )
        )
        assert searched < 1.05 * cut < plain  # clipping has its price in the search, not here
    assert searched < 0.5 * cut  # at 4 bits


def test_the_search_is_never_worse_than_the_whole_range_and_calls_nothing_outside():
    calls = []

    def error(low, high):
        calls.append((low, high))
        return 1.0 if (low, high) == (-8.0, 2.0) else 2.0

    assert search_range(error, -8.0, 2.0) == (-8.0, 2.0)
    assert all(-8.0 <= low <= 0.0 <= high <= 2.0 for low, high in calls)
    assert search_range(lambda low, high: 0.0, 1.0, 2.0) == (0.0, 2.0)
    low, high = search_range(lambda low, high: (low + 0.37) ** 2 + (high - 1.1) ** 2, -8.0, 2.0)
    assert (low, high) == pytest.approx((-0.37, 1.1), rel=0.02)
