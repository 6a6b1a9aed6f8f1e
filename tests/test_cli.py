"""The command line on the shipped model: JSON, exit codes, one line for whatever goes wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from calibration import Calibration
from qgelu import __version__, cli
from qgelu.demo import load_calibration, load_test, model_path
from qgelu.graph.model_file import load_model

MODEL = str(model_path())


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with data.npz, test.npz, labels.npy, calibration.json and both quantized models."""
    folder = tmp_path_factory.mktemp("cli")
    np.savez(folder / "data.npz", images=load_calibration()["images"][:64])
    images, labels = load_test()
    np.savez(folder / "test.npz", images=images["images"][:40])
    np.save(folder / "labels.npy", labels[:40])
    data = str(folder / "data.npz")
    assert cli.run(["calibrate", MODEL, "--data", data, "-o", str(folder / "calibration.json")]) == 0
    other = Calibration.load(folder / "calibration.json")
    Calibration(other.tensors, "0" * 64, other.samples).save(folder / "other.json")
    stored = ["--calibration", str(folder / "calibration.json")]
    for scope in ("ffn", "activation"):
        output = str(folder / f"{scope}.onnx")
        assert cli.run(["quantize", MODEL, *stored, "--scope", scope, "-o", output]) == 0
    return folder


@pytest.fixture
def run(capfd, files, monkeypatch):
    """Run a command in the folder of files; return exit code, stdout and stderr."""
    monkeypatch.chdir(files)

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.run(arguments)
        found = capfd.readouterr()
        return code, found.out, found.err

    return call


def run_json(run, *arguments: str, code: int = 0) -> dict:
    found, out, err = run(*arguments, "--json")
    assert found == code, err
    return json.loads(out)


def test_version_and_help(run):
    assert run("--version") == (0, f"qgelu {__version__}\n", "")
    for arguments in ([], ["--help"], ["-h"]):
        code, out, err = run(*arguments)
        assert (code, err) == (0, "")
        for command in ("demo", "inspect", "calibrate", "quantize", "verify", "report"):
            assert command in out


def test_inspect_json(run):
    found = run_json(run, "inspect", MODEL)
    assert list(found) == ["model", "opset", "sites", "near_misses", "quantized", "warnings"]
    assert (found["model"], found["opset"], found["near_misses"], found["quantized"]) == (MODEL, 18, [], [])
    assert [site["name"] for site in found["sites"]] == ["node_gelu", "node_gelu_1", "node_gelu_2"]
    assert found["sites"][0] == {
        "name": "node_gelu",
        "activation": "gelu",
        "alpha": 1.702,
        "input": "linear_2",
        "output": "gelu",
        "scope": "ffn",
        "reason": "",
        "subgraph": "",
        "shape": [None, 17, 160],
        "weights": [[40, 160], [160, 40]],
    }
    assert found["warnings"] == []


def test_inspect_for_people_goes_to_stderr(run):
    code, out, err = run("inspect", MODEL)
    assert (code, out) == (0, "")
    assert "3 sites, 3 of them FFNs (opset 18)" in err
    for word in ("node_gelu_2", "[?, 17, 160]", "40 > 160 > 40", "why only the activation"):
        assert word in err


def test_inspect_of_a_quantized_model_shows_what_was_done(run):
    found = run_json(run, "inspect", "ffn.onnx")
    assert found["sites"] == []
    shown = [(site["name"], site["scope"], site["bits"], site["plan"]) for site in found["quantized"]]
    assert shown == [(name, "ffn", 8, "polynomial") for name in ("node_gelu", "node_gelu_1", "node_gelu_2")]
    assert "Quantized sites" in run("inspect", "ffn.onnx")[2]


