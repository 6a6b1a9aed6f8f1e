"""The native library in a host that is not Python: the C example on the shared library of the onnxruntime package."""

import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from qgelu import AccumulatorParams, QParams, make_plan
from qgelu.graph.plan_nodes import plan_model
from qgelu.native.build import find_compiler

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    found = tmp_path_factory.mktemp("example") / "run_native"
    source = ROOT / "examples" / "run_native.c"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*compiler, *flags, str(source), "-ldl", "-o", str(found)], check=True)
    return found


@pytest.fixture(scope="module")
def runtime():
    found = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not found:
        pytest.skip("the onnxruntime package has no shared library of its own here")
    return found[0]


def run(program, runtime, library, model, source):
    command = [program, runtime, library, model, "codes", "output", *source.shape]
    return subprocess.run([str(part) for part in command], input=source.tobytes(), capture_output=True, check=False)


def test_c_host(program, runtime, native_library, tmp_path):
    rng = np.random.default_rng(0)
    plan = make_plan(
        AccumulatorParams(rng.uniform(1e-5, 1e-4, 70)), QParams(rng.uniform(0.01, 0.1, 70), rng.integers(0, 30, 70))
    )
    source = rng.integers(-60000, 60000, (33, 70)).astype(np.int32)
    model = plan_model(plan)
    onnx.save(model, tmp_path / "model.onnx")
    del model.functions[:]
    onnx.save(model, tmp_path / "bare.onnx")
    for library, name in (("-", "model.onnx"), (native_library, "model.onnx"), (native_library, "bare.onnx")):
        done = run(program, runtime, library, tmp_path / name, source)
        assert done.returncode == 0, done.stderr
        np.testing.assert_array_equal(np.frombuffer(done.stdout, np.uint8).reshape(source.shape), plan(source))
    done = run(program, runtime, "-", tmp_path / "bare.onnx", source)
    assert done.returncode == 2
    assert b"RequantizeGelu" in done.stderr
    done = run(program, runtime, native_library, tmp_path / "model.onnx", source[:, :69].copy())
    assert done.returncode == 2
    assert b"input 'accumulator' has 69 channels, its last axis, but the parameters have 70" in done.stderr
