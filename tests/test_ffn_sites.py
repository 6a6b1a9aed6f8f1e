"""Scope ffn: which linear layers beside an activation belong to it, and why others do not."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from site_models import SPELLINGS, Builder, ffn_model, matmul_add, model_of, weight

from qgelu.activations import evaluate
from qgelu.graph.sites import Ffn, Site, find_sites

GELU = SPELLINGS["gelu"]["half x first"]


def the_site(model: onnx.ModelProto) -> Site:
    findings = find_sites(model)
    assert len(findings.sites) == 1
    return findings.sites[0]


def the_ffn(model: onnx.ModelProto) -> Ffn:
    site = the_site(model)
    assert (site.scope, site.reason) == ("ffn", "")
    assert site.ffn is not None
    return site.ffn


def linear(rows: int, columns: int, seed: int = 0):
    return weight(rows, columns, seed), weight(1, columns, seed + 1)[0]


def check_against_runtime(model: onnx.ModelProto, ffn: Ffn, x: np.ndarray) -> None:
    """The layers found compute what the model computes."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    hidden = x @ ffn.first.weight
    if ffn.first.bias is not None:
        hidden = hidden + ffn.first.bias
    y = evaluate(hidden, "gelu") @ ffn.second.weight
    if ffn.second.bias is not None:
        y = y + ffn.second.bias
    np.testing.assert_allclose(y.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


def _matmul(b: Builder, x: str, rows: int, columns: int) -> str:
    return b.op("MatMul", x, b.array(weight(rows, columns)))


def _sizes(x: str) -> tuple[int, int]:
    return (4, 6) if x == "x" else (6, 4)


def _add_with(shape, *, bias_first):
    def layer(b: Builder, x: str) -> str:
        rows, columns = _sizes(x)
        bias = b.array(np.arange(columns, dtype=np.float32).reshape([*shape, columns]))
        product = _matmul(b, x, rows, columns)
        return b.op("Add", bias, product) if bias_first else b.op("Add", product, bias)

    return layer


def _gemm(*, trans_b=0, alpha=1.0, beta=1.0, bias_shape=None):
    def layer(b: Builder, x: str) -> str:
        rows, columns = _sizes(x)
        values = weight(rows, columns)
        inputs = [x, b.array(values.T.copy() if trans_b else values)]
        if bias_shape is not None:
            shape = [columns if size == "N" else size for size in bias_shape]
            inputs.append(b.array(np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape) + 1))
        return b.op("Gemm", *inputs, transB=trans_b, alpha=alpha, beta=beta)

    return layer


def _weight_behind(wrap):
    def layer(b: Builder, x: str) -> str:
        rows, columns = _sizes(x)
        return b.op("MatMul", x, wrap(b, weight(rows, columns)))

    return layer


def _constant_node(b: Builder, values: np.ndarray) -> str:
    return b.op("Constant", value=onnx.numpy_helper.from_array(values))


def _dequantized(b: Builder, values: np.ndarray) -> str:
    scale = b.array(np.linspace(0.01, 0.02, values.shape[1], dtype=np.float32))
    zero = b.array(np.arange(values.shape[1], dtype=np.int8))
    return b.op("DequantizeLinear", b.array((values * 30).astype(np.int8)), scale, zero, axis=1)


