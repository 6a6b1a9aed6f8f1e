"""``qgelu demo``: the whole job, with the accuracy that the README states."""

import json

import pytest

from qgelu import cli


@pytest.mark.slow
def test_demo(tmp_path, capfd):
    folder = tmp_path / "made" / "here"
    assert cli.run(["demo", "-o", str(folder), "--json"]) == 0
    captured = capfd.readouterr()
    found = json.loads(captured.out)
    assert found["passed"] is True
    assert {path.name for path in folder.iterdir()} == set(found["files"])
    assert set(found["files"]) == {
        "calibration.json",
        "digits_vit.ffn.int8.onnx",
        "digits_vit.activation.int8.onnx",
        "report.html",
        "report.md",
        "report.json",
    }
    accuracy = found["accuracy"]
    assert accuracy["float"] == pytest.approx(592 / 600)
    assert accuracy["ffn"] >= 589 / 600
    assert accuracy["activation"] >= 589 / 600
    assert found["recommended_scope"] == "ffn"
    assert found["recommended_bits"] <= 6
    assert found["seconds"] < 120.0
    for words in ("1. Inspect", "2. Calibrate", "3. Quantize", "4. Quantize", "5. Report", "Right answers on 600"):
        assert words in captured.err
    report = json.loads((folder / "report.json").read_text())
    blocks = [(one["bits"], one["kind"]) for one in report["candidates"] if one["scope"] == "ffn"]
    executed = [(bits, "qgelu") for bits in range(2, 9)]
    assert blocks == [*executed, *((bits, "simulated") for bits in (10, 12, 16))]
    assert report["model"]["name"] == "digits_vit.onnx"
    for scope in ("ffn", "activation"):
        assert (folder / f"digits_vit.{scope}.int8.onnx").stat().st_size > 100_000
