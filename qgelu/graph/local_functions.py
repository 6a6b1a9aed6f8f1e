"""Model-local functions that compute something elementwise: a call of one is like one operator."""

from typing import Any, Final

import numpy as np
import onnx

from qgelu.graph.constants import Constants
from qgelu.graph.elementwise import Array, Operation, is_anchor, operation

# An elementwise function is small; what calls more than this is not one.
_MAX_DEPTH: Final = 3
_MAX_NODES: Final = 32


class LocalFunctions:
    """The functions of a model, by what they compute."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {
            _key(function.domain, function.name, function.overload): function for function in model.functions
        }
        self._treated_as_operators: set[str] = set()

    def treats_as_operator(self, function: onnx.FunctionProto) -> bool:
        """Say whether :meth:`operation` has served calls of a function, which is thereby dealt with."""
        return _key(function.domain, function.name, function.overload) in self._treated_as_operators

    def is_call(self, node: onnx.NodeProto) -> bool:
        """Say whether a node calls a function of the model."""
        return self._called(node) is not None

    def _called(self, node: onnx.NodeProto) -> onnx.FunctionProto | None:
        return self._functions.get(_key(node.domain, node.op_type, node.overload))

    def is_anchor(self, node: onnx.NodeProto, depth: int = 0) -> bool:
        """Say whether the node, or one in the function it calls, may be the gate of an activation."""
        function = self._called(node)
        if function is None:
            return is_anchor(node)
        if depth >= _MAX_DEPTH or len(function.node) > _MAX_NODES:
            return False
        return any(self.is_anchor(child, depth + 1) for child in function.node)

    def operation(self, node: onnx.NodeProto, depth: int = 0) -> Operation | None:
        """Return what a call computes, None if it calls no function or one that is not elementwise."""
        function = self._called(node)
        if (
            function is None
            or depth >= _MAX_DEPTH
            or len(function.node) > _MAX_NODES
            or len(function.output) != 1
            or len(node.output) != 1
            or len(node.input) != len(function.input)
            or not all(node.input)
        ):
            return None
        body = [_bound(child, node, function) for child in function.node]
        constants = Constants((), body)
        computed = set(function.input)
        steps: list[tuple[onnx.NodeProto, Operation]] = []
        for child in body:
            if all(constants.known(name) for name in child.output):
                continue
            step = operation(child) if self._called(child) is None else self.operation(child, depth + 1)
            known = (not name or name in computed or _is_scalar(constants, name) for name in child.input)
            if step is None or len(child.output) != 1 or not all(known):
                return None
            computed.add(child.output[0])
            steps.append((child, step))
        names = list(function.input)
        result = function.output[0]
        if result not in computed:
            return None

        self._treated_as_operators.add(_key(function.domain, function.name, function.overload))

        def call(*arguments: Array) -> Array:
            values: dict[str, Array] = dict(zip(names, arguments, strict=True))
            for child, step in steps:
                inputs = [_argument(name, values, constants) for name in child.input]
                values[child.output[0]] = step(*inputs)
            return values[result]

        return call


def _key(domain: str, name: str, overload: str) -> str:
    return "\0".join((domain, name, overload))


def _is_scalar(constants: Constants, name: str) -> bool:
    return constants.known(name) and constants.elements(name) == 1


def _argument(name: str, values: dict[str, Array], constants: Constants) -> Array | None:
    if not name:
        return None
    return values[name] if name in values else np.asarray(constants.scalar(name), dtype=np.float64)


def _bound(child: onnx.NodeProto, call: onnx.NodeProto, function: onnx.FunctionProto) -> onnx.NodeProto:
    """Return a node of a function with the attributes that the call gives it."""
    if not any(attribute.ref_attr_name for attribute in child.attribute):
        return child
    given: dict[str, Any] = {attribute.name: attribute for attribute in function.attribute_proto}
    given |= {attribute.name: attribute for attribute in call.attribute}
    bound = onnx.NodeProto()
    bound.CopyFrom(child)
    del bound.attribute[:]
    for attribute in child.attribute:
        if not attribute.ref_attr_name:
            bound.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            value = onnx.AttributeProto()
            value.CopyFrom(given[attribute.ref_attr_name])
            value.name = attribute.name
            bound.attribute.append(value)
    return bound
