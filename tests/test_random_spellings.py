"""Random spellings: rewriting a formula without changing its value never hides the activation."""

import math
from typing import Any

import numpy as np
import onnx
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from site_models import CONSTANT_STYLES, SQRT_2, SQRT_2_OVER_PI, Builder, model_of

from qgelu.graph.names import every_node
from qgelu.graph.sites import find_sites
from qgelu.pipeline import quantize

# A formula is "x", a number, or (operator, operands...).
Formula = Any

_ERF = ("Erf", ("Div", "x", SQRT_2))
_CUBIC = ("Mul", SQRT_2_OVER_PI, ("Add", "x", ("Mul", 0.044715, ("Pow", "x", 3.0))))
FORMULAS: dict[str, list[Formula]] = {
    "gelu": [
        ("Mul", ("Mul", 0.5, "x"), ("Add", 1.0, _ERF)),
        ("Mul", 0.5, ("Add", "x", ("Mul", "x", _ERF))),
    ],
    "gelu_tanh": [
        ("Mul", ("Mul", 0.5, "x"), ("Add", 1.0, ("Tanh", _CUBIC))),
        ("Mul", "x", ("Sigmoid", ("Mul", 2.0, _CUBIC))),
    ],
    "quick_gelu": [("Mul", "x", ("Sigmoid", ("Mul", 1.702, "x")))],
    "silu": [("Mul", "x", ("Sigmoid", "x")), ("Mul", ("Mul", 0.5, "x"), ("Add", 1.0, ("Tanh", ("Mul", 0.5, "x"))))],
}
OTHERS: list[Formula] = [
    ("Mul", "x", ("Tanh", ("Softplus", "x"))),
    ("Mul", "x", ("Sigmoid", ("Neg", "x"))),
    ("Mul", ("Mul", 0.5, "x"), ("Add", 1.0, ("Erf", "x"))),
    ("Mul", ("Mul", 0.6, "x"), ("Add", 1.0, _ERF)),
    ("Mul", ("Mul", 0.5, "x"), ("Add", 0.9, _ERF)),
    ("Mul", "x", ("Add", ("Sigmoid", "x"), 0.02)),
    ("Mul", "x", ("Sigmoid", ("Mul", "x", ("Mul", "x", "x")))),
    ("Tanh", ("Mul", 0.5, "x")),
    ("Erf", ("Div", "x", SQRT_2)),
]


def _equal_forms(formula: Formula) -> list[Formula]:
    """Return formulas of the same value."""
    forms: list[Formula] = [("Identity", formula), ("Mul", formula, 1.0), ("Add", formula, 0.0)]
    if isinstance(formula, float):
        return [formula, ("Mul", 2.0, formula / 2.0), ("Add", formula - 1.0, 1.0), ("Neg", -formula)]
    if not isinstance(formula, tuple):
        return forms
    name, *operands = formula
    if name in {"Add", "Mul"}:
        left, right = operands
        forms += [(name, right, left)]
        if isinstance(right, tuple) and right[0] == name:
            forms.append((name, (name, left, right[1]), right[2]))
        if isinstance(left, tuple) and left[0] == name:
            forms.append((name, left[1], (name, left[2], right)))
    if name == "Add":
        forms += [("Sum", *operands), ("Sub", operands[0], ("Neg", operands[1]))]
    elif name == "Mul":
        forms += [("Div", operand, 1.0 / other) for other, operand in (operands, operands[::-1]) if _number(other)]
        forms.append(("Neg", ("Mul", ("Neg", operands[0]), operands[1])))
    elif name == "Div":
        forms.append(("Mul", operands[0], ("Reciprocal", operands[1])))
        if _number(operands[1]):
            forms.append(("Div", operands[0], ("Sqrt", operands[1] ** 2)))
    elif name == "Pow":
        forms += [("Mul", ("Mul", operands[0], operands[0]), operands[0])]
    elif name in {"Erf", "Tanh"}:
        forms.append(("Neg", (name, ("Neg", operands[0]))))
        if name == "Tanh":
            forms.append(("Sub", ("Mul", 2.0, ("Sigmoid", ("Mul", 2.0, operands[0]))), 1.0))
    elif name == "Sigmoid":
        argument = operands[0]
        forms += [
            ("Reciprocal", ("Add", 1.0, ("Exp", ("Neg", argument)))),
            ("Sub", 1.0, ("Sigmoid", ("Neg", argument))),
            ("Mul", 0.5, ("Add", 1.0, ("Tanh", ("Mul", 0.5, argument)))),
            ("Exp", ("Neg", ("Softplus", ("Neg", argument)))),
        ]
    return forms


def _number(formula: Formula) -> bool:
    return isinstance(formula, float) and formula != 0.0 and math.isfinite(formula)


