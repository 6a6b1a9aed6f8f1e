"""From float models to integer ones: real exporter outputs, what must stay as it was, and what is refused."""

import functools
import json

import numpy as np
import onnx
import pytest
import zoo
from onnx import TensorProto, helper, numpy_helper

from calibration import CalibrationError
from qgelu.errors import QGeluError
from qgelu.graph.functions import DOMAIN
from qgelu.pipeline import METADATA_KEY, calibrate, quantize, quantized_sites

FLOAT_ACTIVATIONS = {"Erf", "Tanh", "Sigmoid", "Gelu", "FastGelu", "BiasGelu", "QuickGelu"}


@functools.cache
def calibrated(name):
    model = zoo.load(name)
    rng = np.random.default_rng(11)
    return calibrate(model, [zoo.feed(model, rng, 4, 16) for _ in range(16)])


@pytest.mark.parametrize("scope", ["ffn", "activation"])
@pytest.mark.parametrize("name", zoo.RELATIVE_ERROR)
def test_exporter_outputs(name, scope, tmp_path):
    model = zoo.load(name)
    before = model.SerializeToString()
    result = quantize(model, calibration=calibrated(name), scope=scope)
    assert model.SerializeToString() == before
    onnx.checker.check_model(result.model, full_check=True)
    assert len(result.sites) == 2
    limit = zoo.RELATIVE_ERROR[name][scope == "activation"]
    rng = np.random.default_rng(12)
    for batch, length in [(4, 16), (1, 7), (3, 11)]:
        inputs = zoo.feed(model, rng, batch, length)
        for expected, actual in zip(zoo.run(model, inputs), zoo.run(result.model, inputs), strict=True):
            assert expected.shape == actual.shape
            assert zoo.relative_error(expected, actual) < limit
    operators = zoo.executed(result.model, inputs, tmp_path)
    assert not FLOAT_ACTIVATIONS & set(operators)
    ffns = [site for site in result.sites if site.scope == "ffn"]
    # Two a block; ONNX Runtime makes each one operator with the nodes after it, unless shape-only nodes come between.
    assert operators["MatMulInteger"] + operators["MatMulIntegerToFloat"] == 2 * len(ffns)
    assert operators["MatMulIntegerToFloat"] >= len(ffns)
    assert operators["ArrayFeatureExtractor"] == 2
    if scope == "ffn" and not any(part in name for part in ("gated", "gemma", "gelu_10")):
        assert len(ffns) == 2


@pytest.mark.parametrize("name", ["bert_gelu.ts17", "gpt2_gelu_new.dyn18", "gemma_gelu_tanh.dyn20"])
def test_the_rest_of_the_model_stays(name):
    model = zoo.load(name)
    entry = model.metadata_props.add()
    entry.key, entry.value = "author", "somebody"
    result = quantize(model, calibration=calibrated(name)).model
    for field in ("input", "output"):
        ours, theirs = getattr(result.graph, field), getattr(model.graph, field)
        assert [value.SerializeToString() for value in ours] == [value.SerializeToString() for value in theirs]
    assert {entry.key: entry.value for entry in result.metadata_props}["author"] == "somebody"
    assert result.graph.name == model.graph.name
    versions = {entry.domain: entry.version for entry in result.opset_import}
    assert versions[""] == {entry.domain: entry.version for entry in model.opset_import}[""]
    kept = {node.name: node for node in result.graph.node if "qgelu" not in node.name}
    for node in model.graph.node:
        if node.name in kept and node.op_type not in {"Shape"}:
            assert kept[node.name].SerializeToString() == node.SerializeToString()
    assert len(kept) > len(model.graph.node) / 2


