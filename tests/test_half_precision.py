"""float16 and bfloat16 models: what converters and exporters make, with casts in every place."""

import warnings

import numpy as np
import onnx
import pytest
import zoo
from onnx import TensorProto, helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from site_models import SPELLINGS, Builder, matmul_add, model_of

import calibration
from qgelu.graph.sites import find_sites
from qgelu.pipeline import calibrate, quantize

BLOCKED = ["Erf", "Tanh", "Sigmoid", "Gelu"]
"""Operators that a careful user leaves in float32."""


def half(name, keep_io_types, op_block_list):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return convert_float_to_float16(zoo.load(name), keep_io_types=keep_io_types, op_block_list=op_block_list)


@pytest.mark.parametrize("scope", ["ffn", "activation"])
@pytest.mark.parametrize("blocked", [None, BLOCKED])
@pytest.mark.parametrize("keep_io_types", [True, False])
@pytest.mark.parametrize("name", ["bert_gelu.ts17", "clipvision_quickgelu.dyn20", "gpt2_gelu_new.dyn18"])
def test_converted_models(name, keep_io_types, blocked, scope):
    """The converter leaves nodes out of order, and puts casts around what it leaves in float32."""
    model = half(name, keep_io_types, blocked)
    inputs = [zoo.feed(zoo.load(name), np.random.default_rng(seed), 4, 16) for seed in range(3)]
    if not keep_io_types:
        inputs = [
            {key: value.astype(np.float16) if value.dtype == np.float32 else value for key, value in feed.items()}
            for feed in inputs
        ]
    result = quantize(model, inputs, scope=scope)
    assert {site.scope for site in result.sites} == {scope}
    onnx.checker.check_model(result.model, full_check=True)
    for expected, actual in zip(zoo.run(model, inputs[0]), zoo.run(result.model, inputs[0]), strict=True):
        assert actual.dtype == expected.dtype
        assert 0 < zoo.relative_error(expected, actual) < zoo.RELATIVE_ERROR[name][scope == "activation"]


def typed_model(kind, dtype):
    """Return an FFN in one floating-point type, between casts of float32."""
    b = Builder(dtype=dtype)
    x = b.op("Cast", "x", to=kind)
    hidden = matmul_add_of(b, x, 4, 6, dtype)
    active = SPELLINGS["gelu"]["half x first"](b, hidden)
    b.op("Cast", matmul_add_of(b, active, 6, 4, dtype), to=TensorProto.FLOAT, output="y")
    return model_of(b, {"x": ("n", 4)}, ["y"])


def matmul_add_of(b, x, rows, columns, dtype):
    rng = np.random.default_rng(rows)
    weight, bias = (b.array(rng.normal(size=shape).astype(dtype)) for shape in ((rows, columns), (columns,)))
    return b.op("Add", b.op("MatMul", x, weight), bias)


DATA = [{"x": np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)}]


def test_bfloat16_is_found_and_its_lack_of_kernels_said():
    bfloat16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    model = typed_model(TensorProto.BFLOAT16, bfloat16)
    site = find_sites(model).sites[0]
    assert (site.activation, site.scope, site.element_type) == ("gelu", "ffn", TensorProto.BFLOAT16)
    with pytest.raises(calibration.CalibrationError, match="no such kernels for bfloat16 on CPUs: convert the model"):
        calibrate(model, DATA)


def test_an_activation_in_bfloat16_that_runs():
    """What ONNX Runtime has kernels for: casts, and through them a table."""
    b = Builder()
    x = b.op("Cast", "x", to=TensorProto.BFLOAT16)
    active = b.op("Gelu", b.op("Cast", x, to=TensorProto.FLOAT))
    b.op("Cast", b.op("Cast", active, to=TensorProto.BFLOAT16), to=TensorProto.FLOAT, output="y")
    model = model_of(b, {"x": ("n", 4)}, ["y"])
    site = find_sites(model).sites[0]
    assert site.element_type == TensorProto.BFLOAT16
    result = quantize(model, DATA)
    assert 0 < zoo.relative_error(zoo.run(model, DATA[0])[0], zoo.run(result.model, DATA[0])[0]) < 0.01


def test_bfloat16_inputs_cannot_be_fed():
    b = Builder()
    b.op("Gelu", "x", output="y")
    with pytest.raises(calibration.CalibrationError, match="'x' is of type BFLOAT16, which NumPy does not have"):
        calibrate(model_of(b, {"x": ("n", 4)}, ["y"], elem_type=TensorProto.BFLOAT16), DATA)


def test_the_type_is_known_behind_an_operator_that_is_not():
    """Shape inference ends at an unknown operator; the constants beside it have the type."""
    b = Builder(dtype=np.float16)
    h = b.op("SkipLayerNormalization", "x", "x", b.array(np.ones(4, np.float16)), domain="com.microsoft")
    b.op("Identity", SPELLINGS["gelu"]["half x first"](b, h), output="y")
    model = model_of(b, {"x": ("n", "m", 4)}, ["y"], elem_type=TensorProto.FLOAT16)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    assert find_sites(model).sites[0].element_type == TensorProto.FLOAT16
    data = [{"x": np.random.default_rng(1).normal(size=(3, 5, 4)).astype(np.float16)}]
    result = quantize(model, data)
    assert zoo.relative_error(zoo.run(model, data[0])[0], zoo.run(result.model, data[0])[0]) < 0.01


def test_the_type_of_a_layer_behind_an_operator_that_is_not_known():
    b = Builder(dtype=np.float16)
    h = b.op("SkipLayerNormalization", "x", "x", b.array(np.ones(4, np.float16)), domain="com.microsoft")
    hidden = matmul_add_of(b, h, 4, 6, np.float16)
    active = b.op("Gelu", hidden, domain="com.microsoft")
    b.op("Identity", matmul_add_of(b, active, 6, 4, np.float16), output="y")
    model = model_of(b, {"x": ("n", "m", 4)}, ["y"], elem_type=TensorProto.FLOAT16)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    site = find_sites(model).sites[0]
    assert (site.scope, site.element_type) == ("ffn", TensorProto.FLOAT16)


def test_plain_layers_are_float32():
    b = Builder()
    b.op("Identity", matmul_add(b, SPELLINGS["silu"]["sigmoid"](b, matmul_add(b, "x"))), output="y")
    assert find_sites(model_of(b, {"x": ("n", 4)}, ["y"])).sites[0].element_type == TensorProto.FLOAT