def _rewritten(draw: st.DrawFn, formula: Formula, depth: int = 0) -> Formula:
    if depth < 4 and draw(st.integers(0, 3)) == 0:
        formula = draw(st.sampled_from(_equal_forms(formula)))
    if not isinstance(formula, tuple):
        return formula
    return (formula[0], *(_rewritten(draw, operand, depth + 1) for operand in formula[1:]))


def _emit(b: Builder, formula: Formula) -> str:
    if isinstance(formula, str):
        return formula
    if isinstance(formula, float):
        return b.constant(formula)
    return b.op(formula[0], *(_emit(b, operand) for operand in formula[1:]))


def _model(draw: st.DrawFn, formula: Formula):
    # Exact styles only: a constant that is rounded and then split is another constant.
    styles = [style for style in CONSTANT_STYLES if style not in {"bfloat16", "float16 behind Cast", "Reciprocal"}]
    b = Builder(draw(st.sampled_from(styles)))
    y = _emit(b, _rewritten(draw, formula))
    return model_of(b, {"x": ("n", "m", 8)}, [y])


@st.composite
def spelled(draw: st.DrawFn):
    activation = draw(st.sampled_from(sorted(FORMULAS)))
    return activation, _model(draw, draw(st.sampled_from(FORMULAS[activation])))


@st.composite
def spelled_others(draw: st.DrawFn):
    return _model(draw, draw(st.sampled_from(OTHERS)))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(spelled())
def test_a_random_spelling_is_found(case):
    activation, model = case
    sites = find_sites(model).sites
    assert [(site.activation, site.input) for site in sites] == [(activation, "x")]
    np.testing.assert_allclose(sites[0].alpha, 1.702, rtol=1e-6)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(spelled_others())
def test_a_random_spelling_of_something_else_is_not(model):
    assert find_sites(model).sites == ()


@st.composite
def surrounded(draw: st.DrawFn):
    """Return a model of a random spelling, with some of its inner tensors given as outputs and read by others."""
    activation = draw(st.sampled_from(sorted(FORMULAS)))
    model = _model(draw, draw(st.sampled_from(FORMULAS[activation])))
    graph = model.graph
    inner = [name for node in graph.node[:-1] if node.op_type != "Constant" for name in node.output]
    shown = draw(st.lists(st.sampled_from(inner), max_size=3, unique=True)) if inner else []
    read = draw(st.lists(st.sampled_from([*inner, "x"]), max_size=2, unique=True))
    for place, name in enumerate(read):
        graph.node.append(onnx.helper.make_node("Neg", [name], [f"read_{place}"]))
    known = {value.name for value in graph.output}
    for name in [*shown, *(f"read_{place}" for place in range(len(read)))]:
        if name not in known:
            graph.output.append(onnx.ValueInfoProto(name=name))
    return activation, model, draw(st.booleans())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(surrounded())
def test_what_is_around_a_rewritten_activation_stays_bit_for_bit(case):
    activation, model, in_branch = case
    inner = model if in_branch else None
    if in_branch:
        model = _in_branch(model)
    x = np.random.default_rng(1).normal(size=(5, 3, 8)).astype(np.float32) * 2
    data = [{"x": x} | ({"c": np.array(True)} if in_branch else {})]
    result = quantize(model, data, scope="activation")
    (site,) = result.sites
    assert site.activation == activation
    expected, actual = zoo.run(model, data[0]), zoo.run(result.model, data[0])
    codes = site.plan(site.plan.input.quantize(x))
    answer = site.plan.output.dequantize(codes).astype(np.float32)
    # Behind the activation there may be an Identity still: what reads its output gets the new values.
    after = _made_from(model, site.output)
    names = [value.name for value in (inner or model).graph.output]
    for name, old, new in zip(names, expected, actual, strict=True):
        if name not in after:
            np.testing.assert_array_equal(old, new)
        else:
            np.testing.assert_array_equal(np.abs(new), np.abs(answer))


def _made_from(model: onnx.ModelProto, tensor: str) -> set[str]:
    made = {tensor}
    for node in every_node(model.graph.node):
        if made.intersection(node.input):
            made.update(node.output)
    return made


def _in_branch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with everything in the branch of an If that is taken where c is true."""
    helper, graph = onnx.helper, model.graph
    names = [value.name for value in graph.output]
    then = helper.make_graph(graph.node, "then", [], graph.output, graph.initializer)
    copies = [helper.make_node("Identity", ["x"], [f"other_{place}"]) for place in range(len(names))]
    outputs = [onnx.ValueInfoProto(name=node.output[0]) for node in copies]
    other = helper.make_graph(copies, "other", [], outputs)
    results = [f"result_{place}" for place in range(len(names))]
    node = helper.make_node("If", ["c"], results, then_branch=then, else_branch=other)
    inputs = [*graph.input, helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])]
    outer = helper.make_graph([node], "outer", inputs, [onnx.ValueInfoProto(name=name) for name in results])
    return helper.make_model(outer, opset_imports=model.opset_import, ir_version=model.ir_version)