def small_model(nodes, initializers=(), outputs=(("y", TensorProto.FLOAT),), element=TensorProto.FLOAT, opset=17):
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", element, ["batch", 6])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
        [numpy_helper.from_array(value, name) for name, value in initializers],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def gelu_nodes(x, y):
    return [
        helper.make_node("Mul", [x, "root_half"], [f"{y}_s"], name=f"{y}_mul"),
        helper.make_node("Erf", [f"{y}_s"], [f"{y}_e"], name=f"{y}_erf"),
        helper.make_node("Add", [f"{y}_e", "one"], [f"{y}_a"], name=f"{y}_add"),
        helper.make_node("Mul", [x, f"{y}_a"], [f"{y}_m"], name=f"{y}_mul_x"),
        helper.make_node("Mul", [f"{y}_m", "half"], [y], name=f"{y}_out"),
    ]


def constants(dtype=np.float32):
    return [
        ("root_half", np.array(np.sqrt(0.5), dtype)),
        ("one", np.array(1.0, dtype)),
        ("half", np.array(0.5, dtype)),
    ]


def ffn_model(**options):
    rng = np.random.default_rng(0)
    weights = [
        ("w1", rng.normal(size=(6, 16)).astype(np.float32)),
        ("b1", rng.normal(size=16).astype(np.float32)),
        ("w2", rng.normal(size=(16, 4)).astype(np.float32)),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["p"], name="first"),
        helper.make_node("Add", ["p", "b1"], ["h"], name="bias"),
        *gelu_nodes("h", "g"),
        helper.make_node("MatMul", ["g", "w2"], ["y"], name="second"),
    ]
    return small_model(nodes, [*constants(), *weights], **options)


def batches(count=8, rows=64, seed=1, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(rows, 6)).astype(dtype)} for _ in range(count)]


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_ffn_bit_widths(bits):
    model = ffn_model()
    result = quantize(model, batches(), bits=bits)
    assert result.sites[0].scope == "ffn"
    inputs = batches(1, seed=2)[0]
    error = zoo.relative_error(zoo.run(model, inputs)[0], zoo.run(result.model, inputs)[0])
    assert error < 4.5 / (1 << bits)


@pytest.mark.parametrize("bits", [2, 4, 8, 9, 12, 16])
@pytest.mark.parametrize("opset", [14, 17, 21])
def test_activation_bit_widths(bits, opset):
    model = ffn_model(opset=opset)
    result = quantize(model, batches(), bits=bits, scope="activation")
    inputs = batches(1, seed=2)[0]
    error = zoo.relative_error(zoo.run(model, inputs)[0], zoo.run(result.model, inputs)[0])
    assert error < 3.2 / (1 << bits)
    assert {entry.domain: entry.version for entry in result.model.opset_import}[""] == opset


@pytest.mark.parametrize(("opset", "kind"), [(17, TensorProto.INT8), (21, TensorProto.INT4)])
def test_weights_of_four_bits(opset, kind):
    from qgelu.graph.sites import find_sites
    from qgelu.pipeline import _Choice, _integer_block

    model = ffn_model(opset=opset)
    calibration = calibrate(model, batches())
    result = quantize(model, calibration=calibration, weight_bits=4)
    stored = [value for value in result.model.graph.initializer if len(value.dims) == 2 and "weight" in value.name]
    assert [value.data_type for value in stored] == [kind] * 2
    assert [len(value.raw_data) for value in stored] == [48, 32] if kind == TensorProto.INT4 else [96, 64]
    site = find_sites(model).sites[0]
    block = _integer_block(site, _Choice(calibration, 8, "output", "portable", 4))
    inputs = batches(1, rows=1000, seed=3)[0]
    np.testing.assert_array_equal(zoo.run(result.model, inputs)[0], block.run(inputs["x"]))
    casts = [node for node in result.model.graph.node if node.op_type == "Cast" and "weight" in node.output[0]]
    assert len(casts) == (2 if kind == TensorProto.INT4 else 0)
    assert quantized_sites(result.model)[0].weight_bits == 4


