"""The finder: every spelling of an activation is a site, and nothing else is."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from site_models import (
    CONSTANT_STYLES,
    SPELLINGS,
    SQRT_2,
    SQRT_2_OVER_PI,
    Builder,
    erf_plus_one,
    every_spelling,
    ffn_model,
    model_of,
    tanh_argument,
    weight,
)

from qgelu.activations import evaluate
from qgelu.errors import QGeluError
from qgelu.graph.normal_form import normal_form
from qgelu.graph.sites import Findings, Site, find_sites

ZOO = Path(__file__).parent / "data" / "zoo"


def the_site(model: onnx.ModelProto) -> Site:
    findings = find_sites(model)
    assert findings.near_misses == ()
    assert len(findings.sites) == 1
    return findings.sites[0]


def bare_model(spelling: Callable[[Builder, str], str], builder: Builder | None = None, **options) -> onnx.ModelProto:
    """Return x -> spelling -> y, y being the spelling's own output."""
    b = builder or Builder()
    return model_of(b, {"x": ("n", 5)}, [spelling(b, "x")], **options)


@pytest.mark.parametrize(("activation", "key"), every_spelling())
def test_every_spelling_is_found(activation, key):
    model = bare_model(SPELLINGS[activation][key], opset=24 if key == "Swish" else 20)
    before = model.SerializeToString()
    site = the_site(model)
    assert (site.activation, site.input, site.output) == (activation, "x", model.graph.output[0].name)
    assert site.alpha == pytest.approx(1.702, abs=1e-6)
    assert site.scope == "activation"
    assert site.bias is None
    assert model.SerializeToString() == before
    assert set(site.region) <= {name for node in model.graph.node for name in node.output}
    assert site.region[-1] == site.output


@pytest.mark.parametrize(("activation", "key"), every_spelling())
def test_spellings_mean_what_they_say(activation, key):
    """The test models themselves compute the activation, according to onnx.reference."""
    model = bare_model(SPELLINGS[activation][key], opset=24 if key == "Swish" else 20)
    if any(node.domain for node in model.graph.node) or key == "Swish":
        pytest.skip("onnx.reference has no such operator")
    x = np.linspace(-4, 4, 30, dtype=np.float32).reshape(6, 5)
    (y,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(y, evaluate(x, activation), atol=2e-6)


@pytest.mark.parametrize("style", CONSTANT_STYLES)
@pytest.mark.parametrize(
    ("activation", "key"),
    [
        ("gelu", "half x first"),
        ("gelu_tanh", "Pow"),
        ("gelu_tanh", "factored"),
        ("quick_gelu", "sigmoid"),
        ("silu", "tanh"),
    ],
)
def test_constants_in_every_form(activation, key, style):
    site = the_site(bare_model(SPELLINGS[activation][key], Builder(style)))
    assert (site.activation, site.input) == (activation, "x")
    assert site.alpha == pytest.approx(1.702, rel=2**-8)


@pytest.mark.parametrize(("activation", "key"), every_spelling())
def test_float16_constants_do_not_change_the_variant(activation, key):
    b = Builder(dtype=np.float16)
    model = bare_model(SPELLINGS[activation][key], b, opset=24 if key == "Swish" else 20, elem_type=TensorProto.FLOAT16)
    site = the_site(model)
    assert site.activation == activation
    assert site.alpha == pytest.approx(1.702, rel=2**-11)


@pytest.mark.parametrize("alpha", [0.01, 0.5, 1.0, 1.5, 1.702, 1.7, 2.0, 5.0, 30.0])
def test_any_alpha_is_fitted(alpha):
    def spelling(b: Builder, x: str) -> str:
        return b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, alpha)))

    site = the_site(bare_model(spelling))
    if alpha == 1.0:
        assert site.activation == "silu"
    else:
        assert site.activation == "quick_gelu"
        assert site.alpha == pytest.approx(alpha, rel=1e-6)


def test_alpha_attribute_of_quick_gelu():
    model = bare_model(lambda b, x: b.op("QuickGelu", x, domain="com.microsoft", alpha=1.25))
    assert the_site(model).alpha == 1.25


# What is none ---------------------------------------------------------------------------------------------------


def _mish(b: Builder, x: str) -> str:
    return b.op("Mul", x, b.op("Tanh", b.op("Softplus", x)))


def _swapped(b: Builder, x: str) -> str:
    cubic = b.op("Mul", b.op("Pow", x, 3.0), SQRT_2_OVER_PI)
    inner = b.op("Mul", b.op("Add", x, cubic), 0.044715)
    return b.op("Mul", b.op("Mul", x, 0.5), b.op("Add", 1.0, b.op("Tanh", inner)))


