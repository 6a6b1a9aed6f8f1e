"""The same files on other runtimes, bit for bit: the table of docs/runtimes.md.

    npm install --ignore-scripts --prefix node onnxruntime-node onnxruntime-web
    python -m venv vino && vino/bin/pip install openvino
    python bench/runtimes.py --node node --openvino vino/bin/python --update-docs

onnx.reference is always run; what is not given is left out. The ops are compared with the Numba kernels, an FFN block
with its executor in NumPy, target qdq and the demo model with ONNX Runtime.
"""

import argparse
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from marked import replace, table
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import qgelu
from qgelu import AccumulatorParams, QParams, demo, make_plan
from qgelu.graph.plan_nodes import plan_model

PAGE = "docs/runtimes.md"
CHANNELS = 96


@dataclass(frozen=True)
class Case:
    """A model, its input and the right output; ``exact`` if it is a matter of bits."""

    name: str
    title: str
    model: onnx.ModelProto
    input: tuple[str, Any]
    expected: Any
    exact: bool

    @property
    def output(self):
        return self.model.graph.output[0].name


def every_code(dtype):
    info = np.iinfo(dtype)
    return np.arange(info.min, info.max + 1).astype(dtype).reshape(-1, 64)


def op_case(name, title, plan, codes, bias=None):
    return Case(name, title, plan_model(plan, bias), ("codes", codes), plan(codes, bias), True)


def accumulators(rng, scale):
    """Boundaries, powers of two +-2 and random accumulators in every channel."""
    powers = [sign * (1 << k) + d for k in range(31) for d in range(-2, 3) for sign in (1, -1)]
    fixed = np.array([-(1 << 31), (1 << 31) - 1, 0, *powers])
    random = rng.normal(size=(700, CHANNELS)) * 2.5 / scale
    every = np.concatenate([np.broadcast_to(fixed[:, None], (fixed.size, CHANNELS)), random])
    return np.clip(every, -(1 << 31), (1 << 31) - 1).astype(np.int32)


def ffn_model(rng, opset):
    """Return a float FFN 64 x 96 x 64 and data for it."""
    shapes = {"w1": (64, CHANNELS), "b1": (CHANNELS,), "w2": (CHANNELS, 64), "b2": (64,)}
    arrays = {name: (rng.normal(size=shape) / 8).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"]),
        helper.make_node("Add", ["m1", "b1"], ["h"]),
        helper.make_node("Gelu", ["h"], ["g"], approximate="none"),
        helper.make_node("MatMul", ["g", "w2"], ["m2"]),
        helper.make_node("Add", ["m2", "b2"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 64]) for name in "xy")
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "ffn", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return model, (rng.normal(size=(512, 64)) * 4).astype(np.float32)