def test_four_bit_weights_of_odd_size_are_packed_as_onnx_says():
    from qgelu.graph.editor import GraphEditor

    editor = GraphEditor(ffn_model(opset=21))
    codes = np.array([[-7, 7, 3], [0, -1, 5], [1, 2, -3]], np.int8)
    editor.weight(codes, "w")
    np.testing.assert_array_equal(numpy_helper.to_array(editor.graph.initializer[-1]).astype(np.int8), codes)
    editor.weight(codes - np.int8(1), "eight")
    assert editor.graph.initializer[-1].data_type == TensorProto.INT8  # -8 is no symmetric code


def test_few_samples_are_said_in_one_line():
    model = ffn_model()
    (note,) = [line for line in quantize(model, batches(2), target_cpu="vnni").notes if "calibrated" in line]
    assert "only 128 rows (tokens) for an FFN of 6 channels" in note
    assert "at least 1000" in note
    assert not quantize(model, batches(16), target_cpu="vnni").notes
    assert not quantize(model, batches(2), target_cpu="vnni", scope="activation").notes
    assert "only 128 rows" in quantize(model, batches(2), target_cpu="vnni", target="qdq").notes[0]


@pytest.mark.parametrize("method", ["minmax", "mse"])
def test_methods_are_honoured_in_ffns(method):
    model = ffn_model()
    calibration = calibrate(model, batches())
    ours, other = (quantize(model, calibration=calibration, bits=4, method=name) for name in ("output", method))
    assert ours.sites[0].scope == other.sites[0].scope == "ffn"
    assert ours.sites[0].plan.to_json() != other.sites[0].plan.to_json()


def test_the_integer_executor_is_the_model():
    """The ONNX model and IntegerFfn.run give the same numbers."""
    from qgelu.graph.sites import find_sites
    from qgelu.pipeline import _Choice, _integer_block

    model = ffn_model()
    calibration = calibrate(model, batches())
    site = find_sites(model).sites[0]
    block = _integer_block(site, _Choice(calibration, 8, "output", "portable", 8))
    inputs = batches(1, rows=1000, seed=3)[0]
    result = quantize(model, calibration=calibration)
    np.testing.assert_array_equal(zoo.run(result.model, inputs)[0], block.run(inputs["x"]))


def test_interior_tensors_and_other_outputs_stay_bit_identical():
    model = ffn_model(outputs=(("y", TensorProto.FLOAT), ("g_e", TensorProto.FLOAT), ("h", TensorProto.FLOAT)))
    inputs = batches(1, seed=4)[0]
    for scope in ("ffn", "activation"):
        result = quantize(model, batches(), scope=scope)
        assert result.sites[0].scope == "activation"
        assert (result.sites[0].note != "") == (scope == "ffn")
        expected, actual = zoo.run(model, inputs), zoo.run(result.model, inputs)
        np.testing.assert_array_equal(expected[1], actual[1])
        np.testing.assert_array_equal(expected[2], actual[2])
        assert not np.array_equal(expected[0], actual[0])


def test_an_activation_that_is_an_output_keeps_its_name():
    model = small_model(gelu_nodes("x", "y"), constants())
    result = quantize(model, batches())
    assert [value.name for value in result.model.graph.output] == ["y"]
    inputs = batches(1)[0]
    assert zoo.relative_error(zoo.run(model, inputs)[0], zoo.run(result.model, inputs)[0]) < 0.02


def test_float16_models_are_cast_around():
    model = small_model(
        gelu_nodes("x", "y"),
        constants(np.float16),
        outputs=(("y", TensorProto.FLOAT16),),
        element=TensorProto.FLOAT16,
    )
    result = quantize(model, batches(dtype=np.float16))
    inputs = batches(1, seed=5, dtype=np.float16)[0]
    expected, actual = zoo.run(model, inputs)[0], zoo.run(result.model, inputs)[0]
    assert actual.dtype == np.float16
    assert zoo.relative_error(expected, actual) < 0.02