RANK_3 = {
    "MatMul": lambda b, x: _matmul(b, x, *_sizes(x)),
    "bias [N] second": _add_with([], bias_first=False),
    "bias [N] first": _add_with([], bias_first=True),
    "bias [1, N]": _add_with([1], bias_first=False),
    "bias [1, 1, N]": _add_with([1, 1], bias_first=True),
    "bias []": lambda b, x: b.op("Add", _matmul(b, x, *_sizes(x)), 0.25),
    "weight behind Transpose": _weight_behind(
        lambda b, values: b.op("Transpose", b.array(values.T.copy()), perm=[1, 0])
    ),
    "weight behind Identity": _weight_behind(lambda b, values: b.op("Identity", b.array(values))),
    "weight behind Cast": _weight_behind(
        lambda b, values: b.op("Cast", b.array(values.astype(np.float16)), to=TensorProto.FLOAT)
    ),
    "weight in a Constant": _weight_behind(_constant_node),
    "weight behind DequantizeLinear": _weight_behind(_dequantized),
    "weight scaled": _weight_behind(lambda b, values: b.op("Mul", b.array(values), 0.5)),
}
RANK_2 = {
    "Gemm": _gemm(),
    "Gemm transB": _gemm(trans_b=1),
    "Gemm alpha beta": _gemm(alpha=0.5, beta=2.0, bias_shape=["N"]),
    "Gemm bias [1, N]": _gemm(bias_shape=[1, "N"]),
    "Gemm bias [1]": _gemm(bias_shape=[1], trans_b=1),
    "Gemm bias []": _gemm(bias_shape=[]),
}


@pytest.mark.parametrize("key", [*RANK_3, *RANK_2])
def test_layers(key):
    layer = (RANK_3 | RANK_2)[key]
    rank = 3 if key in RANK_3 else 2
    model = ffn_model(GELU, first=layer, second=layer, x_shape=("a", "b", 4)[-rank:])
    ffn = the_ffn(model)
    x = np.random.default_rng(3).normal(size=(2, 5, 4)[-rank:]).astype(np.float32)
    check_against_runtime(model, ffn, x)
    assert ffn.first.input == "x"
    assert ffn.first.weight.dtype == ffn.second.weight.dtype == np.float32
    assert (ffn.first.weight.shape, ffn.second.weight.shape) == ((4, 6), (6, 4))
    assert (ffn.before, ffn.after) == ((), ())
    site = the_site(model)
    assert (ffn.first.output, ffn.second.input) == (site.input, site.output)
    assert ffn.second.node_outputs[-1] == ffn.second.output


def test_shape_only_nodes():
    def into_rows(b: Builder, x: str) -> str:
        rows = b.op("Reshape", x, b.array([-1, 4]))
        product = _gemm(bias_shape=["N"])(b, "x")
        b.nodes[-1].input[0] = rows
        return b.op("Identity", b.op("Reshape", product, b.array([2, -1, 6])))

    def out_of_rows(b: Builder, y: str) -> str:
        rows = b.op("Reshape", b.op("Unsqueeze", y, b.array([0])), b.array([-1, 6]))
        return _gemm(bias_shape=["N"])(b, rows)

    model = ffn_model(GELU, first=into_rows, second=out_of_rows, x_shape=(2, "n", 4))
    ffn = the_ffn(model)
    kinds = {node.output[0]: node.op_type for node in model.graph.node}
    assert [kinds[name] for name in ffn.before] == ["Reshape", "Identity"]
    assert [kinds[name] for name in ffn.after] == ["Unsqueeze", "Reshape"]
    site = the_site(model)
    assert (site.input, ffn.second.input) == (ffn.before[-1], ffn.after[-1])
    check_against_runtime(model, ffn, np.random.default_rng(3).normal(size=(2, 5, 4)).astype(np.float32))


