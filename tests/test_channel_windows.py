"""Windows of channels: what clipping loses in sample and out of it, and where codes lie."""

import numpy as np
import pytest

from calibration import CalibrationError, pick_channel_ranges
from calibration.channel_windows import channel_windows
from calibration.out_of_sample import measure_tails
from calibration.scale_balance import balance_scales


def test_tails_of_exponential_values():
    rng = np.random.default_rng(0)
    mean = np.array([0.5, 1.0, 2.0])
    rows = (rng.exponential(size=(4000, 3)) * mean).astype(np.float32)
    tails = measure_tails(rows, 4000)
    own = np.sort(rows, axis=0)[-16:].mean(axis=0) - np.sort(rows, axis=0)[-17]
    np.testing.assert_allclose(tails.high, np.sqrt(own * own.mean()), rtol=1e-5)
    assert (tails.low < 0.02 * tails.high).all()
    # The formula against other values, beyond an end that lies outside of what was seen.
    end = rows.max(axis=0) + tails.high
    other = rng.exponential(size=(400000, 3)) * mean
    measured = np.square(np.maximum(other - end, 0)).mean(axis=0)
    assert (tails.risk(tails.high, high=True) > measured / 8).all()
    assert (tails.risk(tails.high, high=True) < measured * 8).all()


@pytest.mark.parametrize("count", [1, 2, 9])
def test_few_rows(count):
    rows = np.random.default_rng(1).normal(size=(count, 5)).astype(np.float32)
    windows = channel_windows(rows, rows.min(0).astype(float), rows.max(0).astype(float), count, 8)
    assert (np.diff(windows.width, axis=0) > 0).all()
    assert np.isfinite(windows.clipping).all()
    assert (windows.best(8) > 0).all()


def test_fewer_codes_take_narrower_windows():
    rows = np.random.default_rng(2).standard_t(4, size=(2000, 20)).astype(np.float32)
    low, high = rows.min(0).astype(float), rows.max(0).astype(float)
    windows = channel_windows(rows, low, high, 2000, 8)
    assert (windows.best(4) < windows.best(6)).all()
    assert (windows.best(6) <= windows.best(8)).all()
    assert (windows.best(8) > high - low).all()  # eight bits can afford what was not seen
    assert (windows.best(4) < high - low).all()


def test_anchored_windows_hold_zero_and_do_not_reach_below():
    rows = np.abs(np.random.default_rng(3).normal(size=(500, 8))).astype(np.float32) - np.float32(0.1)
    rows[:, 2] = -0.05
    windows = channel_windows(rows, rows.min(0).astype(float), rows.max(0).astype(float), 500, 8, lowest=-0.17)
    for width in windows.width * 1.01:
        low = windows.low_at(width)
        assert (low >= -0.17).all()
        assert (low <= 0).all()
        assert (low + width >= 0).all()


def test_places_between_windows_and_beyond():
    rows = np.random.default_rng(4).normal(size=(500, 3)).astype(np.float32)
    windows = channel_windows(rows, rows.min(0).astype(float), rows.max(0).astype(float), 500, 8)
    error, _ = windows.clipping_at(windows.width[4])
    np.testing.assert_allclose(error, windows.clipping[4], rtol=1e-6)
    between = windows.width[4] * 1.01
    error, slope = windows.clipping_at(between)
    step = 1e-5
    ahead, _ = windows.clipping_at(between * np.exp(step))
    np.testing.assert_allclose((ahead - error) / step, slope, rtol=1e-3)
    wide = windows.width[-1] * 3
    np.testing.assert_allclose(windows.low_at(wide) + wide / 2, windows.low[-1] + windows.width[-1] / 2, atol=1e-6)


def test_balance_is_better_than_either_alone():
    rng = np.random.default_rng(5)
    rows = (rng.normal(size=(1000, 40)) * rng.uniform(0.1, 10, 40)).astype(np.float32)
    weight = (rng.normal(size=(40, 30)) * rng.uniform(0.1, 3, 40)[:, None]).astype(np.float32)
    low, high = rows.min(0).astype(float), rows.max(0).astype(float)
    windows = channel_windows(rows, low, high, 1000, 8)
    variance, ones = rows.var(axis=0, dtype=np.float64), np.ones(30)

    def error(scale):
        step = (scale[:, None] * np.abs(weight)).max(axis=0) / 127
        clipping, _ = windows.clipping_at(scale * 255)
        rounding = ((scale**2 / 12 + clipping) * np.square(weight).sum(axis=1)).sum()
        return rounding + np.square(step).sum() / 12 * (variance / scale**2).sum()

    found = balance_scales(windows, weight, ones, variance, 8, 127)
    own = windows.best(8) / 255
    assert error(found.scale) < 0.95 * error(own)
    for other in (np.full(40, own.max()), own**0.5 * own.max() ** 0.5):
        assert error(found.scale) < error(other)
    covered = found.scale * (0 - found.zero_point), found.scale * (255 - found.zero_point)
    assert (covered[0] <= low + 1e-6).all()
    assert (covered[1] >= high - 1e-6).all()


@pytest.mark.parametrize("method", ["minmax", "percentile", "mse", "entropy"])
def test_channel_ranges_of_every_method(method):
    rows = np.random.default_rng(6).standard_t(3, size=(3000, 4)).astype(np.float32) + np.float32(1)
    low, high = rows.min(0).astype(float), rows.max(0).astype(float)
    found = pick_channel_ranges(rows, low, high, method, 4)
    assert (found[0] < 1).all()
    assert (found[1] > 1).all()
    width = found[1] - found[0]
    if method == "minmax":
        np.testing.assert_array_equal(width, high - low)
    else:
        assert (width < high - low).all()
    with pytest.raises(CalibrationError, match="'best' is not known"):
        pick_channel_ranges(rows, low, high, "best", 4)
