"""The sample of rows: the same whatever the batches and merges, and never more than its size."""

import json

import numpy as np
import pytest

from calibration import CalibrationError, observe
from calibration.row_sample import RowSample, row_limit

CHANNELS = 1000
ROWS = row_limit(CHANNELS)


def rows(count, channels=CHANNELS, seed=0):
    return np.random.default_rng(seed).normal(size=(count, channels)).astype(np.float32)


def test_batches_and_merge_order_do_not_matter():
    values = rows(3000)
    whole = RowSample.of(values)
    parts = [RowSample.of(part) for part in np.array_split(values, [1, 17, 1700, 2999])]
    forward, backward = parts[0], parts[-1]
    for part in parts[1:]:
        forward = forward.merge(part)
    for part in parts[-2::-1]:
        backward = part.merge(backward)
    assert len(whole.rows) == ROWS
    np.testing.assert_array_equal(forward.rows, whole.rows)
    np.testing.assert_array_equal(backward.rows, whole.rows)
    np.testing.assert_array_equal(RowSample.of(values[::-1]).rows, whole.rows)


def test_the_sample_is_of_the_rows_and_spread_over_them():
    values = rows(4000)
    values[:, 0] = np.arange(4000)
    places = RowSample.of(values).rows[:, 0]
    assert len(set(places)) == ROWS
    assert abs(places.mean() - 2000) < 4 * 4000 / np.sqrt(12 * ROWS)


def test_equal_rows_count_once():
    values = np.concatenate([rows(5), np.zeros((900, CHANNELS), np.float32), -np.zeros((900, CHANNELS), np.float32)])
    assert len(RowSample.of(values).rows) == 6


def test_json():
    sample = RowSample.of(rows(40))
    np.testing.assert_array_equal(RowSample.from_dict(json.loads(json.dumps(sample.to_dict()))).rows, sample.rows)


@pytest.mark.parametrize(
    "change",
    [{"channels": 3}, {"channels": 0}, {"float32": "*"}, {"float32": ""}, {"float32": "AADAfw=="}, {"more": 1}],
)
def test_damage_is_named(change):
    content = RowSample.of(rows(5)).to_dict() | change
    if change.get("float32") == "AADAfw==":
        content["channels"] = 1  # one NaN
    with pytest.raises(CalibrationError):
        RowSample.from_dict(content)


def test_statistics_carry_rows():
    first, second = rows(300), rows(300, seed=1)
    options = {"per_channel": True, "sample_rows": True}
    merged = observe(first, **options).merge(observe(second, **options))
    assert merged == observe(np.concatenate([first, second]), **options) or merged.rows is not None
    np.testing.assert_array_equal(merged.rows.rows, RowSample.of(np.concatenate([first, second])).rows)
    with pytest.raises(CalibrationError, match="sample of rows"):
        merged.merge(observe(first, per_channel=True))
    content = merged.to_dict()
    assert type(merged).from_dict(content) == merged
    with pytest.raises(CalibrationError, match="rows contradict"):
        type(merged).from_dict(content | {"rows": RowSample.of(100 + first).to_dict()})
