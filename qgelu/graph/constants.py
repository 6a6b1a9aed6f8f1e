"""Values of the tensors of a graph that do not depend on its inputs."""

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data

from qgelu.errors import QGeluError
from qgelu.graph.elementwise import STANDARD_DOMAINS, attributes, operation, refers_to_function_attribute

_RESHAPING: Final = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_ARITHMETIC: Final = frozenset(
    {"Abs", "Add", "Div", "Exp", "Identity", "Log", "Mul", "Neg", "Pow", "Reciprocal", "Sqrt", "Sub", "Sum"}
)
_NUMBERS: Final = "biufV"  # ml_dtypes' types (bfloat16, int4, ...) are of kind V
_VALUE_ATTRIBUTES: Final = ("value", "value_float", "value_floats", "value_int", "value_ints")

# Long chains of constants are not an exporter's work: they are left unresolved.
_MAX_DEPTH: Final = 64


class Constants:
    """Initializers, Constant nodes and simple chains of nodes on them, resolved when asked for.

    Parameters
    ----------
    initializers
        Of the graph.
    nodes
        Of the graph, in topological order.
    outer
        Constants of the enclosing graph.
    shadowed
        Names that the graph defines itself, hence not to be looked up in ``outer``.
    """

    def __init__(
        self,
        initializers: Iterable[TensorProto],
        nodes: Iterable[onnx.NodeProto],
        outer: "Constants | None" = None,
        shadowed: frozenset[str] = frozenset(),
    ) -> None:
        self._initializers = {tensor.name: tensor for tensor in initializers}
        self._nodes: dict[str, onnx.NodeProto] = {}
        self._outer = outer
        self._shadowed = shadowed
        self._values: dict[str, NDArray[Any] | None] = {}
        self._elements: dict[str, int] = {name: math.prod(tensor.dims) for name, tensor in self._initializers.items()}
        self._depth: dict[str, int] = dict.fromkeys(self._initializers, 0)
        for node in nodes:
            self._add(node)

    def _add(self, node: onnx.NodeProto) -> None:
        if node.domain not in STANDARD_DOMAINS or refers_to_function_attribute(node) or len(node.output) != 1:
            return
        output = node.output[0]
        if node.op_type == "Constant":
            tensor = next((a.t for a in node.attribute if a.name == "value"), None)
            if tensor is not None:
                self._elements[output] = math.prod(tensor.dims)
            elif any(a.name in _VALUE_ATTRIBUTES for a in node.attribute):
                self._elements[output] = int(np.size(next(iter(attributes(node).values()))))
            else:
                return
            self._depth[output] = 0
        else:
            data = _data_inputs(node)
            if not data or not all(data) or not all(self.known(name) for name in _needed_inputs(node)):
                return
            depth = 1 + max(self._depth.get(name, 0) for name in data)
            if depth > _MAX_DEPTH:
                return
            self._depth[output] = depth
            self._elements[output] = max(self.elements(name) for name in data)
        self._nodes[output] = node

    def known(self, name: str) -> bool:
        """Say whether the tensor is a constant."""
        return name in self._elements or self._outside(name) is not None

    def elements(self, name: str) -> int:
        """Return the number of elements of a known constant."""
        outside = self._outside(name)
        return outside.elements(name) if outside is not None else self._elements[name]

    def value(self, name: str) -> NDArray[Any] | None:
        """Return the constant in the type it is stored in, or None if it is not known.

        Raises
        ------
        QGeluError
            If the stored data are damaged or were not loaded.
        """
        outside = self._outside(name)
        if outside is not None:
            return outside.value(name)
        if name not in self._elements:
            return None
        if name not in self._values:
            tensor = self._initializers.get(name)
            self._values[name] = self._compute(name) if tensor is None else _array(tensor, name)
        return self._values[name]

    def scalar(self, name: str) -> float | None:
        """Return the value of a constant with one element, of whatever shape; else None."""
        if not self.known(name) or self.elements(name) != 1:
            return None
        value = self.value(name)
        if value is None or value.size != 1 or value.dtype.kind not in _NUMBERS:
            return None
        return float(value.reshape(-1)[0])

    def root(self, name: str) -> str:
        """Return the initializer or Constant output from which a known constant is computed."""
        outside = self._outside(name)
        if outside is not None:
            return outside.root(name)
        while name in self._nodes and self._nodes[name].op_type != "Constant":
            # Of several operands, the largest is the tensor; the others scale or shift it.
            name = max(_data_inputs(self._nodes[name]), key=self.elements)
            if name not in self._elements:
                return self.root(name)
        return name

    def _outside(self, name: str) -> "Constants | None":
        if self._outer is None or name in self._elements or name in self._shadowed:
            return None
        return self._outer if self._outer.known(name) else None

    def _compute(self, name: str) -> NDArray[Any] | None:
        node = self._nodes[name]
        if node.op_type == "Constant":
            value = next(iter(attributes(node).values()))
            return _array(value, name) if isinstance(value, TensorProto) else _literal(node, value)
        inputs = [self.value(each) if self.known(each) else None for each in node.input]
        if inputs[0] is None:
            return None
        try:
            with np.errstate(all="ignore"):
                result = _fold(node, inputs)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise QGeluError(f"constant {name!r} cannot be computed by {node.op_type}: {error}") from error
        return result


