"""Every opset and IR version that ONNX has had, and the node tests that the onnx package ships."""

import warnings

import numpy as np
import onnx
import pytest
import zoo
from onnx import TensorProto, helper, numpy_helper
from site_models import SQRT_2, Builder, factored_argument

from qgelu.activations import evaluate
from qgelu.errors import QGeluError
from qgelu.graph.normal_form import with_supported_opset
from qgelu.pipeline import quantize
from qgelu.verification import verify

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import onnx.backend.test.case.node as node_cases
    from onnx.backend.test.case.node import gelu as _gelu_cases  # noqa: F401  (the import adds its cases)
    from onnx.backend.test.case.node import swish as _swish_cases  # noqa: F401

NEWEST = onnx.defs.onnx_opset_version()
FIRST = {"gelu": 9, "gelu_tanh": 7, "quick_gelu": 7, "silu": 7, "Gelu": 20, "Swish": 24}
"""Opset from which each spelling exists."""


def spelled(b, activation, h):
    half = b.op("Mul", h, 0.5) if activation in {"gelu", "gelu_tanh"} else ""
    if activation == "gelu":
        return b.op("Mul", half, b.op("Add", b.op("Erf", b.op("Div", h, SQRT_2)), 1.0))
    if activation == "gelu_tanh":
        return b.op("Mul", half, b.op("Add", b.op("Tanh", factored_argument(b, h)), 1.0))
    if activation in {"quick_gelu", "silu"}:
        return b.op("Mul", h, b.op("Sigmoid", b.op("Mul", h, 1.702) if activation == "quick_gelu" else h))
    return b.op(activation, h)


def model_of(activation, opset, ir_version):
    """Return an FFN with a Dropout; up to IR 3, initializers are inputs too."""
    rng = np.random.default_rng(1)
    b = Builder()
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((6, 16), (16,), (16, 5), (5,))]
    w1, b1, w2, b2 = (b.array(array) for array in arrays)
    h = b.op("Add", b.op("MatMul", "x", w1), b1)
    dropped = b.op("Dropout", spelled(b, activation, h))
    b.op("Add", b.op("MatMul", dropped, w2), b2, output="y")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])]
    if ir_version == 3:
        inputs += [helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in b.initializers]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])]
    graph = helper.make_graph(b.nodes, "ffn", inputs, outputs, b.initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


DATA = [{"x": np.random.default_rng(2).normal(size=(64, 6)).astype(np.float32)} for _ in range(2)]


@pytest.mark.parametrize("opset", range(7, NEWEST + 1))
def test_every_opset(opset):
    for activation, first in FIRST.items():
        if opset < first:
            continue
        ir_version = 3 if opset < 15 else 8
        model = model_of(activation, opset, ir_version)
        for scope, target in (("ffn", "portable"), ("activation", "portable"), ("ffn", "qdq")):
            result = quantize(model, DATA, scope=scope, target=target)
            assert result.sites[0].scope == scope
            onnx.checker.check_model(result.model, full_check=True)
            if activation == "Swish":  # ONNX Runtime 1.32 has no kernel for it
                assert verify(model, result, DATA).outputs[0].relative_error < 0.03
            else:
                expected, actual = (zoo.run(each, DATA[0])[0] for each in (model, result.model))
                assert 0 < zoo.relative_error(expected, actual) < 0.03


@pytest.mark.parametrize("ir_version", range(3, onnx.IR_VERSION + 1))
def test_every_ir_version(ir_version):
    model = model_of("gelu", 13, ir_version)
    result = quantize(model, DATA)
    assert result.model.ir_version == max(ir_version, 8)
    if ir_version <= newest_ir_that_runs():
        assert zoo.relative_error(zoo.run(model, DATA[0])[0], zoo.run(result.model, DATA[0])[0]) < 0.03


def newest_ir_that_runs():
    """Return the newest IR version that the installed ONNX Runtime takes."""
    newest = onnx.IR_VERSION
    while True:
        try:
            zoo.run(model_of("silu", 13, newest), DATA[0])
        except Exception:
            newest -= 1
        else:
            return newest


@pytest.mark.parametrize("operator", ["Cast", "DequantizeLinear"])
def test_an_opset_that_is_too_new_stays_if_its_operators_changed(operator):
    model = model_of("silu", NEWEST, 10)
    if operator == "Cast":
        model.graph.node.append(helper.make_node("Cast", ["y"], ["z"], to=TensorProto.FLOAT16))
    else:
        model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
        model.graph.node.append(helper.make_node("DequantizeLinear", ["codes", "one"], ["z"]))
    assert with_supported_opset(model) is model
    del model.graph.node[-1]
    assert with_supported_opset(model).opset_import[0].version == 27


def test_opsets_from_the_future_are_named():
    with pytest.raises(QGeluError, match=f"uses opset {NEWEST + 1}, the installed onnx knows up to {NEWEST}"):
        quantize(model_of("silu", NEWEST + 1, 8), DATA)


CASES = {case.name: case for case in node_cases._NodeTestCases if case.name.startswith(("test_gelu", "test_swish"))}
# For every x, |f'(x)| is at most this.
STEEPEST = {"gelu": 1.1289, "gelu_tanh": 1.1290, "silu": 1.0999}


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_node_tests_of_onnx(name):
    """The answer is that of the plan, exactly, and so within the plan's bound of the expected output."""
    model = CASES[name].model
    ((x,), (expected,)) = CASES[name].data_sets[0]
    source, target = model.graph.input[0].name, model.graph.output[0].name
    result = quantize(model, [{source: x}], scope="activation")
    site = result.sites[0]
    activation = {"tanh": "gelu_tanh", "defa": "gelu"}.get(name.removeprefix("test_gelu_")[:4], "silu")
    assert (len(result.sites), site.activation, site.output) == (1, activation, target)
    plan = site.plan
    actual = zoo.run(result.model, {source: x})[0]
    np.testing.assert_array_equal(actual, plan.output.dequantize(plan(plan.input.quantize(x))).astype(np.float32))
    seen = plan.input.dequantize(plan.input.quantize(x))
    bound = plan.certificate.max_error_lsb * plan.output.scale
    assert np.abs(actual - evaluate(seen, activation)).max() <= bound * (1 + 1e-6)
    assert np.abs(actual - expected).max() <= bound + STEEPEST[activation] * np.abs(seen - x).max() + 1e-6


def test_there_are_node_tests():
    assert len(CASES) == 10