@pytest.mark.parametrize(
    ("node", "kept"),
    [
        (lambda b, x: b.op("Reshape", x, b.array([-1, 6])), True),
        (lambda b, x: b.op("Reshape", x, b.array([0, 0, -1])), True),
        (lambda b, x: b.op("Reshape", x, b.array([-1, 3])), False),
        (lambda b, x: b.op("Reshape", x, b.array([-1])), False),
        (lambda b, x: b.op("Flatten", x, axis=2), True),
        (lambda b, x: b.op("Flatten", x, axis=-1), True),
        (lambda b, x: b.op("Flatten", x, axis=1), False),
        (lambda b, x: b.op("Unsqueeze", x, b.array([1])), True),
        (lambda b, x: b.op("Unsqueeze", x, b.array([-1])), False),
        (lambda b, x: b.op("Transpose", x, perm=[1, 0, 2]), True),
        (lambda b, x: b.op("Transpose", x, perm=[0, 2, 1]), False),
        (lambda b, x: b.op("Transpose", x), False),
        (lambda b, x: b.op("Dropout", x), True),
        (lambda b, x: b.op("Clip", x, -1.0, 1.0), False),
    ],
)
def test_which_nodes_keep_the_last_axis(node, kept):
    def first(b: Builder, x: str) -> str:
        return node(b, matmul_add(b, x))

    def second(b: Builder, y: str) -> str:
        return b.op("MatMul", node(b, y), b.array(weight(6, 4)))

    before = the_site(ffn_model(GELU, first=first, x_shape=(2, "n", 4)))
    after = the_site(ffn_model(GELU, second=second, x_shape=(2, "n", 4)))
    assert (before.scope, after.scope) == (("ffn", "ffn") if kept else ("activation", "activation"))
    if not kept:
        assert before.reason
        assert after.reason


def test_a_target_shape_computed_at_run_time():
    def second(b: Builder, y: str) -> str:
        batch = b.op("Slice", b.op("Shape", "x"), b.array([0]), b.array([1]))
        target = b.op("Concat", batch, b.array([-1]), b.array([6]), axis=0)
        return b.op("MatMul", b.op("Reshape", y, target), b.array(weight(6, 4)))

    assert the_site(ffn_model(GELU, second=second)).scope == "ffn"
    # Without any shape to start from, the Concat's last entry is enough.
    model = ffn_model(GELU, second=second)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert the_site(model).scope == "ffn"


def test_shapes_of_the_layers_may_be_read():
    b = Builder()
    hidden = matmul_add(b, "x")
    y = GELU(b, hidden)
    shapes = [b.op("Shape", hidden), b.op("Size", y)]
    z = matmul_add(b, y)
    assert the_site(model_of(b, {"x": ("n", 4)}, [z, *shapes])).scope == "ffn"


def _two_readers(b: Builder, y: str) -> str:
    return b.op("Add", matmul_add(b, y), matmul_add(b, y))


def _second_operand(b: Builder, y: str) -> str:
    return b.op("MatMul", b.array(weight(4, 4)), y)


def _variable_weight(b: Builder, x: str) -> str:
    return b.op("MatMul", x, b.op("Reshape", "x", b.array([4, -1])))


def _rank_3_weight(b: Builder, x: str) -> str:
    return b.op("MatMul", x, b.array(np.ones((1, *_sizes(x)), np.float32)))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"first": lambda b, x: b.op("Identity", x)}, "not the output of a MatMul or Gemm"),
        ({"first": lambda b, x: b.op("Relu", matmul_add(b, x))}, "comes from a Relu"),
        ({"first": lambda b, x: b.op("Add", matmul_add(b, x), matmul_add(b, x))}, "after an Add"),
        ({"first": _variable_weight}, "not constant"),
        ({"first": _rank_3_weight}, "3 dimensions"),
        ({"second": lambda b, y: b.op("Relu", y)}, "goes into a Relu"),
        ({"second": _two_readers}, "read by 2 nodes"),
        ({"second": _second_operand}, "left operand"),
        ({"second": _rank_3_weight}, "3 dimensions"),
        ({"second": lambda b, y: b.op("Mul", y, "x")}, "goes into a Mul"),
    ],
)
def test_why_it_is_only_an_activation(options, word):
    site = the_site(ffn_model(GELU, x_shape=(4, 4), **options))
    assert (site.scope, site.ffn) == ("activation", None)
    assert word in site.reason


def _sum_with(b: Builder, x: str) -> str:
    product = b.op("MatMul", x, b.array(weight(4, 6)))
    return b.op("Add", product, b.array(weight(4, 6)))