def _vector(b: Builder, x: str) -> str:
    scaled = b.op("Div", x, b.array(np.linspace(1.3, 1.5, 5, dtype=np.float32), "vector"))
    return b.op("Mul", b.op("Mul", x, 0.5), b.op("Add", b.op("Erf", scaled), 1.0))


def _vector_slope(b: Builder, x: str) -> str:
    return b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, b.array(np.ones(5, np.float32), "vector"))))


def _without_sqrt_2(b: Builder, x: str) -> str:
    return b.op("Mul", b.op("Mul", x, 0.5), b.op("Add", b.op("Erf", x), 1.0))


def _without_half(b: Builder, x: str) -> str:
    return b.op("Mul", x, erf_plus_one(b, x))


def _slightly_off(b: Builder, x: str) -> str:
    return b.op("Mul", b.op("Mul", x, 0.501), erf_plus_one(b, x))


def _between(b: Builder, x: str) -> str:
    gates = b.op("Add", b.op("Erf", b.op("Div", x, SQRT_2)), b.op("Tanh", tanh_argument(b, x)))
    return b.op("Mul", x, b.op("Mul", b.op("Add", gates, 2.0), 0.25))


@pytest.mark.parametrize(
    ("spelling", "word"),
    [
        (_mish, "off by 0.1"),
        (_swapped, "off by"),
        (_vector, "'vector' has 5 elements"),
        (_vector_slope, "'vector' has 5 elements"),
        (_without_sqrt_2, "closest to quick_gelu"),
        (_without_half, "off by 12 at x = 12"),
        (_between, "as close to"),
        (_slightly_off, "closest to gelu, but off by 0.024 at x = 12"),
        (lambda b, x: b.op("Div", x, b.op("Add", 1.01, b.op("Exp", b.op("Neg", x)))), "off by"),
    ],
)
def test_near_misses_are_reported_and_not_taken(spelling, word):
    findings = find_sites(bare_model(spelling))
    assert findings.sites == ()
    assert len(findings.near_misses) == 1
    assert word in findings.near_misses[0].reason
    assert findings.near_misses[0].anchor.startswith("node_")


def test_two_different_inputs_are_a_near_miss():
    b = Builder()
    y = b.op("Mul", b.op("Mul", "other", 0.5), erf_plus_one(b, "x"))
    findings = find_sites(model_of(b, {"x": ("n", 5), "other": ("n", 5)}, [y]))
    assert findings.sites == ()
    assert "two different inputs" in findings.near_misses[0].reason


def _softmax(b: Builder, x: str) -> str:
    power = b.op("Exp", b.op("Sub", x, b.op("ReduceMax", x)))
    return b.op("Div", power, b.op("ReduceSum", power))


def _elu(b: Builder, x: str) -> str:
    below = b.op("Sub", b.op("Exp", b.op("Min", x, 0.0)), 1.0)
    return b.op("Add", b.op("Relu", x), below)


def _lstm_gates(b: Builder, x: str) -> str:
    gates = [b.op("MatMul", x, b.array(weight(5, 5, seed))) for seed in range(4)]
    cell = b.op(
        "Add",
        b.op("Mul", b.op("Sigmoid", gates[0]), b.op("Tanh", gates[1])),
        b.op("Mul", b.op("Sigmoid", gates[2]), x),
    )
    return b.op("Mul", b.op("Sigmoid", gates[3]), b.op("Tanh", cell))


def _glu(b: Builder, x: str) -> str:
    gate = b.op("Sigmoid", b.op("MatMul", x, b.array(weight(5, 5))))
    return b.op("Mul", x, gate)


@pytest.mark.parametrize(
    "spelling",
    [
        _softmax,
        _elu,
        _lstm_gates,
        _glu,
        lambda b, x: b.op("Tanh", x),
        lambda b, x: b.op("Tanh", b.op("Add", b.op("MatMul", x, b.array(weight(5, 5))), b.array(weight(1, 5)[0]))),
        lambda b, x: b.op("Sigmoid", x),
        lambda b, x: b.op("Softplus", x),
        lambda b, x: b.op("Exp", b.op("Neg", b.op("Mul", x, x))),
        lambda b, x: b.op("Mul", x, b.op("Tanh", x)),
        lambda b, x: b.op("Mul", x, b.op("HardSigmoid", x)),
        lambda b, x: b.op("Mul", x, b.op("Div", b.op("Clip", b.op("Add", x, 3.0), 0.0, 6.0), 6.0)),
        lambda b, x: b.op("Elu", x),
        lambda b, x: b.op("Relu", x),
        lambda b, x: b.op("Mul", 0.5, erf_plus_one(b, x)),
    ],
)
def test_other_functions_are_neither_sites_nor_near_misses(spelling):
    assert find_sites(bare_model(spelling)) == Findings((), ())


