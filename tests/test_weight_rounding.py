"""Rounding of weights that makes up for its own errors, and the covariance behind it."""

import numpy as np
import pytest

from calibration.covariance import ordered_factor, remaining_variances, shrunk_covariance
from calibration.weight_rounding import WEIGHT_LIMITS, RoundedWeight, compensated_codes, round_weight, weight_scales


def correlated(rng, count, channels, common=4):
    mixing = rng.normal(size=(common, channels))
    return rng.normal(size=(count, common)) @ mixing + 0.3 * rng.normal(size=(count, channels))


def output_error(x, weight, rounded):
    x = x - x.mean(axis=0)
    return np.linalg.norm(x @ (weight - rounded.codes * rounded.scale)) / np.linalg.norm(x @ weight)


@pytest.mark.parametrize(("bits", "gain"), [(8, 0.6), (7, 0.6), (4, 0.6)])
def test_better_than_nearest_on_other_rows(bits, gain):
    rng = np.random.default_rng(0)
    rows = correlated(rng, 3000, 200)
    weight = rng.normal(size=(200, 30)) * rng.uniform(0.2, 2, 30)
    rounded = round_weight(weight, rows[:1500], bits)
    units, variances = weight / rounded.scale, np.diag(rows[:1500].var(axis=0))
    independent = compensated_codes(units, variances, WEIGHT_LIMITS[bits])  # nothing to make up for: nearest
    assert rounded.codes.dtype == np.int8
    assert np.abs(rounded.codes).max() <= WEIGHT_LIMITS[bits]
    np.testing.assert_array_equal(independent, np.clip(np.rint(units), -WEIGHT_LIMITS[bits], WEIGHT_LIMITS[bits]))
    nearest = RoundedWeight(independent, rounded.scale)
    assert output_error(rows[1500:], weight, rounded) < gain * output_error(rows[1500:], weight, nearest)


def test_blocks_and_groups(monkeypatch):
    rng = np.random.default_rng(1)
    weight, rows = rng.normal(size=(70, 5)), correlated(rng, 500, 70)
    whole = round_weight(weight, rows, 4)
    monkeypatch.setattr("calibration.weight_rounding._BLOCK", 16)
    parts = round_weight(weight, rows, 4)
    assert (whole.codes != parts.codes).mean() < 0.01  # sums of floats in another order
    monkeypatch.setattr("calibration.covariance._GROUP", 32)
    groups = round_weight(weight, rows, 4)
    alone = compensated_codes(weight[32:64] / whole.scale, shrunk_covariance(rows[:, 32:64]), 7)
    np.testing.assert_array_equal(groups.codes[32:64], alone)
    assert remaining_variances(rows).shape == (70,)


def test_feedback_by_hand():
    # Two channels that are always equal: what the first loses the second gives.
    covariance = np.array([[1.0, 0.9999], [0.9999, 1.0]])
    codes = compensated_codes(np.array([[3.4], [2.3]]), covariance, 7)
    # 3.4 -> 3; the rest, 0.4, comes in nearly whole (damped by a tenth): 2.3 + 0.4 / 1.1 -> 3.
    np.testing.assert_array_equal(codes, [[3], [3]])


def test_scales_of_zero_columns_and_of_narrowed_ones():
    weight = np.zeros((64, 2))
    weight[:, 1] = np.random.default_rng(2).normal(size=64)
    weight[0, 1] = 3.5
    scales = weight_scales(weight, np.ones(64), 7)
    assert scales[0] == 1.0
    assert scales[1] < 3.5 / 7
    rounded = round_weight(weight, np.random.default_rng(5).normal(size=(300, 64)), 8)
    assert not rounded.codes[:, 0].any()


def test_seven_bits_cannot_saturate_pairs():
    assert 2 * 255 * WEIGHT_LIMITS[7] < 1 << 15 <= 2 * 255 * WEIGHT_LIMITS[8]


def test_covariance_of_few_rows_is_nearer_the_truth():
    rng = np.random.default_rng(3)
    true = np.eye(60)
    rows = rng.normal(size=(40, 60))
    plain = np.cov(rows.T, bias=True)
    shrunk = shrunk_covariance(rows)
    np.testing.assert_allclose(shrunk.diagonal(), plain.diagonal())
    assert np.linalg.norm(shrunk - true) < 0.5 * np.linalg.norm(plain - true)
    many = correlated(rng, 20000, 12)
    np.testing.assert_allclose(shrunk_covariance(many), np.cov(many.T, bias=True), rtol=0.01, atol=0.02)


def test_covariance_of_constant_channels_and_of_one_row():
    rows = np.random.default_rng(4).normal(size=(50, 3))
    rows[:, 1] = 5.0
    shrunk = shrunk_covariance(rows)
    assert np.isfinite(shrunk).all()
    assert shrunk[1, 1] == 0.0
    assert not shrunk_covariance(rows[:1]).any()
    assert (remaining_variances(rows[:1]) > 0).all()


def test_remaining_variance_is_that_given_the_later_channels():
    covariance = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 1.0]])
    order, factor = ordered_factor(covariance, np.zeros(3))
    np.testing.assert_array_equal(order, [0, 1, 2])
    np.testing.assert_allclose(factor @ factor.T, covariance)
    given = covariance[0, 0] - covariance[0, 1:] @ np.linalg.solve(covariance[1:, 1:], covariance[1:, 0])
    np.testing.assert_allclose(factor[0, 0] ** 2, given)
