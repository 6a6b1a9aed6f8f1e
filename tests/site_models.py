"""Small ONNX models around spellings of activations, for the tests of the finder."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Collects nodes; every method returns the name of the tensor it makes."""

    def __init__(self, constant_style: str = "initializer", dtype: Any = np.float32) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.constant_style = constant_style
        self.dtype = dtype
        self._count = 0

    def name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def op(self, op_type: str, *inputs: str | float, output: str = "", domain: str = "", **attributes: Any) -> str:
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        output = output or self.name(op_type.lower())
        self.nodes.append(
            helper.make_node(op_type, names, [output], name=f"node_{output}", domain=domain, **attributes)
        )
        return output

    def array(self, value: Any, name: str = "") -> str:
        name = name or self.name("tensor")
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def constant(self, value: float) -> str:
        return CONSTANT_STYLES[self.constant_style](self, value)


def _shaped(*shape: int) -> Callable[[Builder, float], str]:
    return lambda b, value: b.array(np.full(shape, value, b.dtype))


def _cast(stored: Any) -> Callable[[Builder, float], str]:
    return lambda b, value: b.op("Cast", b.array(np.array(value, stored)), to=TensorProto.FLOAT)


def _node(attribute: str) -> Callable[[Builder, float], str]:
    def make(b: Builder, value: float) -> str:
        given: Any = [value] if attribute == "value_floats" else value
        if attribute == "value":
            given = numpy_helper.from_array(np.array(value, b.dtype))
        return b.op("Constant", **{attribute: given})

    return make


def _dequantized(b: Builder, value: float) -> str:
    return b.op("DequantizeLinear", b.array(np.array(1, np.int8)), b.array(np.array(value, np.float32)))


CONSTANT_STYLES: dict[str, Callable[[Builder, float], str]] = {
    "initializer": _shaped(),
    "[1]": _shaped(1),
    "[1, 1]": _shaped(1, 1),
    "value": _node("value"),
    "value_float": _node("value_float"),
    "value_floats": _node("value_floats"),
    "double behind Cast": _cast(np.float64),
    "float16 behind Cast": _cast(np.float16),
    "bfloat16": lambda b, value: b.op(
        "Cast",
        b.op("Cast", b.array(np.array(value, np.float32)), to=TensorProto.BFLOAT16),
        to=TensorProto.FLOAT,
    ),
    "Identity": lambda b, value: b.op("Identity", b.array(np.array(value, np.float32))),
    "CastLike": lambda b, value: b.op("CastLike", b.array(np.array(value, np.float64)), "x"),
    "Unsqueeze": lambda b, value: b.op("Unsqueeze", b.array(np.array(value, np.float32)), b.array([0])),
    "Reshape": lambda b, value: b.op("Reshape", b.array(np.array([[value]], np.float32)), b.array([1])),
    "Neg": lambda b, value: b.op("Neg", b.array(np.array(-value, np.float32))),
    "Reciprocal": lambda b, value: b.op("Reciprocal", b.array(np.array(1.0 / value, np.float32))),
    "Sum": lambda b, value: b.op("Add", b.array(np.array(value - 1, np.float32)), b.array(np.float32(1))),
    "DequantizeLinear": _dequantized,
}

OPSETS = {"": 20, "com.microsoft": 1}


def model_of(
    b: Builder,
    inputs: dict[str, Any],
    outputs: list[str],
    *,
    opset: int = 20,
    elem_type: int = TensorProto.FLOAT,
    functions: Any = (),
) -> onnx.ModelProto:
    """Return a model of what a builder has collected; inputs by name and shape."""
    graph = helper.make_graph(
        b.nodes,
        "test",
        [helper.make_tensor_value_info(name, elem_type, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        b.initializers,
    )
    imports = {"": opset, "com.microsoft": 1} | {function.domain: 1 for function in functions}
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in imports.items()],
        functions=list(functions),
        ir_version=10,
    )


SQRT_2 = 2.0**0.5
SQRT_2_OVER_PI = (2.0 / np.pi) ** 0.5
Spelling = Callable[[Builder, str], str]


def erf_plus_one(b: Builder, x: str) -> str:
    return b.op("Add", b.op("Erf", b.op("Div", x, SQRT_2)), 1.0)


def tanh_argument(b: Builder, x: str) -> str:
    cubic = b.op("Mul", b.op("Pow", x, 3.0), 0.044715)
    return b.op("Mul", b.op("Add", x, cubic), SQRT_2_OVER_PI)


def factored_argument(b: Builder, x: str) -> str:
    square = b.op("Mul", x, x)
    factor = b.op("Add", b.op("Mul", square, SQRT_2_OVER_PI * 0.044715), SQRT_2_OVER_PI)
    return b.op("Mul", factor, x)


def _gelu_by_difference(b: Builder, x: str) -> str:
    rest = b.op("Sub", 1.0, b.op("Erf", b.op("Mul", x, 1.0 / SQRT_2)))
    return b.op("Sub", x, b.op("Mul", b.op("Mul", x, 0.5), rest))