# How far a region goes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "after",
    [
        lambda b, y: b.op("Clip", y, -10.0, 10.0),
        lambda b, y: b.op("Clip", y, -65504.0, 65504.0),
        lambda b, y: b.op("Relu", y),
        lambda b, y: b.op("Add", y, "x"),
        lambda b, y: b.op("Mul", y, b.array(weight(1, 5)[0])),
        lambda b, y: b.op("Mul", y, "other"),
        lambda b, y: b.op("Identity", y),
        lambda b, y: b.op("Mul", y, 3.0),
    ],
)
@pytest.mark.parametrize(
    ("activation", "key"), [("gelu", "half x first"), ("silu", "sigmoid"), ("gelu", "ai.onnx Gelu")]
)
def test_a_region_ends_at_the_activation(after, activation, key):
    b = Builder()
    y = SPELLINGS[activation][key](b, "x")
    z = after(b, y)
    site = the_site(model_of(b, {"x": ("n", 5), "other": ("n", 5)}, [z]))
    assert (site.activation, site.output) == (activation, y)


@pytest.mark.parametrize(
    "before",
    [
        lambda b, x: b.op("Mul", x, 2.0),
        lambda b, x: b.op("Add", x, 1.0),
        lambda b, x: b.op("Add", x, "other"),
        lambda b, x: b.op("Identity", x),
        lambda b, x: b.op("Tanh", x),
        lambda b, x: b.op("Mul", b.op("Sigmoid", x), x),
    ],
)
@pytest.mark.parametrize("key", ["half x first", "ai.onnx Gelu", "multiplied out"])
def test_a_region_begins_at_the_activation(before, key):
    b = Builder()
    x = before(b, "x")
    y = SPELLINGS["gelu"][key](b, x)
    sites = find_sites(model_of(b, {"x": ("n", 5), "other": ("n", 5)}, [y])).sites
    assert (sites[-1].activation, sites[-1].input, sites[-1].output) == ("gelu", x, y)
    assert x not in sites[-1].region


def test_two_activations_may_share_their_gate():
    b = Builder()
    gate = b.op("Sigmoid", "x")
    outputs = [b.op("Mul", "x", gate), b.op("Mul", gate, "x")]
    sites = find_sites(model_of(b, {"x": ("n", 5)}, outputs)).sites
    assert [site.output for site in sites] == outputs


def test_one_activation_after_another():
    b = Builder()
    first = SPELLINGS["silu"]["sigmoid"](b, "x")
    second = SPELLINGS["silu"]["sigmoid"](b, first)
    sites = find_sites(model_of(b, {"x": ("n", 5)}, [second])).sites
    assert [(site.input, site.output) for site in sites] == [("x", first), (first, second)]


def test_interior_tensors_may_be_read_and_be_outputs():
    b = Builder()
    erf = b.op("Erf", b.op("Div", "x", SQRT_2), output="erf")
    gate = b.op("Add", erf, 1.0)
    y = b.op("Mul", b.op("Mul", "x", gate), 0.5)
    other = b.op("Sqrt", gate)
    assert the_site(model_of(b, {"x": ("n", 5)}, [y, "erf", other])).output == y


def test_constants_of_more_dimensions_than_the_input_are_refused():
    def spelling(b: Builder, x: str) -> str:
        return b.op("Mul", b.op("Mul", x, b.array(np.full((1, 1, 1), 0.5, np.float32), "half")), erf_plus_one(b, x))

    findings = find_sites(bare_model(spelling))
    assert findings.sites == ()
    assert "'half' has 3 dimensions" in findings.near_misses[0].reason


def test_casts_inside_and_around():
    b = Builder()
    wide = b.op("Cast", "x", to=TensorProto.FLOAT)
    y = SPELLINGS["gelu_tanh"]["Pow"](b, wide)
    narrow = b.op("Cast", y, to=TensorProto.FLOAT16)
    site = the_site(model_of(b, {"x": ("n", 5)}, [narrow], elem_type=TensorProto.FLOAT16))
    assert (site.input, site.output) == ("x", narrow)
    assert site.region[0] == wide

    b = Builder(dtype=np.float16)
    wide = b.op("Cast", "x", to=TensorProto.FLOAT)
    gate = b.op("Cast", b.op("Sigmoid", wide), to=TensorProto.FLOAT16)
    y = b.op("Mul", "x", gate)
    site = the_site(model_of(b, {"x": ("n", 5)}, [y], elem_type=TensorProto.FLOAT16))
    assert (site.activation, site.input, site.output) == ("silu", "x", y)