def test_an_add_that_is_no_bias():
    site = the_site(ffn_model(GELU, first=_sum_with, x_shape=(4, 4)))
    assert "adds more than a bias" in site.reason

    # After the second matmul it is left alone, and the FFN ends before it.
    def second(b: Builder, y: str) -> str:
        return b.op("Add", b.op("MatMul", y, b.array(weight(6, 4)), output="product"), b.array(weight(4, 4)))

    ffn = the_ffn(ffn_model(GELU, second=second, x_shape=(4, 4)))
    assert (ffn.second.output, ffn.second.bias) == ("product", None)


def test_a_residual_add_is_no_bias():
    def second(b: Builder, y: str) -> str:
        return b.op("Add", matmul_add(b, y), "x")

    ffn = the_ffn(ffn_model(GELU, second=second))
    assert ffn.second.bias is not None
    assert len(ffn.second.node_outputs) == 2


def test_a_bias_that_raises_the_rank_is_none():
    site = the_site(ffn_model(GELU, first=_add_with([1, 1], bias_first=False), x_shape=("n", 4)))
    assert "adds more than a bias" in site.reason


@pytest.mark.parametrize("place", ["product", "hidden", "interior", "active"])
def test_tensors_that_are_needed_elsewhere(place):
    def build(read: bool) -> onnx.ModelProto:
        b = Builder()
        product = b.op("MatMul", "x", b.array(weight(4, 6)), output="product")
        hidden = b.op("Add", product, b.array(weight(1, 6)[0]), output="hidden")
        erf = b.op("Erf", b.op("Div", hidden, 2.0**0.5), output="interior")
        active = b.op("Mul", b.op("Mul", hidden, 0.5), b.op("Add", erf, 1.0), output="active")
        outputs = [matmul_add(b, active)]
        outputs.append(b.op("Neg", place) if read else place)
        return model_of(b, {"x": ("n", 4)}, outputs)

    for read in (True, False):
        site = the_site(build(read))
        assert (site.scope, site.output) == ("activation", "active")
        assert place in site.reason


def test_the_second_matmul_may_be_read_before_its_bias():
    b = Builder()
    y = GELU(b, matmul_add(b, "x"))
    product = b.op("MatMul", y, b.array(weight(6, 4)), output="product")
    z = b.op("Add", product, b.array(weight(1, 4)[0]))
    ffn = the_ffn(model_of(b, {"x": ("n", 4)}, [z, "product"]))
    assert (ffn.second.output, ffn.second.bias) == ("product", None)


def test_float16_layers_around_casts():
    b = Builder()
    hidden = b.op("MatMul", "x", b.array(weight(4, 6).astype(np.float16)))
    y = GELU(b, b.op("Cast", hidden, to=TensorProto.FLOAT))
    z = b.op("MatMul", b.op("Cast", y, to=TensorProto.FLOAT16), b.array(weight(6, 4).astype(np.float16)))
    model = model_of(b, {"x": ("n", 4)}, [z], elem_type=TensorProto.FLOAT16)
    ffn = the_ffn(model)
    assert ffn.first.weight.dtype == np.float32
    assert (ffn.first.output, ffn.second.input) == (the_site(model).input, the_site(model).output)


def test_a_tensor_read_in_a_subgraph_is_needed():
    b = Builder()
    hidden = matmul_add(b, "x")
    z = matmul_add(b, GELU(b, hidden))
    branches = [
        helper.make_graph([helper.make_node(kind, [hidden], [kind])], kind, [], [onnx.ValueInfoProto(name=kind)])
        for kind in ("Neg", "Abs")
    ]
    other = b.op("If", "flag", then_branch=branches[0], else_branch=branches[1])
    model = model_of(b, {"x": ("n", 4)}, [z, other])
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, ()))
    assert "also read by If" in the_site(model).reason
