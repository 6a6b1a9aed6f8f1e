"""Whole quantized models with and without the native library; registering it, and doing without it."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import zoo

import qgelu
from qgelu import QParams, make_plan
from qgelu.demo import load_calibration, load_test, model_path
from qgelu.errors import QGeluError
from qgelu.graph.plan_nodes import plan_model
from qgelu.native import build, loader
from qgelu.pipeline import calibrate, quantize
from qgelu.verification import verify

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def demo():
    return quantize(model_path(), {name: array[:64] for name, array in load_calibration().items()})


def quiet_options():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def run_native(model, inputs, folder):
    """Return the outputs, and how often which op was executed."""
    options = quiet_options()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    qgelu.register(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    outputs = session.run(None, inputs)
    events = json.loads(Path(session.end_profiling()).read_text())
    names = (event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time"))
    return outputs, Counter(names)


@pytest.mark.parametrize("name", zoo.RELATIVE_ERROR)
@pytest.mark.parametrize("scope", ["ffn", "activation"])
def test_exporter_outputs(name, scope, native_library, tmp_path):
    model = zoo.load(name)
    rng = np.random.default_rng(11)
    statistics = calibrate(model, [zoo.feed(model, rng, 2, 16) for _ in range(2)])
    result = quantize(model, calibration=statistics, scope=scope)
    for batch, length in [(4, 16), (1, 7)]:
        inputs = zoo.feed(model, rng, batch, length)
        outputs, executed = run_native(result.model, inputs, tmp_path)
        assert executed["RequantizeGelu"] + executed["QGelu"] == 2
        assert executed["ArrayFeatureExtractor"] == 0
        for expected, actual in zip(zoo.run(result.model, inputs), outputs, strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_demo(demo, native_library, tmp_path):
    inputs = load_test()[0]
    outputs, executed = run_native(demo.model, inputs, tmp_path)
    assert executed["RequantizeGelu"] == 3
    np.testing.assert_array_equal(outputs[0], zoo.run(demo.model, inputs)[0])


def test_verify_compares_the_native_kernels(demo, native_library, monkeypatch):
    data = {name: array[:20] for name, array in load_test()[0].items()}
    found = verify(model_path(), demo, data)
    assert found.passed, found.failures
    assert [site.executors.compared for site in found.sites] == [("onnxruntime", "native")] * 3
    monkeypatch.setattr("qgelu.executor_check.is_built", lambda: False)
    assert verify(model_path(), demo, data).sites[0].executors.compared == ("onnxruntime",)


def test_verify_sees_a_native_kernel_that_errs(demo, native_library, monkeypatch, tmp_path):
    shutil.copytree(build.SOURCES, tmp_path / "src")
    for name in ("narrow.c", "narrow_avx2.c", "narrow_avx512.c"):
        path = tmp_path / "src" / name
        wrong = path.read_text().replace("word(words, QG_BIAS", "word(words, QG_LINEAR_HALF")
        path.write_text(wrong.replace("words[QG_BIAS * SIZE + k])", "words[QG_LINEAR_HALF * SIZE + k])"))
    monkeypatch.setattr(build, "SOURCES", tmp_path / "src")
    target = tmp_path / "libwrong.so"
    build.compile_sources(build.find_compiler(), target)
    monkeypatch.setattr(loader, "native_library_path", lambda: target)
    found = verify(model_path(), demo, {name: array[:5] for name, array in load_test()[0].items()})
    assert not found.passed
    assert "in the native library" in found.failures[0]


def test_registering_twice_and_two_sessions(native_library):
    plan = make_plan(QParams(0.04, 128), QParams(0.03, 6))
    codes = np.arange(256).astype(np.uint8)
    options = quiet_options()
    qgelu.register(options)
    sessions = [onnxruntime.InferenceSession(plan_model(plan, rank=1).SerializeToString(), options) for _ in range(2)]
    del options
    for session in sessions:
        np.testing.assert_array_equal(session.run(None, {"codes": codes})[0], plan(codes))
    twice = quiet_options()
    qgelu.register(twice)
    qgelu.register(twice)
    session = onnxruntime.InferenceSession(plan_model(plan, rank=1).SerializeToString(), twice)
    np.testing.assert_array_equal(session.run(None, {"codes": codes})[0], plan(codes))


def test_what_cannot_be_registered(native_library, monkeypatch, tmp_path):
    with pytest.raises(QGeluError, match=r"register takes onnxruntime\.SessionOptions, not dict"):
        qgelu.register({})
    monkeypatch.setenv("QGELU_KERNELS", "fast")
    with pytest.raises(QGeluError, match="QGELU_KERNELS names no path"):
        qgelu.register(quiet_options())
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(loader, "native_library_path", lambda: broken)
    with pytest.raises(QGeluError, match=r"broken\.so: cannot be loaded"):
        qgelu.register(quiet_options())


def test_without_the_library(monkeypatch, tmp_path, demo):
    monkeypatch.setattr(loader, "PACKAGE", tmp_path)
    with pytest.raises(QGeluError, match=r"not built: with gcc or clang installed, run python -m qgelu\.native\.build"):
        qgelu.register(quiet_options())
    with pytest.raises(QGeluError, match="not built"):
        qgelu.native_library_path()
    shown = qgelu.get_config()["native"]
    assert shown["library"] is None
    assert "python -m qgelu.native.build" in shown["missing"]
    found = verify(model_path(), demo, {name: array[:5] for name, array in load_test()[0].items()})
    assert found.passed


def test_building(monkeypatch, tmp_path, native_library, capsys):
    monkeypatch.setattr(build, "PACKAGE", tmp_path / "made")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "libqgelu_ort-00000000.so").touch()
    assert build.main() == 0
    (made,) = (tmp_path / "made").iterdir()
    assert capsys.readouterr().out == f"{made}\n"
    assert made.name == native_library.name
    assert qgelu.get_config()["native"]["library"] == str(native_library)


@pytest.mark.parametrize(
    ("compiler", "message"),
    [(None, "no C compiler: install gcc or clang"), (["false"], "false cannot build the native library: failed")],
)
def test_build_failures(compiler, message, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(build, "PACKAGE", tmp_path)
    monkeypatch.setattr(build, "find_compiler", lambda: compiler)
    assert build.main() == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


def test_one_symbol_is_exported(native_library):
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    done = subprocess.run(["nm", "-D", "--defined-only", native_library], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["RegisterCustomOps"]


def test_the_build_needs_nothing_installed():
    """The package's build imports it with the standard library alone."""
    code = "import qgelu.native.build, sys; sys.exit(', '.join({'numpy', 'onnx', 'numba'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