def test_casts_on_one_side_stay_outside():
    b = Builder()
    wide = b.op("Cast", "x", to=TensorProto.FLOAT)
    y = SPELLINGS["gelu"]["half x first"](b, wide)
    site = the_site(model_of(b, {"x": ("n", 5)}, [y], elem_type=TensorProto.FLOAT16))
    assert (site.input, site.output) == (wide, y)


# Names, opsets, odd models ----------------------------------------------------------------------------------------


def test_names_are_unique_and_stable():
    b = Builder()
    first = SPELLINGS["gelu"]["ai.onnx Gelu"](b, "x")
    second = SPELLINGS["gelu"]["ai.onnx Gelu"](b, first)
    third = SPELLINGS["gelu"]["ai.onnx Gelu"](b, second)
    b.nodes[0].name = b.nodes[1].name = "same"
    b.nodes[2].name = ""
    sites = find_sites(model_of(b, {"x": ("n", 5)}, [third])).sites
    assert [site.name for site in sites] == [first, second, third]
    b.nodes[0].name, b.nodes[1].name = "one", "two"
    sites = find_sites(model_of(b, {"x": ("n", 5)}, [third])).sites
    assert [site.name for site in sites] == ["one", "two", third]


@pytest.mark.parametrize("spelling", [_mish, SPELLINGS["gelu"]["half x first"], SPELLINGS["silu"]["exp"]])
def test_nodes_need_not_be_in_order(spelling):
    model = bare_model(spelling)
    expected = find_sites(model)
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    found = find_sites(model)
    assert [(site.input, site.output) for site in found.sites] == [(site.input, site.output) for site in expected.sites]
    assert len(found.near_misses) == len(expected.near_misses)


def test_a_circle_is_refused():
    b = Builder()
    b.op("Add", "x", "b", output="a")
    b.op("Neg", "a", output="b")
    with pytest.raises(QGeluError, match="depends on itself"):
        find_sites(model_of(b, {"x": ("n", 5)}, ["b"]))


def test_stated_shapes_may_be_wrong():
    model = ffn_model()
    model.graph.value_info.extend(
        helper.make_tensor_value_info(node.output[0], TensorProto.INT64, (1, 2, 3, 4)) for node in model.graph.node
    )
    assert the_site(model).scope == "ffn"


def test_damaged_constants_are_named():
    model = bare_model(SPELLINGS["gelu"]["half x first"])
    model.graph.initializer[0].raw_data = b"\0\0"
    with pytest.raises(QGeluError, match=model.graph.initializer[0].name):
        find_sites(model)


def test_weights_that_were_not_loaded_are_named(tmp_path):
    model = ffn_model()
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    lean = onnx.load_model(tmp_path / "m.onnx", load_external_data=False)
    with pytest.raises(QGeluError, match="was not loaded"):
        find_sites(lean)


def test_activations_in_subgraphs():
    inner = Builder()
    y = SPELLINGS["gelu"]["half x first"](inner, "x")
    body = helper.make_graph(inner.nodes, "body", [], [onnx.ValueInfoProto(name=y)], inner.initializers)
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"])], "other", [], [onnx.ValueInfoProto(name="same")]
    )
    b = Builder()
    z = b.op("If", "flag", then_branch=body, else_branch=other)
    model = model_of(b, {"x": ("n", 5)}, [z])
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, ()))
    site = the_site(model)
    assert (site.activation, site.input, site.output, site.scope) == ("gelu", "x", y, "activation")
    assert site.subgraph.startswith("then_branch of If")


def _function(name: str, build: Callable[[Builder, str], str], attributes: tuple[str, ...] = ()) -> onnx.FunctionProto:
    b = Builder("value")
    y = build(b, "x")
    return helper.make_function("local", name, ["x"], [y], b.nodes, [helper.make_opsetid("", 20)], attributes)


def test_a_function_that_is_the_activation_is_a_site():
    function = _function("Activation", SPELLINGS["gelu_tanh"]["Pow"])
    b = Builder()
    y = b.op("Activation", "x", domain="local")
    site = the_site(model_of(b, {"x": ("n", 5)}, [y], functions=[function]))
    assert (site.activation, site.input, site.output, site.region) == ("gelu_tanh", "x", y, (y,))


