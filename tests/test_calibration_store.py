import itertools
import json
import os
import pickle
from types import MappingProxyType

import numpy as np
import pytest

from calibration import Calibration, CalibrationError, observe
from calibration.histogram import BINS
from calibration.row_sample import row_limit


def statistics(seed=0, channels=3):
    x = np.random.default_rng(seed).normal(size=(20, channels)).astype(np.float32)
    return observe(x, per_channel=True)


def calibration(seed=0, **changes):
    fields = {"tensors": {"x": statistics(seed), "/layer.0/y": statistics(seed + 100)}}
    fields |= {"model_digest": "d" * 64, "samples": 20} | changes
    return Calibration(**fields)


def test_round_trip_is_exact(tmp_path):
    path = tmp_path / "calibration.json"
    for original in (calibration(), calibration(mask="attention_mask"), calibration(tensors={})):
        original.save(path)
        assert Calibration.load(path) == original
    assert os.listdir(tmp_path) == ["calibration.json"]


def test_the_file_is_readable(tmp_path):
    path = tmp_path / "calibration.json"
    calibration().save(path)
    lines = path.read_text().splitlines()
    content = json.loads(path.read_text())
    assert list(content) == ["format", "version", "model_digest", "mask", "samples", "tensors"]
    assert len(lines) == 1 + 5 + 1 + 2 * (2 + 9) + 2
    assert '      "count": 60,' in lines


def test_the_file_of_a_real_model_is_small(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        f"/encoder/layer.{k}/output": observe(rng.normal(size=(200, 1536)).astype(np.float32), per_channel=True)
        for k in range(24)
    }
    path = tmp_path / "calibration.json"
    calibration(tensors=tensors).save(path)
    assert path.stat().st_size < 5_000_000
    assert Calibration.load(path).tensors == MappingProxyType(tensors)


def test_merge_gives_what_one_run_gives():
    x = np.random.default_rng(5).normal(size=(30, 4)).astype(np.float32)
    parts = [calibration(tensors={"x": observe(part, per_channel=True)}) for part in (x[:7], x[7:])]
    merged = parts[0].merge(parts[1])
    whole = observe(x, per_channel=True)
    assert merged.samples == 40
    assert merged.tensors["x"].histogram == whole.histogram
    np.testing.assert_array_equal(merged.tensors["x"].channel_maximum, whole.channel_maximum)
    assert parts[1].merge(parts[0]).tensors == merged.tensors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_digest": "e" * 64}, r"different models .*dddddddddddd\.\.\. and eeeeeeeeeeee"),
        ({"mask": "m"}, r"different masks \(None and m\)"),
        ({"tensors": {"x": statistics()}}, "'/layer.0/y' is in one calibration only"),
        ({"tensors": {"x": statistics(), "/layer.0/y": statistics(0, 4)}}, "'/layer.0/y': channels differ"),
    ],
)
def test_what_does_not_belong_together_is_not_merged(changes, message):
    with pytest.raises(CalibrationError, match=message):
        calibration().merge(calibration(**changes))


def test_unwritable_places(tmp_path):
    for path in (tmp_path / "missing" / "c.json", tmp_path):
        with pytest.raises(CalibrationError, match="cannot be written"):
            calibration().save(path)
    assert os.listdir(tmp_path) == []


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "calibration.json"
    calibration().save(path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CalibrationError, match="No space left"):
        calibration(1).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["calibration.json"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "not JSON, or is cut off"),
        (lambda text: "[" * 100_000, "not JSON"),
        (lambda text: "{}", "not a calibration"),
        (lambda text: "[1]", "not a calibration"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "version 2, and this release reads 1"),
        (lambda text: text.replace('"samples": 20', '"samples": -1'), r"damaged \(samples"),
        (lambda text: text.replace('"samples"', '"sample"'), r"damaged \(calibration has no 'samples'"),
        (lambda text: text.replace('"count": 60', '"count": 61', 1), "damaged .tensor 'x': histogram contra"),
        (lambda text: text.replace('"mask": null', '"mask": 3'), "mask is not a string"),
        (lambda text: text.replace('"sum": ', '"sum": NaN, "s": ', 1), "damaged"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path, damage, message):
    path = tmp_path / "calibration.json"
    calibration().save(path)
    path.write_text(damage(path.read_text()))
    with pytest.raises(CalibrationError, match=message) as caught:
        Calibration.load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_files_that_are_not_text_or_not_there(tmp_path):
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    for name, message in (("binary", "not text"), ("none", "No such file"), ("", "Is a directory")):
        with pytest.raises(CalibrationError, match=message):
            Calibration.load(tmp_path / name)


def test_statistics_take_the_same_memory_however_much_was_seen():
    """Ranges, scales and rows change all the way; what is kept of a tensor does not grow."""
    rng = np.random.default_rng(3)
    sizes = []
    merged = None
    for number in range(200):
        x = rng.normal(size=(300, 8)).astype(np.float32) * np.float32(1.2**number)
        part = observe(x, per_channel=True, sample_rows=True)
        merged = part if merged is None else merged.merge(part)
        sizes.append(len(pickle.dumps(merged)))
    assert merged.count == 200 * 2400
    assert max(sizes) < 8 * BINS + 4 * 8 * row_limit(8) + 4096


def test_pickles():
    original = calibration(mask="attention_mask")
    again = pickle.loads(pickle.dumps(original))
    assert again == original
    with pytest.raises(TypeError):
        again.tensors["x"] = None


@pytest.mark.parametrize("factor", [1e-30, 1e-3, 1.0, 3.7, 1e20])
def test_parts_of_other_ranges_merge_through_files_exactly(tmp_path, factor):
    """Parts saved on other machines, of ranges that differ by powers, in any order: one run over everything."""
    rng = np.random.default_rng(4)
    pieces = [rng.normal(size=(50, 3)).astype(np.float32) * np.float32(f) for f in (1.0, factor, -2.0 * factor)]
    options = {"per_channel": True, "sample_rows": True}
    whole = observe(np.concatenate(pieces), **options)
    stored = []
    for number, piece in enumerate(pieces):
        path = tmp_path / f"{number}.json"
        Calibration({"x": observe(piece, **options)}, "d" * 64, 50).save(path)
        stored.append(Calibration.load(path))
    for order in itertools.permutations(stored):
        path = tmp_path / "both.json"
        order[0].merge(order[1]).save(path)
        found = Calibration.load(path).merge(order[2])
        ours, theirs = found.tensors["x"].to_dict(), whole.to_dict()
        for key in ("sum", "sum_of_squares"):
            assert ours.pop(key) == pytest.approx(theirs.pop(key), rel=1e-12)
        assert ours == theirs
        assert found.samples == 150