def _tanh_by_exponentials(b: Builder, z: str) -> str:
    up, down = b.op("Exp", z), b.op("Exp", b.op("Neg", z))
    return b.op("Div", b.op("Sub", up, down), b.op("Add", up, down))


def _gated_by_tanh(b: Builder, x: str, tanh: str) -> str:
    return b.op("Mul", b.op("Mul", x, 0.5), b.op("Add", 1.0, tanh))


def _silu_by_exp_quotient(b: Builder, x: str) -> str:
    power = b.op("Exp", x)
    return b.op("Mul", x, b.op("Div", power, b.op("Add", power, 1.0)))


def _shared_scaling(b: Builder, x: str) -> str:
    scaled = b.op("Div", x, SQRT_2)
    return b.op("Mul", b.op("Mul", scaled, b.op("Add", b.op("Erf", scaled), 1.0)), 1.0 / SQRT_2)


def _rescaled_silu(b: Builder, x: str) -> str:
    scaled = b.op("Mul", x, 1.702)
    return b.op("Div", b.op("Mul", scaled, b.op("Sigmoid", scaled)), 1.702)


SPELLINGS: dict[str, dict[str, Spelling]] = {
    "gelu": {
        "x(1 + erf(x / sqrt 2)) / 2": lambda b, x: b.op("Mul", b.op("Mul", x, erf_plus_one(b, x)), 0.5),
        "half x first": lambda b, x: b.op("Mul", b.op("Mul", 0.5, x), erf_plus_one(b, x)),
        "gate first": lambda b, x: b.op("Mul", b.op("Mul", erf_plus_one(b, x), 0.5), x),
        "Div by 2": lambda b, x: b.op("Div", b.op("Mul", erf_plus_one(b, x), x), 2.0),
        "Mul by 1 / sqrt 2": lambda b, x: b.op(
            "Mul", b.op("Mul", x, 0.5), b.op("Add", 1.0, b.op("Erf", b.op("Mul", 1.0 / SQRT_2, x)))
        ),
        "half folded in": lambda b, x: b.op(
            "Mul", x, b.op("Add", 0.5, b.op("Mul", 0.5, b.op("Erf", b.op("Div", x, SQRT_2))))
        ),
        "multiplied out": lambda b, x: b.op(
            "Add",
            b.op("Mul", x, 0.5),
            b.op("Mul", b.op("Mul", x, 0.5), b.op("Erf", b.op("Div", x, SQRT_2))),
        ),
        "erfc as 1 - erf(-x)": lambda b, x: b.op(
            "Mul",
            b.op("Mul", x, 0.5),
            b.op("Sub", 1.0, b.op("Erf", b.op("Mul", b.op("Neg", x), 1.0 / SQRT_2))),
        ),
        "x - x erfc / 2": _gelu_by_difference,
        "sqrt 2 by Sqrt": lambda b, x: b.op(
            "Mul",
            b.op("Mul", x, 0.5),
            b.op("Add", b.op("Erf", b.op("Div", x, b.op("Sqrt", b.constant(2.0)))), 1.0),
        ),
        "x / sqrt 2 shared": _shared_scaling,
        "Sum and Reciprocal": lambda b, x: b.op(
            "Div",
            x,
            b.op(
                "Div",
                2.0,
                b.op("Sum", b.op("Erf", b.op("Mul", x, b.op("Reciprocal", b.constant(SQRT_2)))), 1.0),
            ),
        ),
        "Identity inside": lambda b, x: b.op(
            "Mul", b.op("Mul", b.op("Identity", x), b.op("Identity", erf_plus_one(b, x))), 0.5
        ),
        "ai.onnx Gelu": lambda b, x: b.op("Gelu", x),
        "com.microsoft Gelu": lambda b, x: b.op("Gelu", x, domain="com.microsoft"),
    },
    "gelu_tanh": {
        "Pow": lambda b, x: _gated_by_tanh(b, x, b.op("Tanh", tanh_argument(b, x))),
        "x x x": lambda b, x: _gated_by_tanh(
            b,
            x,
            b.op(
                "Tanh",
                b.op(
                    "Mul",
                    SQRT_2_OVER_PI,
                    b.op("Add", x, b.op("Mul", b.op("Mul", b.op("Mul", x, x), x), 0.044715)),
                ),
            ),
        ),
        "factored": lambda b, x: _gated_by_tanh(b, x, b.op("Tanh", factored_argument(b, x))),
        "gelu_fast": lambda b, x: _gated_by_tanh(
            b,
            x,
            b.op(
                "Tanh",
                b.op(
                    "Mul",
                    b.op("Mul", x, SQRT_2_OVER_PI),
                    b.op("Add", 1.0, b.op("Mul", b.op("Mul", x, 0.044715), x)),
                ),
            ),
        ),
        "gate first": lambda b, x: b.op(
            "Mul", x, b.op("Mul", 0.5, b.op("Add", b.op("Tanh", tanh_argument(b, x)), 1.0))
        ),
        "multiplied out": lambda b, x: b.op(
            "Mul", 0.5, b.op("Add", x, b.op("Mul", x, b.op("Tanh", factored_argument(b, x))))
        ),
        "sigmoid": lambda b, x: b.op("Mul", x, b.op("Sigmoid", b.op("Mul", tanh_argument(b, x), 2.0))),
        "exp": lambda b, x: b.op("Div", x, b.op("Add", 1.0, b.op("Exp", b.op("Mul", tanh_argument(b, x), -2.0)))),
        "1 - 2 / (exp + 1)": lambda b, x: _gated_by_tanh(
            b,
            x,
            b.op(
                "Sub",
                1.0,
                b.op("Div", 2.0, b.op("Add", b.op("Exp", b.op("Mul", 2.0, tanh_argument(b, x))), 1.0)),
            ),
        ),
        "tanh by exponentials": lambda b, x: _gated_by_tanh(b, x, _tanh_by_exponentials(b, tanh_argument(b, x))),
        "ai.onnx Gelu": lambda b, x: b.op("Gelu", x, approximate="tanh"),
        "FastGelu": lambda b, x: b.op("FastGelu", x, domain="com.microsoft"),
    },
    "quick_gelu": {
        "sigmoid": lambda b, x: b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, 1.702))),
        "other order": lambda b, x: b.op("Mul", b.op("Sigmoid", b.op("Mul", 1.702, x)), x),
        "exp": lambda b, x: b.op("Div", x, b.op("Add", 1.0, b.op("Exp", b.op("Mul", x, -1.702)))),
        "exp of Neg": lambda b, x: b.op(
            "Mul",
            x,
            b.op("Reciprocal", b.op("Add", b.op("Exp", b.op("Neg", b.op("Mul", x, 1.702))), 1.0)),
        ),
        "tanh": lambda b, x: _gated_by_tanh(b, x, b.op("Tanh", b.op("Mul", x, 0.851))),
        "divided by 1 / alpha": lambda b, x: b.op("Mul", x, b.op("Sigmoid", b.op("Div", x, 1.0 / 1.702))),
        "silu of alpha x": _rescaled_silu,
        "softplus": lambda b, x: b.op("Mul", x, b.op("Exp", b.op("Neg", b.op("Softplus", b.op("Mul", x, -1.702))))),
        "QuickGelu": lambda b, x: b.op("QuickGelu", x, domain="com.microsoft"),
        "Swish": lambda b, x: b.op("Swish", x, alpha=1.702),
    },
    "silu": {
        "sigmoid": lambda b, x: b.op("Mul", x, b.op("Sigmoid", x)),
        "other order": lambda b, x: b.op("Mul", b.op("Sigmoid", x), x),
        "exp": lambda b, x: b.op("Div", x, b.op("Add", b.op("Exp", b.op("Neg", x)), 1.0)),
        "exp quotient": _silu_by_exp_quotient,
        "tanh": lambda b, x: _gated_by_tanh(b, x, b.op("Tanh", b.op("Mul", x, 0.5))),
        "multiplied out": lambda b, x: b.op(
            "Add", b.op("Mul", 0.5, x), b.op("Mul", b.op("Mul", 0.5, x), b.op("Tanh", b.op("Div", x, 2.0)))
        ),
        "1 - sigmoid(-x)": lambda b, x: b.op("Mul", x, b.op("Sub", 1.0, b.op("Sigmoid", b.op("Neg", x)))),
        "QuickGelu": lambda b, x: b.op("QuickGelu", x, domain="com.microsoft", alpha=1.0),
        "Swish": lambda b, x: b.op("Swish", x),
        "x - x sigmoid(-x)": lambda b, x: b.op("Sub", x, b.op("Mul", x, b.op("Sigmoid", b.op("Neg", x)))),
    },
}


