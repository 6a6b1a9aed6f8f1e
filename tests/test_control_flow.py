"""Activations inside If branches, Loop and Scan bodies and model-local functions: found, calibrated, rewritten, run."""

import numpy as np
import onnx
import pytest
import zoo
from onnx import helper, numpy_helper, parser

import calibration
from qgelu.errors import QGeluError
from qgelu.graph.normal_form import normal_form
from qgelu.graph.sites import find_sites
from qgelu.pipeline import calibrate, quantize
from qgelu.verification import verify

FFN = """
  p = MatMul(IN, w1)
  h = Add(p, b1)
  gate = Sigmoid(h)
  g = Mul(h, gate)
  q = MatMul(g, w2)
  OUT = Add(q, b2)
"""


def ffn(source, target, suffix=""):
    """Return an FFN as text; its inner tensors end with the suffix."""
    text = FFN.replace("IN", source).replace("OUT", target)
    for name in ("p", "h", "gate", "g", "q"):
        for before, after in ((" ", " ="), ("(", ","), ("(", ")"), (" ", ")")):
            text = text.replace(f"{before}{name}{after}", f"{before}{name}{suffix}{after}")
    return text


def weights():
    rng = np.random.default_rng(3)
    shapes = {"w1": (4, 6), "b1": (6,), "w2": (6, 4), "b2": (4,)}
    return {name: (0.5 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def model_of(signature, body, functions="", imports='"" : 17'):
    """Return a model in ONNX's text form, with the FFN's weights as initializers of its main graph."""
    model = parser.parse_model(f"<ir_version: 8, opset_import: [{imports}]>\ng {signature} {{ {body} }} {functions}")
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights().items())
    return model


def branches(then, other="", nested=lambda text: text):
    """Return a model with an If that is taken where c is true."""
    other = other or "b = Identity(x)"
    body = f"y = If(c) <then_branch = t () => (float[n,4] a) {{ {nested(then)} }}, "
    return model_of("(float[n,4] x, bool c) => (float[n,4] y)", body + f"else_branch = e () => (b) {{ {other} }}>")


def samples(rows=50, **more):
    rng = np.random.default_rng(4)
    return [{"x": rng.normal(size=(rows, 4)).astype(np.float32), **more} for _ in range(4)]


def scalar(value):
    return np.array(value)


TAKEN = samples(c=scalar(True))


def loop(body_ffn, extra=""):
    """Return x -> FFN -> FFN -> ... as often as trips says; all results too."""
    return model_of(
        "(float[n,4] x, int64 trips) => (float[n,4] y, float[k,n,4] ys)",
        "c = Constant<value = bool {1}>()\n"
        "y, ys = Loop(trips, c, x) <body = t (int64 i, bool cc, float[n,4] s) => (bool co, float[n,4] o, float[n,4] e)"
        f" {{ co = Identity(cc) {body_ffn} e = Identity(o) {extra} }}>",
    )


def scan(body_ffn):
    """Return the FFN of each of x's slices along its second axis, backwards."""
    return model_of(
        "(float[k,n,4] x) => (float[k,l,4] ys)",
        "ys = Scan<num_scan_inputs = 1, scan_output_axes = [1], scan_output_directions = [1], scan_input_axes = [1],"
        f" body = t (float[k,4] s) => (float[k,4] o) {{ {body_ffn} }}>(x)",
    )


def slices():
    rng = np.random.default_rng(5)
    return [{"x": rng.normal(size=(20, 3, 4)).astype(np.float32)} for _ in range(4)]


MODELS = {
    "If": (branches(ffn("x", "a")), TAKEN),
    "If in If": (
        branches(
            f"a = If(c) <then_branch = t2 () => (float[n,4] a2) {{ {ffn('x', 'a2')} }}, "
            "else_branch = e2 () => (b2x) { b2x = Neg(x) }>"
        ),
        TAKEN,
    ),
    "Loop": (loop(ffn("s", "o")), samples(trips=scalar(3))),
    "If in Loop": (
        loop(
            "two = Constant<value = int64 {2}>() later = Less(i, two) "
            f"o = If(later) <then_branch = t2 () => (float[n,4] a2) {{ {ffn('s', 'a2')} }}, "
            "else_branch = e2 () => (b2x) { b2x = Neg(s) }>"
        ),
        samples(trips=scalar(4)),
    ),
    "Scan": (scan(ffn("s", "o")), slices()),
}


@pytest.mark.parametrize("target", ["portable", "qdq"])
@pytest.mark.parametrize("scope", ["ffn", "activation"])
@pytest.mark.parametrize("key", MODELS)
def test_an_ffn_in_control_flow(key, scope, target):
    model, data = MODELS[key]
    before = model.SerializeToString()
    result = quantize(model, data, scope=scope, target=target)
    assert model.SerializeToString() == before
    assert [site.scope for site in result.sites] == [scope]
    onnx.checker.check_model(result.model, full_check=True)
    for expected, actual in zip(zoo.run(model, data[1]), zoo.run(result.model, data[1]), strict=True):
        assert 0 < zoo.relative_error(expected, actual) < 0.03
    assert verify(model, result, data).passed


@pytest.mark.parametrize("key", MODELS)
def test_what_is_observed_is_what_is_computed(key):
    """The tensor that enters the activation, recomputed outside, has the range that was observed."""
    model, data = MODELS[key]
    site = find_sites(model).sites[0]
    seen = calibrate(model, data).tensors[site.input]
    values = weights()

    def first(x):
        return x @ values["w1"] + values["b1"]

    def block(x):
        hidden = first(x)
        return (hidden / (1 + np.exp(-hidden))) @ values["w2"] + values["b2"]

    entered = []
    for feed in data:
        x = feed["x"]
        for index in range({"Loop": 3, "If in Loop": 2}.get(key, 1)):
            entered.append(first(x))
            x = block(x)
            assert index >= 0
    assert seen.count == sum(array.size for array in entered)
    np.testing.assert_allclose(seen.minimum, min(array.min() for array in entered), rtol=1e-4)
    np.testing.assert_allclose(seen.maximum, max(array.max() for array in entered), rtol=1e-4)


def test_both_branches_may_name_their_tensors_alike():
    model = branches(ffn("x", "a"), ffn("x", "b"))
    data = [feed | {"c": scalar(bool(number % 2))} for number, feed in enumerate(samples())]
    assert len({site.input for site in find_sites(normal_form(model)).sites}) == 2
    result = quantize(model, data)
    assert [site.scope for site in result.sites] == ["ffn", "ffn"]
    for feed in data[:2]:
        assert 0 < zoo.relative_error(zoo.run(model, feed)[0], zoo.run(result.model, feed)[0]) < 0.03


def test_a_branch_that_never_ran_is_named():
    model = branches(ffn("x", "a"))
    with pytest.raises(calibration.CalibrationError, match=r"tensor 'h' was never computed: its branch or loop"):
        calibrate(model, samples(c=scalar(False)))


def test_a_loop_whose_tensors_grow():
    """Every iteration sees one row more: its tensors cannot be stacked."""
    body = f"r = Concat<axis = 0>(s, x) {ffn('r', 'o')}"
    model = loop(body)
    # Results that grow cannot be stacked either: they are left out.
    del model.graph.output[1]
    node = model.graph.node[1]
    del node.output[1]
    del node.attribute[0].g.output[2]
    node.attribute[0].g.input[2].type.tensor_type.shape.dim[0].dim_param = "m"
    data = samples(2, trips=scalar(3))
    seen = calibrate(model, data).tensors["h"]
    assert seen.count == 4 * 6 * (4 + 6 + 8)
    result = quantize(model, data)
    assert zoo.relative_error(zoo.run(model, data[0])[0], zoo.run(result.model, data[0])[0]) < 0.05


def test_scan_in_scan():
    inner = f"o = Scan<num_scan_inputs = 1, body = t2 (float[4] r) => (float[4] o2) {{ {ffn('r', 'o2')} }}>(s)"
    model, data = scan(inner), slices()
    result = quantize(model, data, scope="activation")
    assert zoo.relative_error(zoo.run(model, data[0])[0], zoo.run(result.model, data[0])[0]) < 0.03


def test_an_if_in_a_scan_is_a_near_miss():
    inner = (
        "yes = Constant<value = bool {1}>() o = If(yes) "
        f"<then_branch = t2 () => (a2) {{ {ffn('s', 'a2')} }}, else_branch = e2 () => (b2x) {{ b2x = Neg(s) }}>"
    )
    findings = find_sites(scan(inner))
    assert findings.sites == ()
    assert findings.near_misses[0].reason.startswith("silu in the then_branch of If 'o' inside a Scan")
    with pytest.raises(calibration.CalibrationError, match="is inside a If in a Scan"):
        calibration.capture(scan(inner), [calibration.TensorRequest("h")], slices())


def test_tensors_from_outside_a_branch():
    """The layer before is outside the branch, and so is what the branch multiplies with."""
    outside = "p = MatMul(x, w1) h = Add(p, b1) "
    inside = "gate = Sigmoid(h) g = Mul(h, gate) q = MatMul(g, w2) a = Add(q, b2)"
    model = branches(inside)
    parsed = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[n,4] x, float[4,6] w1, float[6] b1) => (h) {'
        + outside
        + "}"
    )
    nodes = [*parsed.graph.node, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    site = find_sites(model).sites[0]
    assert (site.scope, site.input, site.shape) == ("activation", "h", ("n", 6))
    assert "outside" in site.reason
    result = quantize(model, TAKEN)
    assert zoo.relative_error(zoo.run(model, TAKEN[0])[0], zoo.run(result.model, TAKEN[0])[0]) < 0.03


@pytest.mark.parametrize("opset", [11, 13, 14, 21])
def test_opsets_of_branches(opset):
    model = branches(ffn("x", "a"))
    model.opset_import[0].version = opset
    result = quantize(model, TAKEN)
    assert result.sites[0].scope == "ffn"
    assert zoo.relative_error(zoo.run(model, TAKEN[0])[0], zoo.run(result.model, TAKEN[0])[0]) < 0.03


FUNCTIONS = """
<domain: "local", opset_import: ["" : 17, "local" : 1]>
Linear (x, w, b) => (y) { p = MatMul(x, w) y = Add(p, b) }
<domain: "local", opset_import: ["" : 17, "local" : 1]>
Act <alpha> (x) => (y) { a = Constant<value_float: float = @alpha>() s = Mul(a, x) g = Sigmoid(s) y = Mul(x, g) }
<domain: "local", opset_import: ["" : 17, "local" : 1]>
Mlp (x, w1, b1, w2, b2) => (y) {
  h = local.Linear(x, w1, b1) g = local.Act<alpha = 1.702>(h) y = local.Linear(g, w2, b2)
}
"""


@pytest.mark.parametrize(
    "body",
    [
        "a = local.Mlp(x, w1, b1, w2, b2) y = local.Mlp(a, w1, b1, w2, b2)",
        "h = local.Linear(x, w1, b1) g = local.Act<alpha = 1.702>(h) y = local.Linear(g, w2, b2)",
    ],
)
def test_layers_in_functions(body):
    model = model_of("(float[n,4] x) => (float[n,4] y)", body, FUNCTIONS, '"" : 17, "local" : 1')
    data = samples()
    result = quantize(model, data)
    assert {(site.activation, site.scope) for site in result.sites} == {("quick_gelu", "ffn")}
    assert len(result.sites) == body.count("Mlp") or "Act" in body
    assert not any(node.domain == "local" for node in result.model.graph.node)
    assert 0 < zoo.relative_error(zoo.run(model, data[0])[0], zoo.run(result.model, data[0])[0]) < 0.06
    assert verify(model, result, data).passed


def test_functions_that_hold_no_layer_stay():
    twice = '<domain: "local", opset_import: ["" : 17]> Twice (a) => (b) { b = Add(a, a) }'
    model = model_of("(float[n,4] x) => (y)", ffn("x", "o") + "y = local.Twice(o)", twice, '"" : 17, "local" : 1')
    assert normal_form(model) is model
    assert quantize(model, samples()).model.graph.node[-1].op_type == "Twice"


def test_a_function_of_another_opset_stays_and_is_named():
    functions = FUNCTIONS.replace('"" : 17', '"" : 16')
    model = model_of("(float[n,4] x) => (y)", "y = local.Mlp(x, w1, b1, w2, b2)", functions, '"" : 17, "local" : 1')
    with pytest.raises(QGeluError, match="no GELU"):
        calibrate(model, samples())
    assert "'Mlp'" in " ".join(miss.reason for miss in find_sites(model).near_misses)


def test_large_weights_do_not_pass_through_the_inliner(monkeypatch):
    monkeypatch.setattr("qgelu.graph.normal_form._LARGE", 5)
    body = "y = local.Mlp(x, w1, b1, w2, b2)"
    model = model_of("(float[n,4] x) => (y)", body, FUNCTIONS, '"" : 17, "local" : 1')
    form = normal_form(model)
    assert [value.name for value in form.graph.input] == ["x"]
    assert {tensor.name for tensor in form.graph.initializer} == set(weights())
    assert find_sites(form).sites[0].scope == "ffn"


def test_qgelu_inspect_says_which_branch():
    site = find_sites(MODELS["If in Loop"][0]).sites[0]
    assert site.subgraph == "then_branch of If 'o'"
    assert helper.printable_type(helper.make_tensor_type_proto(site.element_type, None)) == "FLOAT"
