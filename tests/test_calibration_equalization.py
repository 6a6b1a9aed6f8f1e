import numpy as np
import pytest

from calibration import CalibrationError, equalize


def example(seed=0, K=24, N=10):
    rng = np.random.default_rng(seed)
    middle = 10.0 ** rng.uniform(-2, 2, K) * rng.choice([-1, 1], K)
    radius = 10.0 ** rng.uniform(-2, 2, K)
    weight = (rng.normal(size=(K, N)) * 10.0 ** rng.uniform(-2, 1, (K, 1))).astype(np.float32)
    return middle - radius, middle + radius, weight


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.65, 1.0])
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_every_channel_fits_its_codes(exponent, bits):
    for seed in range(20):
        low, high, weight = example(seed)
        scales = equalize(low, high, weight, exponent, bits)
        codes = np.stack([low, high]) / scales.scale + scales.zero_point
        last = 2**bits - 1
        assert codes.min() >= -1e-4 * last
        assert codes.max() <= (1.0 + 1e-4) * last
        np.testing.assert_allclose(codes.mean(axis=0), last / 2, atol=1e-6 * last)
        assert (codes[1] - codes[0]).max() == pytest.approx(last, rel=1e-6)  # one channel uses all of them


def test_the_formula():
    low, high, weight = example()
    radius, largest = (high - low) / 2, np.abs(weight).max(axis=1).astype(np.float64)
    balance = radius**0.7 / largest**0.3
    share = (radius / balance).max() * 2 / 255
    scales = equalize(low, high, weight, 0.7, 8)
    np.testing.assert_allclose(scales.scale, share * balance, rtol=1e-6)
    np.testing.assert_allclose(scales.zero_point, 127.5 - (high + low) / 2 / scales.scale, rtol=1e-6)


def test_exponents_at_the_ends():
    low, high, weight = example()
    by_input = equalize(low, high, weight, 1.0, 8).scale
    np.testing.assert_allclose(by_input, (high - low) / 255, rtol=1e-6)
    by_weight = equalize(low, high, weight, 0.0, 8).scale[:, None] * weight
    largest = np.abs(by_weight).max(axis=1)
    np.testing.assert_allclose(largest, largest[0], rtol=1e-6)


def test_units_do_not_matter():
    low, high, weight = example()
    usual = equalize(low, high, weight, 0.7, 8)
    for factor in (2.0**-60, 2.0**60):
        other = equalize(low * factor, high * factor, weight, 0.7, 8)
        np.testing.assert_allclose(other.scale, usual.scale * factor, rtol=1e-10)
        np.testing.assert_allclose(other.zero_point, usual.zero_point, rtol=1e-9)
        np.testing.assert_allclose(equalize(low, high, weight * factor, 0.7, 8).scale, usual.scale, rtol=1e-10)


def test_clip_narrows_every_range():
    low, high, weight = example()
    usual, clipped = equalize(low, high, weight, 0.7, 8), equalize(low, high, weight, 0.7, 8, clip=0.5)
    np.testing.assert_allclose(clipped.scale, usual.scale / 2, rtol=1e-12)
    middle = 127.5 - (high + low) / 2 / clipped.scale
    np.testing.assert_allclose(clipped.zero_point, middle, rtol=1e-9)


@pytest.mark.parametrize("exponent", [0.0, 0.65, 1.0])
def test_dead_channels_and_rows_leave_the_others_alone(exponent):
    low, high, weight = example()
    usual = equalize(low, high, weight, exponent, 8)
    low = np.concatenate([low, [0.0, 7.0, -1.0, 0.0, 5.0]])
    high = np.concatenate([high, [0.0, 7.0, 1.0, 0.0, 5.0]])
    dead = np.zeros((5, weight.shape[1]), dtype=np.float32)
    dead[:2] = 0.1
    scales = equalize(low, high, np.concatenate([weight, dead]), exponent, 8)
    assert np.isfinite(scales.scale).all()
    assert (scales.scale > 0.0).all()
    np.testing.assert_allclose(scales.scale[:-5], usual.scale, rtol=1e-12)
    codes = np.stack([low, high]) / scales.scale + scales.zero_point
    assert codes.min() >= -0.1
    assert codes.max() <= 255.1


def test_everything_dead():
    scales = equalize(np.zeros(3), np.zeros(3), np.zeros((3, 2)), 0.7, 8)
    np.testing.assert_array_equal(scales.zero_point, 127.5)
    assert (scales.scale > 0.0).all()
    scales = equalize(np.full(3, 2.5), np.full(3, 2.5), np.zeros((3, 2)), 0.7, 8)
    np.testing.assert_allclose((127.5 - scales.zero_point) * scales.scale, 2.5, rtol=1e-12)


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_extremes_stay_within_float32(bits):
    low = np.array([-3e38, -1e-45, 1e30, 0.0, -1.0])
    high = np.array([3e38, 1e-45, 1e30, 1e-30, 1.0])
    weight = np.array([[1e-45], [3e38], [1.0], [0.0], [1e-20]], dtype=np.float32)
    for exponent in (0.0, 0.3, 0.7, 1.0):
        scales = equalize(low, high, weight, exponent, bits)
        for values in (scales.scale, 1.0 / scales.scale):
            assert np.isfinite(values.astype(np.float32)).all()
            assert (values > 0.0).all()
        assert np.abs(scales.zero_point).max() <= 2.0**20


def test_large_shifts_survive_float32():
    """Channels far from zero: x / scale + zero_point in float32 is right to a small part of a code."""
    middle = 10.0 ** np.arange(-3.0, 5.0)
    low, high = middle - 1e-3, middle + 1e-3
    scales = equalize(low, high, np.ones((8, 4)), 1.0, 8)
    x = np.linspace(low, high, 50).astype(np.float32)
    single = x * (1.0 / scales.scale).astype(np.float32) + scales.zero_point.astype(np.float32)
    exact = x.astype(np.float64) / scales.scale + scales.zero_point
    assert np.abs(single - exact).max() < 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exponent": -0.1}, "exponent must be from 0 to 1"),
        ({"exponent": np.nan}, "exponent"),
        ({"bits": 1}, "bits"),
        ({"clip": 0.0}, "clip"),
        ({"clip": 1.5}, "clip"),
        ({"channel_minimum": np.zeros(3)}, r"channel ranges \[3\] and \[24\] do not fit weight \[24, 10\]"),
        ({"weight": np.zeros(24)}, "do not fit"),
        ({"channel_maximum": np.full(24, -1e9)}, "in order"),
        ({"channel_maximum": np.full(24, np.inf)}, "finite"),
        ({"weight": np.full((24, 10), np.nan)}, "weight holds NaN"),
    ],
)
def test_parameters_that_cannot_be_used(change, message):
    low, high, weight = example()
    arguments = {
        "channel_minimum": low,
        "channel_maximum": high,
        "weight": weight,
        "exponent": 0.7,
        "bits": 8,
    }
    with pytest.raises(CalibrationError, match=message):
        equalize(**(arguments | change))