def test_float64_models_are_refused():
    model = small_model(
        gelu_nodes("x", "y"),
        constants(np.float64),
        outputs=(("y", TensorProto.DOUBLE),),
        element=TensorProto.DOUBLE,
    )
    with pytest.raises(QGeluError, match=r"'y_out' computes in double: convert the model to float32 first"):
        quantize(model, batches(dtype=np.float64))


def test_old_opsets_are_raised():
    model = ffn_model(opset=11)
    result = quantize(model, batches())
    assert {entry.domain: entry.version for entry in result.model.opset_import}[""] == 14
    inputs = batches(1, seed=6)[0]
    assert zoo.relative_error(zoo.run(model, inputs)[0], zoo.run(result.model, inputs)[0]) < 0.02


def test_weights_too_long_fall_back_with_the_reason():
    rng = np.random.default_rng(1)
    k = 600_000
    weights = [("w1", np.ones((k, 2), np.float32)), ("w2", rng.normal(size=(2, 2)).astype(np.float32))]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"),
        *gelu_nodes("h", "g"),
        helper.make_node("MatMul", ["g", "w2"], ["y"], name="second"),
    ]
    model = small_model(nodes, [*constants(), *weights])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = k
    data = [{"x": np.outer([1, -1], np.full(k, 0.001)).astype(np.float32)}]
    site = quantize(model, data).sites[0]
    assert site.scope == "activation"
    assert "leave this site out" in site.note


def test_qdq_runs_on_onnx_runtime():
    model = ffn_model()
    for scope in ("ffn", "activation"):
        result = quantize(model, batches(), scope=scope, target="qdq")
        assert not any(node.domain == DOMAIN for node in result.model.graph.node)
        inputs = batches(1, seed=7)[0]
        assert zoo.relative_error(zoo.run(model, inputs)[0], zoo.run(result.model, inputs)[0]) < 0.03


def test_qdq_has_the_numbers_of_the_integer_block():
    """Also where channels differ by far: their scales are in the weights, and one scale per tensor is enough."""
    model, loud = ffn_model(), np.array([1, 1, 30, 1, 0.05, 1], np.float32)
    data = [{"x": feed["x"] * loud + loud} for feed in batches(16)]
    inputs = {"x": batches(1, seed=7)[0]["x"] * loud + loud}
    expected = zoo.run(model, inputs)[0]
    portable, qdq = (quantize(model, data, target=target) for target in ("portable", "qdq"))
    assert portable.sites[0].plan.to_json() == qdq.sites[0].plan.to_json()
    for name in ("QuantizeLinear", "DequantizeLinear"):
        for node in (node for node in qdq.model.graph.node if node.op_type == name):
            (scale,) = (value for value in qdq.model.graph.initializer if value.name == node.input[1])
            assert scale.dims == [] or "weight" in node.name
    integers, floats = (zoo.run(result.model, inputs)[0] for result in (portable, qdq))
    error = zoo.relative_error(expected, integers)
    assert error < 0.02
    # Nothing but the activation's last rounding is left between them.
    assert zoo.relative_error(integers, floats) < 0.3 * error


def test_metadata_holds_the_plans():
    result = quantize(ffn_model(), batches())
    sites = quantized_sites(result.model)
    assert [site.name for site in sites] == ["g_out"]
    assert sites[0].plan.to_json() == result.sites[0].plan.to_json()


def test_metadata_of_wide_tables_is_small_and_lists_are_still_read():
    model = quantize(ffn_model(), batches(), bits=16, scope="activation")
    (entry,) = (entry for entry in model.model.metadata_props if entry.key == METADATA_KEY)
    assert len(entry.value) < 8000
    expected = model.sites[0].plan.to_json()
    assert quantized_sites(model.model)[0].plan.to_json() == expected
    content = json.loads(entry.value)
    content[0]["plan"] = json.loads(expected)
    entry.value = json.dumps(content)
    assert quantized_sites(model.model)[0].plan.to_json() == expected
    for damaged, reason in [
        ([{**content[0], "plan": {}}], "'m.onnx': metadata 'qgelu.sites': not a qgelu plan"),
        ([{}], "'m.onnx': metadata 'qgelu.sites' is damaged"),
        ([7], "'m.onnx': metadata 'qgelu.sites' is damaged"),
    ]:
        entry.value = json.dumps(damaged)
        with pytest.raises(QGeluError, match=reason.replace("'m.onnx'", "m.onnx")):
            quantized_sites(model.model, "m.onnx")