def every_spelling() -> list[tuple[str, str]]:
    """Return (activation, key in SPELLINGS[activation]) for each."""
    return [(activation, key) for activation, spellings in SPELLINGS.items() for key in spellings]


def ffn_model(
    activation: Callable[[Builder, str], str] = SPELLINGS["gelu"]["half x first"],
    *,
    first: Callable[[Builder, str], str] | None = None,
    second: Callable[[Builder, str], str] | None = None,
    outputs: tuple[str, ...] = ("y",),
    x_shape: tuple[Any, ...] = ("batch", "tokens", 4),
) -> onnx.ModelProto:
    """Return x -> first -> activation -> second -> y; layers of 4, 6 and 4 channels unless said otherwise."""
    b = Builder()
    hidden = (first or matmul_add)(b, "x")
    active = activation(b, hidden)
    b.op("Identity", (second or matmul_add)(b, active), output="y")
    return model_of(b, {"x": x_shape}, list(outputs))


def weight(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def matmul_add(b: Builder, x: str) -> str:
    rows, columns = (4, 6) if x == "x" else (6, 4)
    product = b.op("MatMul", x, b.array(weight(rows, columns), b.name("weight")))
    return b.op("Add", product, b.array(np.arange(columns, dtype=np.float32), b.name("bias")))
