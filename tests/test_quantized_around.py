"""Models that are quantized already around an activation: their scales stay, or it is said why nothing is done."""

import numpy as np
import onnx
import onnxruntime.quantization as tool
import pytest
import zoo
from onnx import TensorProto, helper, numpy_helper
from site_models import SPELLINGS, Builder, model_of

from qgelu.activations import evaluate
from qgelu.graph.sites import find_sites
from qgelu.pipeline import quantize
from qgelu.qparams import QParams
from qgelu.verification import verify

X, Y = QParams(np.float32(0.04), 120, 8, False), QParams(np.float32(0.03), -100, 8, True)
DATA = [{"x": np.random.default_rng(seed).normal(size=(40, 6)).astype(np.float32)} for seed in range(3)]


def codes(b, x, params, domain=""):
    scale = b.array(np.float32(params.scale))
    zero = b.array(np.array(params.zero_point, params.dtype))
    quantized = b.op("QuantizeLinear", x, scale, zero, domain=domain)
    return b.op("DequantizeLinear", quantized, scale, zero, domain=domain)


def around(before=X, after=Y, activation="gelu", key="half x first", domain=""):
    """Return x -> codes -> activation -> codes -> y, with float where there are none."""
    b = Builder()
    h = b.op("Add", "x", "x")
    h = h if before is None else codes(b, h, before, domain)
    g = SPELLINGS[activation][key](b, h)
    g = g if after is None else codes(b, g, after, domain)
    b.op("Identity", g, output="y")
    return model_of(b, {"x": ("n", 6)}, ["y"], opset=21)


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize(
    ("activation", "key"), [("gelu", "half x first"), ("gelu", "ai.onnx Gelu"), ("silu", "sigmoid")]
)
def test_its_scales_stay(activation, key, domain):
    model = around(activation=activation, key=key, domain=domain)
    result = quantize(model, DATA)
    plan = result.sites[0].plan
    assert (plan.input, plan.output) == (X, Y)
    operators = [node.op_type for node in result.model.graph.node]
    assert operators == ["Add", "QuantizeLinear", "QGelu", "DequantizeLinear", "Identity"]
    x = DATA[0]["x"]
    seen = X.dequantize(X.quantize(x + x))
    correct = Y.dequantize(Y.quantize(evaluate(seen, activation))).astype(np.float32)
    np.testing.assert_array_equal(zoo.run(result.model, DATA[0])[0], correct)
    # ONNX Runtime's float arithmetic decides a tie otherwise, at most.
    assert np.mean(zoo.run(model, DATA[0])[0] != correct) < 0.01
    assert verify(model, result, DATA).passed


@pytest.mark.parametrize("side", ["before", "after"])
def test_one_side(side):
    model = around(**{"before": X, "after": Y, side: None})
    result = quantize(model, DATA)
    plan = result.sites[0].plan
    assert (plan.input == X, plan.output == Y) == (side == "after", side == "before")
    operators = [node.op_type for node in result.model.graph.node]
    assert operators == ["Add", "QuantizeLinear", "QGelu", "DequantizeLinear", "Identity"]
    assert 0 < zoo.relative_error(zoo.run(model, DATA[0])[0], zoo.run(result.model, DATA[0])[0]) < 0.02
    assert verify(model, result, DATA).passed


def test_sixteen_bits():
    wide = QParams(2.0**-13, 40000, 16, False), QParams(2.0**-13, -30000, 16, True)
    model = around(*wide)
    result = quantize(model, DATA, scope="activation", bits=16)
    assert (result.sites[0].plan.input, result.sites[0].plan.output) == wide
    assert zoo.relative_error(zoo.run(model, DATA[0])[0], zoo.run(result.model, DATA[0])[0]) < 1e-4


def test_other_widths_get_scales_of_their_own():
    model = around()
    result = quantize(model, DATA, bits=4, scope="activation")
    assert (result.sites[0].plan.input.bits, result.sites[0].plan.output.bits) == (4, 4)
    assert zoo.relative_error(zoo.run(model, DATA[0])[0], zoo.run(result.model, DATA[0])[0]) < 0.3


@pytest.mark.parametrize(("before", "after", "added"), [(X, Y, 0), (X, None, 1), (None, Y, 1), (None, None, 2)])
def test_target_qdq_adds_what_is_missing(before, after, added):
    model = around(before, after)
    result = quantize(model, DATA, target="qdq")
    count = [sum(node.op_type == "QuantizeLinear" for node in each.graph.node) for each in (model, result.model)]
    assert count[1] - count[0] == added
    assert zoo.relative_error(zoo.run(model, DATA[0])[0], zoo.run(result.model, DATA[0])[0]) < 0.02
    assert verify(model, result, DATA).passed


def test_codes_that_others_read_too_are_left():
    """The float output is read elsewhere: it is dequantized from our scale, and quantized again by the model's."""
    model = around()
    quantizing = [node for node in model.graph.node if node.op_type == "QuantizeLinear"][1]
    model.graph.node.append(helper.make_node("Neg", [quantizing.input[0]], ["z"]))
    model.graph.output.append(onnx.ValueInfoProto(name="z"))
    result = quantize(model, DATA)
    assert result.sites[0].plan.input == X
    assert result.sites[0].plan.output != Y
    for expected, actual in zip(zoo.run(model, DATA[0]), zoo.run(result.model, DATA[0]), strict=True):
        assert zoo.relative_error(expected, actual) < 0.02


def test_scales_per_channel_are_not_taken():
    model = around()
    scales = {node.input[1] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    for tensor in model.graph.initializer:
        if tensor.name in scales or tensor.data_type in {TensorProto.UINT8, TensorProto.INT8}:
            value = np.broadcast_to(numpy_helper.to_array(tensor), 6)
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), tensor.name))
    site = find_sites(model).sites[0]
    assert (site.input_codes, site.output_codes) == (None, None)
    result = quantize(model, DATA)
    assert zoo.relative_error(zoo.run(model, DATA[0])[0], zoo.run(result.model, DATA[0])[0]) < 0.02


class _Reader(tool.CalibrationDataReader):
    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)


@pytest.mark.parametrize("operators", [None, ["MatMul"]])
def test_what_the_runtimes_tool_makes(operators, tmp_path, caplog):
    """With all operators it quantizes inside the activation; with matmuls alone, after it."""
    model = zoo.load("vit_gelu.ts17")
    data = [zoo.feed(model, np.random.default_rng(seed), 4, 16) for seed in range(3)]
    path = tmp_path / "static.onnx"
    tool.quantize_static(
        model,
        path,
        _Reader(data),
        quant_format=tool.QuantFormat.QDQ,
        activation_type=tool.QuantType.QUInt8,
        weight_type=tool.QuantType.QInt8,
        **({} if operators is None else {"op_types_to_quantize": operators}),
    )
    static = onnx.load(path)
    findings = find_sites(static)
    if operators is None:
        assert findings.sites == ()
        assert len(findings.near_misses) == 2
        assert "like gelu of" in findings.near_misses[0].reason
        assert "but quantized inside, at" in findings.near_misses[0].reason
        return
    result = quantize(static, data)
    assert [site.scope for site in result.sites] == ["activation", "activation"]
    assert 0 < zoo.relative_error(zoo.run(static, data[0])[0], zoo.run(result.model, data[0])[0]) < 0.03