def on_onnxruntime(model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


def make_cases():
    rng = np.random.default_rng(17)
    scale = rng.uniform(1e-5, 1e-4, CHANNELS)
    source, bias = AccumulatorParams(scale), rng.integers(-20000, 20000, CHANNELS).astype(np.int32)
    out = {bits: QParams(rng.uniform(0.01, 0.05, CHANNELS) * 2.0 ** (8 - bits), 3, bits) for bits in (8, 16)}
    narrow, wide = make_plan(source, out[8]), make_plan(source, out[16], "silu")
    codes = accumulators(rng, scale)
    table_8 = make_plan(QParams(0.05, 120), QParams(0.03, 6), "gelu_tanh")
    table_16 = make_plan(QParams(3e-4, 0, 16, True), QParams(2e-4, 900, 16))
    yield op_case("table_8", "QGelu, 8 bits, every code", table_8, every_code(np.uint8))
    yield op_case("table_16", "QGelu, 16 bits, every code", table_16, every_code(np.int16))
    yield op_case("narrow", "RequantizeGelu, narrow, int32", narrow, codes, bias)
    yield op_case("wide", "RequantizeGelu, wide", wide, codes, bias)
    model, data = ffn_model(rng, 20)
    quantized = qgelu.quantize(model, {"x": data})
    short = quantized.sites[0].plan
    yield op_case("short", "RequantizeGelu, narrow, float32", short, accumulators(rng, short.input.scale), bias)
    ours = on_onnxruntime(quantized.model, {"x": data})
    yield Case("ffn", "an FFN block, float to float", quantized.model, ("x", data), ours, True)
    qdq = qgelu.quantize(model, {"x": data}, target="qdq").model
    yield Case("ffn_qdq", "the same, target qdq", qdq, ("x", data), on_onnxruntime(qdq, {"x": data}), False)
    images = demo.load_test()[0]["images"][:32]
    for target in ("portable", "qdq"):
        whole = qgelu.quantize(demo.model_path(), demo.load_calibration(), target=target).model
        title = f"the demo model, target {target}"
        yield Case(f"demo_{target}", title, whole, ("images", images), on_onnxruntime(whole, {"images": images}), False)


def write_cases(cases, folder):
    entries = []
    for case in cases:
        onnx.save(case.model, folder / f"{case.name}.onnx")
        name, array = case.input
        array.tofile(folder / f"{case.name}.in")
        source = {"name": name, "dtype": array.dtype.name, "shape": array.shape, "file": f"{case.name}.in"}
        entries.append({"name": case.name, "model": f"{case.name}.onnx", "input": source, "output": case.output})
    (folder / "cases.json").write_text(json.dumps(entries))


def answers_of(name, folder):
    """Return what a runner wrote: an array or the reason why there is none, by case; and the runtime's version."""
    found = json.loads((folder / f"{name}.json").read_text())
    version = found.pop("version", "")
    return version, {
        case: answer.get("failure")
        or np.fromfile(folder / f"{case}.{name}.bin", answer["dtype"]).reshape(answer["shape"])
        for case, answer in found.items()
    }


def on_reference(cases):
    answers = {}
    for case in cases:
        try:
            answers[case.name] = ReferenceEvaluator(case.model).run([case.output], dict([case.input]))[0]
        except Exception as error:  # whatever it raises is its answer
            answers[case.name] = f"{type(error).__name__}: {error}"
    return onnx.__version__, answers


def on_node(package, folder, parent):
    subprocess.run(["node", Path(__file__).with_name("run_with_node.mjs"), package, folder, parent], check=True)
    version = json.loads((parent / "node_modules" / package / "package.json").read_text())["version"]
    return version, answers_of(package, folder)[1]


def on_openvino(folder, python):
    subprocess.run([python, Path(__file__).with_name("run_with_openvino.py"), folder], check=True)
    return answers_of("openvino", folder)


def verdict(case, answer):
    if isinstance(answer, str):
        print(f"  {case.title}: {answer}")
        return "refused"
    same = answer.shape == case.expected.shape and answer.dtype == case.expected.dtype
    if same and np.array_equal(answer, case.expected):
        return "the same"
    if not same:
        return f"{answer.dtype} {list(answer.shape)}: wrong"
    difference = np.abs(answer.astype(np.float64) - case.expected)
    if case.expected.dtype.kind == "f":
        return f"within {difference.max() / np.abs(case.expected).max():.0e}"
    return f"{np.count_nonzero(difference)} of {difference.size} codes differ, by up to {difference.max():.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--node", type=Path, metavar="DIR", help="where npm installed onnxruntime-node and -web")
    parser.add_argument("--openvino", type=Path, metavar="PYTHON", help="a Python that has openvino")
    parser.add_argument("--update-docs", action="store_true", help=f"write the table into {PAGE}")
    options = parser.parse_args()
    cases = list(make_cases())
    columns = {}
    with tempfile.TemporaryDirectory(prefix="qgelu-runtimes-") as name:
        folder = Path(name)
        write_cases(cases, folder)
        columns["onnx.reference"] = on_reference(cases)
        if options.node:
            for package in ("onnxruntime-node", "onnxruntime-web"):
                columns[package] = on_node(package, folder, options.node)
        if options.openvino:
            columns["OpenVINO"] = on_openvino(folder, options.openvino)
    rows = {case.name: [case.title] for case in cases}
    for runtime, (version, answers) in columns.items():
        print(f"{runtime} {version}")
        for case in cases:
            rows[case.name].append(verdict(case, answers[case.name]))
    header = [f"against onnxruntime {onnxruntime.__version__}", *(f"{k} {v}" for k, (v, _) in columns.items())]
    lines = table(header, list(rows.values()))
    print("\n".join(lines))
    if options.update_docs:
        replace(PAGE, "runtimes", lines)


if __name__ == "__main__":
    main()