def test_inspect_warns(run, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(Path(MODEL).read_bytes())
    (tmp_path / "config.json").write_text('{"hidden_act": "gelu_new"}')
    (warning,) = run_json(run, "inspect", str(path))["warnings"]
    assert "config.json says hidden_act 'gelu_new', and the graph computes gelu at 3 sites" in warning
    assert f"warning: {warning}" in run("inspect", str(path))[2].replace("\n", " ")


def test_inspect_shows_near_misses(run, tmp_path):
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    almost (float[N, 4] x) => (float[N, 4] y) {
        half = Constant <value = float {0.5}> ()
        one = Constant <value = float {1.005}> ()
        curve = Tanh (x)
        gate = Add (curve, one)
        twice = Mul (x, gate)
        y = Mul (twice, half)
    }"""
    path = str(tmp_path / "near.onnx")
    onnx.save_model(onnx.parser.parse_model(text), path)
    found = run_json(run, "inspect", path)
    assert found["sites"] == []
    (miss,) = found["near_misses"]
    assert list(miss) == ["anchor", "reason"]
    code, _, err = run("inspect", path)
    assert code == 0
    assert "0 sites" in err
    assert "Near misses" in err
    assert "error: no GELU, QuickGELU or SiLU" in run("calibrate", path, "--data", "data.npz", "-o", "c.json")[2]


def test_calibrate_json_and_merge(run, tmp_path):
    one, two, both = (str(tmp_path / name) for name in ("one.json", "two.json", "both.json"))
    found = run_json(run, "calibrate", MODEL, "--data", "data.npz", "-o", one)
    assert (found["samples"], found["mask"], found["output"]) == (64, None, one)
    assert {tensor["name"] for tensor in found["tensors"]} >= {"linear_2", "gelu", "layer_norm_1"}
    assert run("calibrate", MODEL, "--data", "test.npz", "-o", two)[0] == 0
    merged = run_json(run, "calibrate", "--merge", one, two, "-o", both)
    assert merged["samples"] == 104
    assert Calibration.load(both) == Calibration.load(one).merge(Calibration.load(two))


def test_calibrate_only_some_sites(run, tmp_path):
    found = run_json(
        run, "calibrate", MODEL, "--data", "test.npz", "-o", str(tmp_path / "c.json"), "--sites", "node_gelu,*_2"
    )
    names = {tensor["name"] for tensor in found["tensors"]}
    assert {"gelu", "gelu_2"} <= names
    assert "gelu_1" not in names


def test_quantize_json(run, tmp_path):
    output = str(tmp_path / "q.onnx")
    found = run_json(run, "quantize", MODEL, "--calibration", "calibration.json", "-o", output, "--bits", "6")
    assert found["bytes"] == os.path.getsize(output)
    assert {key: found[key] for key in ("output", "scope", "bits", "target", "method")} == {
        "output": output,
        "scope": "ffn",
        "bits": 6,
        "target": "portable",
        "method": "output",
    }
    assert [(site["scope"], site["plan"], site["bits"]) for site in found["sites"]] == [("ffn", "polynomial", 6)] * 3
    assert all(0.5 < site["max_error_lsb"] <= 0.75 for site in found["sites"])


def test_quantize_is_the_same_from_data_and_from_its_calibration(run, tmp_path, files):
    output = tmp_path / "q.onnx"
    assert run("quantize", MODEL, "--data", "data.npz", "-o", str(output))[0] == 0
    assert output.read_bytes() == (files / "ffn.onnx").read_bytes()


@pytest.mark.parametrize("scope", ["ffn", "activation"])
def test_verify_json(run, scope):
    found = run_json(run, "verify", MODEL, f"{scope}.onnx", "--data", "test.npz")
    assert found["format"] == "qgelu.verification"
    assert (found["passed"], found["failures"], found["target"]) == (True, [], "portable")
    assert found["outputs"][0]["name"] == "logits"
    assert found["outputs"][0]["samples"] == 40
    assert [site["executors"]["differences"] for site in found["sites"]] == [0, 0, 0]


def test_verify_of_a_model_that_was_tampered_with_exits_with_1(run, tmp_path):
    model = load_model("activation.onnx")
    node = [node for node in model.graph.node if node.op_type == "QGelu"][2]
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == node.input[1])
    table = numpy_helper.to_array(tensor).copy()
    table[100] += 1
    tensor.CopyFrom(numpy_helper.from_array(table, tensor.name))
    changed = str(tmp_path / "changed.onnx")
    onnx.save_model(model, changed)
    code, out, err = run("verify", MODEL, changed, "--data", "test.npz")
    assert (code, out) == (1, "")
    assert "FAILED" in err
    assert "site 'node_gelu_2'" in err
    found = run_json(run, "verify", MODEL, changed, "--data", "test.npz", code=1)
    assert found["passed"] is False
    assert "'node_gelu_2'" in found["failures"][0]


def test_report_writes_files_and_json(run, tmp_path):
    outputs = [str(tmp_path / f"report.{suffix}") for suffix in ("html", "md", "json")]
    found = run_json(
        run,
        *("report", MODEL, "--data", "data.npz", "--test", "test.npz", "--labels", "labels.npy", "--bits", "3,8"),
        *(argument for output in outputs for argument in ("-o", output)),
    )
    assert [candidate["label"] for candidate in found["candidates"]] == [
        "ffn, 3 bits",
        "ffn, 8 bits",
        "activation, 3 bits",
        "activation, 8 bits",
    ]
    assert found["metric"] == "accuracy"
    assert json.loads(Path(outputs[2]).read_text()) == found
    assert Path(outputs[1]).read_text().startswith("# Accuracy against bits: digits\\_vit.onnx")
    assert Path(outputs[0]).read_text().startswith("<!DOCTYPE html>")


HERE = "calibration.json"
DATA = ["--data", "data.npz"]
BAD_USAGE = [
    (["frob"], "no such command 'frob'"),
    (["inspect"], "missing argument 'MODEL'"),
    (["inspect", MODEL, "--foo"], "no such option '--foo'"),
    (["inspect", MODEL, "more"], "unexpected extra argument"),
    (["calibrate", MODEL, "-o", "c.json"], "missing option '--data'"),
    (["calibrate", MODEL, *DATA], "missing option '-o'"),
    (["calibrate", MODEL, MODEL, *DATA, "-o", "c.json"], "to join calibrations, add --merge"),
    (["calibrate", "--merge", HERE, "-o", "c.json"], "--merge joins two calibrations or more"),
    (["calibrate", "--merge", HERE, HERE, *DATA, "-o", "c.json"], "--data does not go with --merge"),
    (["quantize", MODEL, *DATA], "missing option '-o'"),
    (["quantize", MODEL, "-o", "q.onnx"], "give one of --data and --calibration"),
    (["quantize", MODEL, *DATA, "--calibration", HERE, "-o", "q.onnx"], "give one of --data and --calibration"),
    (["quantize", MODEL, "--calibration", HERE, "--mask", "images", "-o", "q.onnx"], "--mask does not go with"),
    (["quantize", MODEL, *DATA, "-o", "q.onnx", "--scope", "all"], "'all' is not one of 'ffn', 'activation'"),
    (["quantize", MODEL, *DATA, "-o", "q.onnx", "--target", "npu"], "'npu' is not one of 'portable', 'qdq'"),
    (["quantize", MODEL, *DATA, "-o", "q.onnx", "--bits", "17"], "'--bits': 17 is not in the range"),
    (["quantize", MODEL, *DATA, "-o", "q.onnx", "--bits", "many"], "'--bits': 'many' is not a valid integer"),
    (["quantize", MODEL, *DATA, "-o", "q.onnx", "--threads", "0"], "'--threads': 0 is not in the range"),
    (["verify", MODEL, *DATA], "missing argument 'QUANTIZED'"),
    (["verify", MODEL, MODEL], "missing option '--data'"),
    (["report", MODEL, *DATA, "--bits", "1-4"], "'--bits': '1-4' is not within 2 to 16"),
    (["report", MODEL, *DATA, "--bits", "8-4"], "'--bits': '8-4' is not within 2 to 16"),
    (["report", MODEL, *DATA, "--bits", "a"], "'a' is not a list of bit widths: write 4-16, or 4,6,8"),
    (["report", MODEL, *DATA, "--baseline", "tflite"], "'tflite' is not one of ort-static, ort-dynamic"),
    (["report", MODEL, *DATA, "--tolerance", "2"], "'--tolerance': 2"),
]
BAD_INPUT = [
    (["inspect", "none.onnx"], "none.onnx does not exist"),
    (["inspect", "."], ". is a folder"),
    (["inspect", "data.npz"], "data.npz is not an ONNX model"),
    (["calibrate", MODEL, "--data", "none.npz", "-o", "c.json"], "none.npz: does not exist"),
    (["calibrate", MODEL, "--data", "labels.npy", "-o", "c.json"], "labels.npy: 'images' has 1 axes"),
    (["calibrate", MODEL, *DATA, "-o", "none/c.json"], "the folder none does not exist"),
    (["calibrate", MODEL, *DATA, "-o", "."], ". is a folder"),
    (["calibrate", MODEL, *DATA, "-o", "c.json", "--sites", "nothing*"], "no site is named 'nothing*'"),
    (["calibrate", MODEL, *DATA, "-o", "c.json", "--mask", "nothing"], "'nothing' is not an input of the model"),
    (["calibrate", "--merge", HERE, "data.npz", "-o", "c.json"], "data.npz: is not a calibration"),
    (
        ["calibrate", "--merge", HERE, "other.json", "-o", "c.json"],
        f"{HERE} and other.json: calibrations are of different",
    ),
    (["calibrate", "ffn.onnx", *DATA, "-o", "c.json"], "quantized by qgelu already"),
    (["quantize", MODEL, "--calibration", "none.json", "-o", "q.onnx"], "none.json: cannot be read"),
    (["quantize", "ffn.onnx", *DATA, "-o", "q.onnx"], "quantized by qgelu already: give the float model"),
    (["quantize", MODEL, *DATA, "-o", MODEL], "is an input of this command: name another file"),
    (["quantize", MODEL, *DATA, "-o", "data.npz"], "data.npz is an input of this command: name another file"),
    (["quantize", MODEL, "--data", ".", "-o", "data.npz"], "data.npz is an input of this command: name another file"),
    (["calibrate", "--merge", HERE, "other.json", "-o", "other.json"], "other.json is an input of this command"),
    (["quantize", MODEL, *DATA, "-o", "q.onnx", "--bits", "9"], "integer FFNs have 2 to 8 bits, not 9"),
    (["verify", MODEL, MODEL, *DATA], f"{MODEL} was not quantized by qgelu (it has no metadata 'qgelu.sites'): give"),
    (["verify", "ffn.onnx", "activation.onnx", *DATA], "error: ffn.onnx is quantized by qgelu already: give the float"),
    (["report", MODEL, *DATA, "-o", "report.pdf"], "report.pdf: a report is a .html, .md or .json file"),
    (["report", MODEL, *DATA, "--labels", "none.npy"], "none.npy: labels cannot be read (No such file"),
    (["report", MODEL, *DATA, "--labels", "data.npz"], "data.npz: holds several arrays"),
    (["report", MODEL, *DATA, "--bits", "8", "--labels", "labels.npy"], "40 labels for 64 samples"),
    (["demo", "-o", "data.npz"], "data.npz is a file: name a folder"),
]


@pytest.mark.parametrize(("arguments", "reason"), [*BAD_USAGE, *BAD_INPUT], ids=lambda value: str(value)[:60])
def test_what_goes_wrong_is_one_line(run, files, arguments, reason):
    before = {path.name for path in files.iterdir()}
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith(("calibrate:", "quantize:", "run float"))]
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert reason in lines[0]
    assert {path.name for path in files.iterdir()} == before


@pytest.mark.parametrize(("arguments", "reason"), BAD_USAGE[:3])
def test_bad_usage_names_the_remedy(run, arguments, reason):
    assert run(*arguments)[2].rstrip().endswith("--help'")


def test_bugs_are_one_line_without_traceback(run, monkeypatch):
    def broken(path):
        raise RuntimeError("first\nsecond")

    monkeypatch.setattr("qgelu.graph.model_file.load_model", broken)
    monkeypatch.delenv("QGELU_DEBUG", raising=False)
    code, out, err = run("inspect", MODEL)
    assert (code, out) == (2, "")
    assert err == "error: internal: RuntimeError: first second (QGELU_DEBUG=1 shows where)\n"
    monkeypatch.setenv("QGELU_DEBUG", "1")
    assert "Traceback" in run("inspect", MODEL)[2]


def test_interrupt_is_one_line(run, monkeypatch):
    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("qgelu.graph.model_file.load_model", interrupted)
    code, out, err = run("inspect", MODEL)
    assert (code, out) == (130, "")
    assert err.startswith("error: interrupted")
    assert err.count("\n") == 1


def start(*arguments: str, folder: Path, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "qgelu", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_help_is_quick_and_loads_nothing_heavy(tmp_path):
    code = "import sys; sys.argv = ['qgelu', '--help']\nfrom qgelu import cli\nassert cli.run(['--help']) == 0\n"
    code += "print(sorted({'numpy', 'onnx', 'numba', 'onnxruntime', 'rich', 'matplotlib'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    began = time.monotonic()
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"
    assert time.monotonic() - began < 2.0  # 0.12 s when the machine is idle


@pytest.mark.slow
def test_signal_leaves_nothing_behind(files, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time, numpy as np\n"
        "def feeds():\n"
        "    for number in range(1000):\n"
        "        if number == 1: print('ready', flush=True)\n"
        "        time.sleep(0.05)\n"
        "        yield {'images': np.zeros((2, 1, 8, 8), np.float32)}\n"
    )
    arguments = ("quantize", MODEL, "--data", "slow:feeds", "-o", "q.onnx")
    with start(*arguments, folder=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("error: interrupted")
    assert "Traceback" not in err
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"slow.py"}


@pytest.mark.slow
def test_closed_pipe_is_quiet(files):
    reading, writing = os.pipe()
    os.close(reading)
    with start("inspect", MODEL, "--json", folder=files, stdout=writing) as process:
        os.close(writing)
        err = process.communicate(timeout=30)[1]
    assert process.returncode == 141
    assert err == ""
