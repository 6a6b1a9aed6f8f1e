"""Scope ffn: the linear layers before and after an activation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qgelu.errors import QGeluError
from qgelu.graph.elementwise import STANDARD_DOMAINS, attributes
from qgelu.graph.findings import Ffn, Linear
from qgelu.graph.shapes import Shapes
from qgelu.graph.view import GraphView

_SHAPE_ONLY: Final = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_SHAPE_READERS: Final = frozenset({"Shape", "Size"})


class NotFfnError(Exception):
    """Why an activation is not in an FFN, in one clause."""


@dataclass(frozen=True)
class _Core:
    """A MatMul or Gemm with constant weight."""

    place: int
    input: str
    output: str
    weight: NDArray[Any]
    weight_name: str
    bias: NDArray[Any] | None


class FfnMatcher:
    """Finds the linear layers around activations of one graph."""

    def __init__(self, view: GraphView, shapes: Shapes) -> None:
        self._view = view
        self._shapes = shapes

    def match(self, source: str, target: str, region: Sequence[int], bias: NDArray[Any] | None = None) -> Ffn:
        """Return the FFN of an activation.

        Parameters
        ----------
        source, target : str
            The activation's input and output.
        region : sequence of int
            Its nodes, as places in the view.
        bias : array, optional
            What the activation's node adds to its input; the first layer's bias includes it.

        Raises
        ------
        NotFfnError
            With the reason, if the activation is not in an FFN.
        """
        for place in region:
            tensor = self._view.nodes[place].output[0]
            if tensor != target:
                self._check_used_by(tensor, region, shape_allowed=False)
        first, before = self._first(source, region, bias)
        second, after = self._second(target, first.weight.shape[1])
        return Ffn(first, second, before, after)

    def _first(self, source: str, region: Sequence[int], bias: NDArray[Any] | None) -> tuple[Linear, tuple[str, ...]]:
        self._check_used_by(source, region)
        tensor = source
        chain: list[int] = []
        while (place := self._view.producer(tensor)) is not None and self._is_shape_only(place):
            chain.insert(0, place)
            tensor = self._view.nodes[place].input[0]
            self._check_used_by(tensor, [place], shape_allowed=self._is_shape_only_end(tensor))
        if self._view.is_from_outside(tensor):
            raise NotFfnError(f"its input {tensor!r} is made outside the subgraph")
        if place is None:
            raise NotFfnError(f"its input {tensor!r} is not the output of a MatMul or Gemm")
        added = None
        node = self._view.nodes[place]
        nodes = [place]
        if _is(node, "Add"):
            product, added_name = self._bias_operands(node)
            producer = self._view.producer(product)
            if producer is None:
                raise NotFfnError(f"its input {tensor!r} comes from an Add of an input, not of a MatMul or Gemm")
            core = self._core(
                producer,
                f"its input {tensor!r} comes from an Add after {_article(self._view.nodes[producer].op_type)}",
            )
            self._check_used_by(core.output, [place], shape_allowed=False)
            added = self._bias(added_name, core)
            if added is None:
                raise NotFfnError(f"Add {self._view.label(place)!r} adds more than a bias")
            nodes = [producer, place]
        else:
            core = self._core(place, f"its input {tensor!r} comes from {_article(node.op_type)}")
        columns = core.weight.shape[1]
        self._check_last_axis(chain, columns)
        if bias is not None and bias.size not in {1, columns}:
            raise NotFfnError("the bias of its node does not fit the layer before it")
        return self._linear(core, tensor, nodes, added, bias), self._names(chain)

    def _second(self, target: str, columns: int) -> tuple[Linear, tuple[str, ...]]:
        tensor = target
        chain: list[int] = []
        while True:
            if tensor in self._view.outputs:
                raise NotFfnError(f"its output {tensor!r} is a graph output")
            readers = [place for place in self._view.readers(tensor) if not self._reads_shape(place)]
            if len(readers) != 1:
                raise NotFfnError(f"its output {tensor!r} is read by {len(readers)} nodes, not by one")
            place = readers[0]
            if not self._is_shape_only(place) or self._view.nodes[place].input[0] != tensor:
                break
            if chain and len(self._view.readers(tensor)) != 1:
                raise NotFfnError(f"the shape of {tensor!r} is read")
            chain.append(place)
            tensor = self._view.nodes[place].output[0]
        node = self._view.nodes[place]
        core = self._core(place, f"its output goes into {_article(node.op_type)}")
        if core.input != tensor:
            raise NotFfnError(f"its output is not the left operand of {node.op_type} {self._view.label(place)!r}")
        if core.weight.shape[0] != columns:
            raise NotFfnError(f"the two layers do not fit: {columns} columns, {core.weight.shape[0]} rows")
        self._check_last_axis(chain, columns)
        output, nodes, added = core.output, [place], None
        if output not in self._view.outputs and len(self._view.readers(output)) == 1:
            reader = self._view.readers(output)[0]
            if _is(self._view.nodes[reader], "Add"):
                product, added_name = self._bias_operands(self._view.nodes[reader])
                added = self._bias(added_name, core) if product == output else None
                if added is not None:
                    output, nodes = self._view.nodes[reader].output[0], [place, reader]
        return self._linear(core, output, nodes, added, None), self._names(chain)

    def _core(self, place: int, found: str) -> _Core:
        node = self._view.nodes[place]
        if not (_is(node, "MatMul") or _is(node, "Gemm")) or len(node.input) < 2 or len(node.output) != 1:
            raise NotFfnError(f"{found}, not a MatMul or Gemm")
        label = f"{node.op_type} {self._view.label(place)!r}"
        constants = self._view.constants
        name = node.input[1]
        if constants.known(node.input[0]):
            raise NotFfnError(f"the weight of {label} is its left operand")
        stored = constants.value(name)
        if stored is None:
            raise NotFfnError(f"the weight of {label} is not constant")
        if stored.ndim != 2:
            raise NotFfnError(f"the weight of {label} has {stored.ndim} dimensions, not 2")
        weight, bias = _real(stored, name), None
        if node.op_type == "Gemm":
            options = attributes(node)
            if options.get("transA", 0):
                raise NotFfnError(f"{label} transposes its input")
            weight = _scaled(weight.T if options.get("transB", 0) else weight, options.get("alpha", 1.0))
            if len(node.input) > 2 and node.input[2]:
                bias = self._row(node.input[2], weight.shape[1], 2)
                if bias is None:
                    raise NotFfnError(f"the bias of {label} is not a constant row")
                bias = _scaled(bias, options.get("beta", 1.0))
        return _Core(place, node.input[0], node.output[0], weight, constants.root(name), bias)

    def _bias_operands(self, node: onnx.NodeProto) -> tuple[str, str]:
        """Return the operands of an Add as (product, bias); the bias is the constant one."""
        left, right = node.input
        constants = self._view.constants
        return (right, left) if constants.known(left) and not constants.known(right) else (left, right)

    def _bias(self, name: str, core: _Core) -> NDArray[Any] | None:
        rank = self._shapes.rank(core.output)
        return self._row(name, core.weight.shape[1], 2 if rank is None else rank)

    def _row(self, name: str, columns: int, rank: int) -> NDArray[Any] | None:
        """Return a constant of shape [N], [1, N], ..., [1] or [] as [N]; None if it is anything else."""
        constants = self._view.constants
        if not constants.known(name) or constants.elements(name) not in {1, columns}:
            return None
        value = constants.value(name)
        if value is None or value.ndim > rank or (value.size != 1 and value.shape[-1] != columns):
            return None
        return np.broadcast_to(_real(value, name).reshape(-1), (columns,))

    def _linear(
        self,
        core: _Core,
        output: str,
        nodes: Sequence[int],
        added: NDArray[Any] | None,
        more: NDArray[Any] | None,
    ) -> Linear:
        bias = core.bias
        for term in (added, more):
            if term is not None:
                bias = term if bias is None else bias + term
        if bias is not None:
            bias = np.broadcast_to(bias.reshape(-1), (core.weight.shape[1],))
        return Linear(core.input, output, core.weight, bias, core.weight_name, self._names(nodes))

    def _names(self, places: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._view.nodes[place].output[0] for place in places)

    def _reads_shape(self, place: int) -> bool:
        return _is(self._view.nodes[place], *_SHAPE_READERS)

    def _check_used_by(self, tensor: str, allowed: Sequence[int], shape_allowed: bool = True) -> None:
        if tensor in self._view.outputs:
            raise NotFfnError(f"{tensor!r} is a graph output")
        for place in self._view.readers(tensor):
            if place not in allowed and not (shape_allowed and self._reads_shape(place)):
                node = self._view.nodes[place]
                raise NotFfnError(f"{tensor!r} is also read by {node.op_type} {self._view.label(place)!r}")

    def _is_shape_only_end(self, tensor: str) -> bool:
        """Say whether no further shape-only node makes the tensor: it is then the linear layer's output."""
        place = self._view.producer(tensor)
        return place is None or not self._is_shape_only(place)

    def _is_shape_only(self, place: int) -> bool:
        node = self._view.nodes[place]
        if not _is(node, *_SHAPE_ONLY) or not node.input or self._view.constants.known(node.input[0]):
            return False
        if node.op_type == "Dropout":
            training = node.input[2] if len(node.input) > 2 else ""
            return not attributes(node).get("is_test", 0) and (
                not training or self._view.constants.scalar(training) == 0.0
            )
        if node.op_type == "Transpose":
            order = list(attributes(node).get("perm", ()))
            return bool(order) and order[-1] == len(order) - 1
        return True

    def _check_last_axis(self, chain: Sequence[int], columns: int) -> None:
        """Raise unless every node keeps the rows of [..., columns] as they are.

        A node that keeps the order of the elements keeps the rows if its last axis is as long as before.
        """
        for place in chain:
            node = self._view.nodes[place]
            if node.op_type in {"Dropout", "Identity", "Transpose"}:
                continue
            last = self._shapes.last(node.output[0])
            if last is None and node.op_type == "Reshape" and len(node.input) > 1:
                last = self._last_of_target(node.input[1])
            if last != columns:
                raise NotFfnError(f"{node.op_type} {self._view.label(place)!r} is not known to keep the last axis")

    def _last_of_target(self, name: str) -> int | None:
        """Return the last size that a Reshape's target holds, looking into a Concat."""
        place = self._view.producer(name)
        if not self._view.constants.known(name) and place is not None:
            node = self._view.nodes[place]
            if _is(node, "Concat") and node.input and self._view.constants.known(node.input[-1]):
                name = node.input[-1]
        value = self._view.constants.value(name)
        return int(value.reshape(-1)[-1]) if value is not None and value.size else None


def _is(node: onnx.NodeProto, *names: str) -> bool:
    return node.domain in STANDARD_DOMAINS and node.op_type in names


def _article(operator: str) -> str:
    return f"{'an' if operator[:1] in 'AEIOU' else 'a'} {operator}"


def _real(value: NDArray[Any], name: str) -> NDArray[Any]:
    """Return a constant as float32, or as float64 if it is stored so."""
    if value.dtype == np.float64:
        return value
    if value.dtype.kind in "USOc":
        raise QGeluError(f"tensor {name!r} does not hold numbers: the model is damaged")
    return value.astype(np.float32, copy=False)


def _scaled(value: NDArray[Any], factor: float) -> NDArray[Any]:
    if factor == 1.0:
        return value
    return (value.astype(np.float64) * factor).astype(value.dtype)