def _data_inputs(node: onnx.NodeProto) -> list[str]:
    """Return the inputs that hold the values; empty if the operator is not one that is folded."""
    if node.op_type in _RESHAPING or node.op_type in {"Cast", "CastLike", "Transpose"}:
        return list(node.input[:1])
    if node.op_type in _ARITHMETIC or node.op_type in {"DequantizeLinear", "QuantizeLinear"}:
        return [name for name in node.input if name]
    return []


def _needed_inputs(node: onnx.NodeProto) -> list[str]:
    # CastLike's second input gives only a type.
    return list(node.input[:1]) if node.op_type == "CastLike" else [name for name in node.input if name]


def _array(tensor: TensorProto, name: str) -> NDArray[Any]:
    if uses_external_data(tensor):
        raise QGeluError(f"tensor {name!r} is stored outside the model and was not loaded: load it with its data")
    if tensor.data_type == TensorProto.UNDEFINED or any(size < 0 for size in tensor.dims):
        raise QGeluError(f"tensor {name!r} has no valid type or shape: the model is damaged")
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (KeyError, TypeError, ValueError) as error:
        raise QGeluError(f"tensor {name!r} does not fit its shape {list(tensor.dims)}: {error}") from error


def _literal(node: onnx.NodeProto, value: Any) -> NDArray[Any]:
    integer = any(attribute.name in {"value_int", "value_ints"} for attribute in node.attribute)
    return np.asarray(value, dtype=np.int64 if integer else np.float32)


def _fold(node: onnx.NodeProto, inputs: list[NDArray[Any] | None]) -> NDArray[Any] | None:
    value = inputs[0]
    if value is None or any(each is not None and each.dtype.kind not in _NUMBERS for each in inputs):
        return None
    options = attributes(node)
    name = node.op_type
    if name == "CastLike":
        return value if len(inputs) < 2 or inputs[1] is None else value.astype(inputs[1].dtype)
    if name == "Cast":
        return value.astype(onnx.helper.tensor_dtype_to_np_dtype(options["to"]))
    if name == "Transpose":
        return value.transpose(options.get("perm"))
    if name == "Flatten":
        axis = options.get("axis", 1)
        rows = math.prod(value.shape[: axis if axis >= 0 else value.ndim + axis])
        return value.reshape(rows, value.size // rows if rows else 0)
    if name == "Reshape":
        return None if inputs[1] is None else _reshape(value, inputs[1], bool(options.get("allowzero", 0)))
    if name in {"Squeeze", "Unsqueeze"}:
        axes = options.get("axes") if len(inputs) < 2 else inputs[1]
        axes = None if axes is None else tuple(int(axis) for axis in axes)
        return value.squeeze(axes) if name == "Squeeze" else np.expand_dims(value, axes or ())
    if name == "QuantizeLinear":
        return _quantize(value, inputs[1:], options)
    if name == "DequantizeLinear":
        return _dequantize(value, inputs[1:], options)
    function = operation(node)
    if function is None or any(each is None for each in inputs):
        return None
    shape = np.broadcast_shapes(*(each.shape for each in inputs if each is not None))
    if math.prod(shape) > max(each.size for each in inputs if each is not None):
        return None  # an outer product of constants is no exporter's constant, and could be of any size
    result = np.asarray(function(*inputs))
    return result.astype(value.dtype, copy=False)


def _reshape(value: NDArray[Any], shape: NDArray[Any], allow_zero: bool) -> NDArray[Any]:
    sizes = [int(size) for size in shape.reshape(-1)]
    if not allow_zero:
        sizes = [value.shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    return value.reshape(sizes)


def _quantize(
    value: NDArray[Any], parameters: list[NDArray[Any] | None], options: dict[str, Any]
) -> NDArray[Any] | None:
    """Return codes of 8 or 16 bits, per tensor or per axis; None of other types."""
    scale = parameters[0]
    zero_point = parameters[1] if len(parameters) > 1 else np.zeros((), np.uint8)
    if scale is None or zero_point is None or zero_point.dtype.name not in {"uint8", "int8", "uint16", "int16"}:
        return None
    if options.get("block_size", 0) or options.get("output_dtype", 0):
        return None
    scale, zero_point = (_along_axis(each, value.ndim, options.get("axis", 1)) for each in (scale, zero_point))
    limits = np.iinfo(zero_point.dtype)
    codes = np.rint(value.astype(np.float32) / scale.astype(np.float32)) + zero_point.astype(np.float32)
    return np.asarray(np.clip(codes, limits.min, limits.max)).astype(zero_point.dtype)


def _along_axis(parameter: NDArray[Any], rank: int, axis: int) -> NDArray[Any]:
    if parameter.size == 1:
        return parameter.reshape(())
    shape = [1] * rank
    shape[axis] = -1
    return parameter.reshape(shape)


def _dequantize(
    value: NDArray[Any], parameters: list[NDArray[Any] | None], options: dict[str, Any]
) -> NDArray[Any] | None:
    scale = parameters[0]
    zero_point = parameters[1] if len(parameters) > 1 else None
    if scale is None or options.get("block_size", 0):
        return None
    axis = options.get("axis", 1)
    scale = _along_axis(scale, value.ndim, axis)
    zero_point = None if zero_point is None else _along_axis(zero_point, value.ndim, axis)
    wide = value.astype(np.float32)
    if zero_point is not None:
        wide = wide - zero_point.astype(np.float32)
    return np.asarray(wide * scale.astype(np.float32)).astype(scale.dtype, copy=False)