def test_a_function_takes_its_attributes_from_the_call():
    function = _function("Activation", lambda b, x: b.op("Gelu", x), ("kind",))
    reference = function.node[0].attribute.add()
    reference.name, reference.ref_attr_name = "approximate", "kind"
    reference.type = onnx.AttributeProto.STRING
    b = Builder()
    y = b.op("Activation", "x", domain="local", kind="tanh")
    z = b.op("Activation", y, domain="local", kind="none")
    sites = find_sites(model_of(b, {"x": ("n", 5)}, [z], functions=[function])).sites
    assert [site.activation for site in sites] == ["gelu_tanh", "gelu"]


def test_an_activation_inside_a_larger_function():
    def block(b: Builder, x: str) -> str:
        return b.op("ReduceSum", SPELLINGS["gelu"]["half x first"](b, x))

    b = Builder()
    y = b.op("Block", "x", domain="local")
    model = model_of(b, {"x": ("n", 5)}, [y], functions=[_function("Block", block)])
    assert find_sites(model).sites == ()
    assert "inside the function 'Block'" in find_sites(model).near_misses[0].reason
    assert the_site(normal_form(model)).activation == "gelu"


@pytest.mark.parametrize("operator", ["BiasGelu", "FastGelu"])
def test_fused_bias(operator):
    b = Builder()
    bias = b.array(np.arange(6, dtype=np.float32), "fused_bias")
    product = b.op("MatMul", "x", b.array(weight(4, 6)))
    y = b.op(operator, product, bias, domain="com.microsoft")
    z = b.op("MatMul", y, b.array(weight(6, 4)))
    site = the_site(model_of(b, {"x": ("n", 4)}, [z]))
    assert site.activation == {"BiasGelu": "gelu", "FastGelu": "gelu_tanh"}[operator]
    assert (site.input, site.output, site.scope) == (product, y, "ffn")
    np.testing.assert_array_equal(site.bias, np.arange(6))
    np.testing.assert_array_equal(site.ffn.first.bias, np.arange(6))


def test_fused_bias_that_is_not_constant():
    b = Builder()
    y = b.op("BiasGelu", "x", "other", domain="com.microsoft")
    findings = find_sites(model_of(b, {"x": ("n", 5), "other": (5,)}, [y]))
    assert findings.sites == ()
    assert "'other' of BiasGelu is not constant" in findings.near_misses[0].reason


# Exporters' models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "activation", "scope", "shape_nodes"),
    [
        ("bert_gelu.ts17", "gelu", "ffn", 0),
        ("bert_gelu_10.ts17", "gelu", "activation", 0),
        ("albert_gelu_new.ts17", "gelu_tanh", "ffn", 0),
        ("gpt2_gelu_new.dyn18", "gelu_tanh", "ffn", 1),
        ("clipvision_quickgelu.dyn20", "quick_gelu", "ffn", 0),
        ("t5enc_gated_gelu.ts17", "gelu_tanh", "activation", 0),
    ],
)
def test_exported_models(file, activation, scope, shape_nodes):
    findings = find_sites(onnx.load(ZOO / f"{file}.onnx"))
    assert findings.near_misses == ()
    assert [(site.activation, site.alpha, site.scope) for site in findings.sites] == [(activation, 1.702, scope)] * 2
    for site in findings.sites:
        assert bool(site.reason) == (scope == "activation")
        if site.ffn is not None:
            assert len(site.ffn.before) == len(site.ffn.after) == shape_nodes
            assert site.ffn.first.weight.shape == site.ffn.second.weight.shape[::-1]
    if file.startswith("albert"):
        assert findings.sites[0].ffn.first.weight_name == findings.sites[1].ffn.first.weight_name
    if file.startswith("bert_gelu_10"):
        assert "Clip" in findings.sites[0].reason


def test_tied_weights_behind_identity_have_one_name():
    b = Builder()
    stored = b.array(weight(4, 4), "stored")
    x = b.op("Gelu", b.op("MatMul", "x", stored))
    y = b.op("Gelu", b.op("MatMul", x, b.op("Identity", stored)))
    z = b.op("MatMul", y, b.op("Transpose", b.op("Transpose", stored, perm=[1, 0]), perm=[1, 0]))
    sites = find_sites(model_of(b, {"x": ("n", 4)}, [z])).sites
    assert [site.ffn.first.weight_name for site in sites] == ["stored", "stored"]
    assert sites[1].ffn.second.weight_name == "stored"
    assert numpy_helper.to_array(b.initializers[0]).shape == (4, 4)
