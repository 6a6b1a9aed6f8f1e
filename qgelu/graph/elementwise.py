"""ONNX's elementwise operators as NumPy functions, computed in the precision of what they are given."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from qgelu._erfc import erfc
from qgelu.activations import DEFAULT_ALPHA, evaluate

Array = NDArray[Any]
Operation = Callable[..., Array]

STANDARD_DOMAINS: Final = ("", "ai.onnx")
CONTRIB_DOMAIN: Final = "com.microsoft"

FLOAT_TYPES: Final = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})

# Operators that make a gate; every activation contains at least one.
_STANDARD_ANCHORS: Final = frozenset({"Erf", "Tanh", "Sigmoid", "Exp", "Softplus", "Gelu", "Swish"})
_CONTRIB_ANCHORS: Final = frozenset({"Gelu", "FastGelu", "QuickGelu"})


def _identity(x: Array, *_: Any) -> Array:
    return x


def _erf(x: Array) -> Array:
    return np.asarray(1.0 - erfc(np.asarray(x, dtype=np.float64)))


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


def _sum(*terms: Array) -> Array:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _maximum(*terms: Array) -> Array:
    return np.asarray(np.maximum.reduce(np.broadcast_arrays(*terms)))


def _minimum(*terms: Array) -> Array:
    return np.asarray(np.minimum.reduce(np.broadcast_arrays(*terms)))


_UNARY: Final[dict[str, Operation]] = {
    "Abs": np.abs,
    "Erf": _erf,
    "Exp": np.exp,
    "Identity": _identity,
    "Log": np.log,
    "Neg": np.negative,
    "Reciprocal": lambda x: 1.0 / x,
    "Relu": lambda x: np.maximum(x, 0.0),
    "Sigmoid": _sigmoid,
    "Sign": np.sign,
    "Softplus": _softplus,
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
}
_BINARY: Final[dict[str, Operation]] = {
    "Add": np.add,
    "CastLike": _identity,
    "Div": np.divide,
    "Mul": np.multiply,
    "Pow": np.power,
    "Sub": np.subtract,
}
_VARIADIC: Final[dict[str, Operation]] = {"Max": _maximum, "Min": _minimum, "Sum": _sum}


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the node's attributes as Python values; those that refer to a function's are left out."""
    return {
        attribute.name: onnx.helper.get_attribute_value(attribute)
        for attribute in node.attribute
        if not attribute.ref_attr_name
    }


def refers_to_function_attribute(node: onnx.NodeProto) -> bool:
    """Say whether an attribute's value is only known where the enclosing function is called."""
    return any(attribute.ref_attr_name for attribute in node.attribute)


def _number(node: onnx.NodeProto, name: str, default: float) -> float:
    return next((a.f for a in node.attribute if a.name == name and a.type == a.FLOAT), default)


def is_anchor(node: onnx.NodeProto) -> bool:
    """Say whether the node may be the gate of an activation (see :data:`_STANDARD_ANCHORS`)."""
    if node.domain in STANDARD_DOMAINS:
        return node.op_type in _STANDARD_ANCHORS
    return node.domain == CONTRIB_DOMAIN and node.op_type in _CONTRIB_ANCHORS


def operation(node: onnx.NodeProto) -> Operation | None:
    """Return what the node computes, as a function of its inputs; None if it is not elementwise here.

    Casts between floating-point types compute nothing: what is compared is the function that the nodes
    mean, not their rounding. FastGelu and BiasGelu with a bias are no function of one tensor: None.
    """
    if refers_to_function_attribute(node):
        return None
    count = len(node.input)
    if node.domain == CONTRIB_DOMAIN:
        return _contrib_operation(node)
    if node.domain not in STANDARD_DOMAINS:
        return None
    name = node.op_type
    if name in _UNARY and count == 1:
        return _UNARY[name]
    if name in _BINARY and count == 2:
        return _BINARY[name]
    if name in _VARIADIC and count >= 1:
        return _VARIADIC[name]
    if name == "Cast" and count == 1:
        return _identity if any(a.name == "to" and a.i in FLOAT_TYPES for a in node.attribute) else None
    if name == "Clip" and 1 <= count <= 3:
        return _clip(node)
    if name == "Gelu" and count == 1:
        tanh = any(a.name == "approximate" and a.s == b"tanh" for a in node.attribute)
        return lambda x: evaluate(x, "gelu_tanh" if tanh else "gelu")
    if name == "Swish" and count == 1:
        return _scaled_sigmoid(_number(node, "alpha", 1.0))
    return None


def _contrib_operation(node: onnx.NodeProto) -> Operation | None:
    if len(node.input) != 1:
        return None
    if node.op_type == "Gelu":
        return lambda x: evaluate(x, "gelu")
    if node.op_type == "FastGelu":
        return lambda x: evaluate(x, "gelu_tanh")
    if node.op_type == "QuickGelu":
        return _scaled_sigmoid(_number(node, "alpha", DEFAULT_ALPHA))
    return None


def _scaled_sigmoid(alpha: float) -> Operation:
    return lambda x: x * _sigmoid(alpha * x)


def _clip(node: onnx.NodeProto) -> Operation:
    lowest, highest = _number(node, "min", -np.inf), _number(node, "max", np.inf)  # attributes before opset 11

    def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
        return np.clip(x, lowest if low is None else low, highest if high is None else high)

    return clip