def test_deterministic():
    first, second = (quantize(ffn_model(), batches()).model.SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_names_never_collide():
    model = ffn_model()
    plain = quantize(model, batches()).model
    taken = {name for node in plain.graph.node for name in [node.name, *node.output] if name.startswith("qgelu/")}
    for name in sorted(taken):
        model.graph.node.append(helper.make_node("Identity", ["x"], [name], name=f"{name}/Identity"))
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    result = quantize(model, batches()).model
    inputs = batches(1)[0]
    np.testing.assert_array_equal(zoo.run(plain, inputs)[0], zoo.run(result, inputs)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scope": "layer"}, "scope 'layer' is not known"),
        ({"bits": 1}, "bits must be from 2 to 16, not 1"),
        ({"bits": 17}, "bits must be from 2 to 16, not 17"),
        ({"bits": 12}, "integer FFNs have 2 to 8 bits, not 12"),
        ({"target": "tensorrt"}, "target 'tensorrt' is not known"),
        ({"method": "best"}, "method 'best' is not known"),
        ({"sites": ["nothing*"]}, r"no site is named 'nothing\*'"),
        ({"weight_bits": 5}, "weight bits must be 8, 7 or 4, not 5"),
        ({"weight_bits": 4, "scope": "activation"}, "4-bit weights are those of whole FFNs"),
        ({"weight_bits": 7, "target": "qdq"}, "target 'qdq' writes 8-bit weights, not 7"),
        ({"target": "qdq", "bits": 4}, "target 'qdq' writes 8-bit codes, not 4"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(QGeluError, match=message):
        quantize(ffn_model(), batches(), **options)


def test_inputs_that_are_refused():
    model = ffn_model()
    result = quantize(model, batches())
    with pytest.raises(QGeluError, match="quantized by qgelu already"):
        quantize(result.model, batches())
    assert METADATA_KEY in {entry.key for entry in result.model.metadata_props}
    identity = small_model([helper.make_node("Identity", ["x"], ["y"])])
    with pytest.raises(QGeluError, match="no GELU, QuickGELU or SiLU in the model"):
        quantize(identity, batches())
    with pytest.raises(QGeluError, match="give either data or a calibration"):
        quantize(model)
    other = calibrate(small_model(gelu_nodes("x", "y"), constants()), batches())
    with pytest.raises(QGeluError, match="made for another model"):
        quantize(model, calibration=other)
    with pytest.raises(CalibrationError):
        quantize(model, [])


def test_sites_are_chosen_by_name_or_glob():
    model = zoo.load("bert_gelu.ts17")
    names = [site.name for site in quantize(model, calibration=calibrated("bert_gelu.ts17")).sites]
    for pattern in (names[1], f"*{names[1][3:]}"):
        chosen = quantize(model, calibration=calibrated("bert_gelu.ts17"), sites=[pattern])
        assert [site.name for site in chosen.sites] == [names[1]]


def test_a_lone_fused_bias_is_within_the_range():
    bias = np.array([0, 1, -2, 40, 3, -50], np.float32)
    nodes = [helper.make_node("BiasGelu", ["x", "bias"], ["y"], name="fused", domain="com.microsoft")]
    model = small_model(nodes, [("bias", bias)])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    result = quantize(model, batches())
    assert result.sites[0].scope == "activation"
    inputs = batches(1, seed=8)[0]
    expected, actual = zoo.run(model, inputs)[0], zoo.run(result.model, inputs)[0]
    assert np.abs(expected - actual).max() < 0.2
