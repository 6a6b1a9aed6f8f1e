"""Models that broke the rewriter once: shared layers, biases in two places, constant channels, damaged weights."""

import numpy as np
import onnx
import pytest
import zoo
from onnx import TensorProto, helper, numpy_helper

from calibration import CalibrationError
from qgelu.errors import QGeluError
from qgelu.pipeline import quantize

RNG_SEED = 3


def model_of(nodes, values, *, opset=21, ir_version=10, dtype=TensorProto.FLOAT, **options):
    """Return a model from x [batch, 6] to y."""
    graph = helper.make_graph(
        nodes,
        "attack",
        [helper.make_tensor_value_info("x", dtype, ["batch", 6]), *options.pop("inputs", [])],
        [helper.make_tensor_value_info("y", dtype, ["batch", None])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    imports += [helper.make_opsetid(function.domain, 1) for function in options.get("functions", ())]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, **options)


def silu(x, y):
    return [
        helper.make_node("Sigmoid", [x], [f"{y}_gate"], name=f"{y}_gate"),
        helper.make_node("Mul", [x, f"{y}_gate"], [y], name=y),
    ]


def weights():
    rng = np.random.default_rng(RNG_SEED)
    shapes = {"w1": (6, 16), "b1": (16,), "w2": (16, 5), "b2": (5,)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def ffn_nodes():
    return [
        helper.make_node("MatMul", ["x", "w1"], ["p"]),
        helper.make_node("Add", ["p", "b1"], ["h"]),
        *silu("h", "g"),
        helper.make_node("MatMul", ["g", "w2"], ["q"]),
        helper.make_node("Add", ["q", "b2"], ["y"]),
    ]


def batches(change=lambda x: x, dtype=np.float32):
    rng = np.random.default_rng(RNG_SEED + 1)
    return [{"x": change(rng.normal(size=(64, 6))).astype(dtype)} for _ in range(6)]


def error_of(model, result, data):
    return zoo.relative_error(zoo.run(model, data[0])[0], zoo.run(result.model, data[0])[0])


@pytest.mark.parametrize("target", ["portable", "qdq"])
def test_a_layer_between_two_activations_belongs_to_the_first(target):
    values = weights()
    values["w3"] = values["w1"][:5, :3]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        *silu("h", "g"),
        helper.make_node("MatMul", ["g", "w2"], ["i"]),
        *silu("i", "j"),
        helper.make_node("MatMul", ["j", "w3"], ["y"]),
    ]
    del values["b1"], values["b2"]
    model, data = model_of(nodes, values), batches()
    result = quantize(model, data, target=target)
    assert [site.scope for site in result.sites] == ["ffn", "activation"]
    assert result.sites[1].note == "the layer before it is the second of another FFN"
    operators = [node.op_type for node in result.model.graph.node]
    assert operators.count("Sigmoid") == (0 if target == "portable" else 2)
    assert operators.count("MatMul") == (1 if target == "portable" else 3)
    assert error_of(model, result, data) < 0.04
    alone = quantize(model, data, target=target, sites=["j"])
    assert [site.scope for site in alone.sites] == ["ffn"]


def hardly_varying(x):
    return x * [0, 0, 1e-4, 1, 1, 1] + [3, 0, -5, 0, 0, 0]


@pytest.mark.parametrize("bits", [4, 8])
def test_channels_that_hardly_vary_keep_their_mean(bits):
    model, data = model_of(ffn_nodes(), weights()), batches(hardly_varying)
    result = quantize(model, data, bits=bits)
    assert result.sites[0].scope == "ffn"
    assert error_of(model, result, data) < {4: 0.1, 8: 0.01}[bits]


@pytest.mark.parametrize("scope", ["ffn", "activation"])
@pytest.mark.parametrize("target", ["portable", "qdq"])
@pytest.mark.parametrize("operator", ["BiasGelu", "FastGelu"])
def test_a_fused_bias_is_added_once(operator, target, scope):
    values = weights()
    values["b1"] *= 3
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["p"]),
        helper.make_node(operator, ["p", "b1"], ["g"], domain="com.microsoft"),
        helper.make_node("MatMul", ["g", "w2"], ["q"]),
        helper.make_node("Add", ["q", "b2"], ["y"]),
    ]
    model, data = model_of(nodes, values, opset=17, ir_version=8), batches()
    result = quantize(model, data, target=target, scope=scope)
    assert result.sites[0].scope == scope
    assert error_of(model, result, data) < 0.02


def test_the_functions_of_an_old_model_stay():
    double = helper.make_function(
        "own", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 13)]
    )
    nodes = [*ffn_nodes()[:-1], helper.make_node("Double", ["q"], ["y"], domain="own")]
    values = weights()
    del values["b2"]
    model, data = model_of(nodes, values, opset=13, ir_version=8, functions=[double]), batches()
    result = quantize(model, data)
    assert result.sites[0].scope == "ffn"
    assert error_of(model, result, data) < 0.03


@pytest.mark.parametrize("target", ["portable", "qdq"])
def test_initializers_that_are_inputs(target):
    values = weights()
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, list(value.shape)) for name, value in values.items()
    ]
    model, data = model_of(ffn_nodes(), values, opset=9, ir_version=3, inputs=inputs), batches()
    result = quantize(model, data, target=target)
    onnx.checker.check_model(result.model, full_check=True)
    assert error_of(model, result, data) < 0.03


@pytest.mark.parametrize("target", ["portable", "qdq"])
@pytest.mark.parametrize(
    ("name", "message"),
    [("w2", "weight 'w2' holds NaN or infinity"), ("b2", "the bias after weight 'w2' holds NaN or infinity")],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(name, message, value, target):
    values = weights()
    values[name].flat[1] = value
    with pytest.raises(QGeluError, match=message):
        quantize(model_of(ffn_nodes(), values), batches(), target=target)


@pytest.mark.parametrize("target", ["portable", "qdq"])
def test_blocks_of_values_too_small_for_integers_fall_back(target):
    values = weights()
    values["b1"][:], values["b2"][:] = 0, 0
    model, data = model_of(ffn_nodes(), values), [{"x": 1e-12 * feed["x"]} for feed in batches()]
    result = quantize(model, data, target=target)
    assert result.sites[0].scope == "activation"
    assert "times its output (values too small, or too few bits): leave this site out" in result.sites[0].note
    assert error_of(model, result, data) < 0.02


def test_float16_activations_that_overflow_are_counted():
    nodes = [helper.make_node("Add", ["x", "x"], ["h"]), *silu("h", "y")]
    model = model_of(nodes, {}, dtype=TensorProto.FLOAT16)
    data = batches(lambda x: np.full_like(x, 60000.0), np.float16)
    with pytest.raises(CalibrationError, match="holds 384 of 384 values that are NaN, infinite"):
        quantize(model, data)
