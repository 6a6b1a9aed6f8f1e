"""Tensors inside If, Loop and Scan, handed out to the main graph.

A sequence is passed through the nodes around a tensor, and each branch or iteration that computes the tensor appends
it, as float32. Scan passes no sequences on: what is inside one is stacked along a new first axis, in iterations.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from calibration.errors import CalibrationError


@dataclass(frozen=True)
class HandedOut:
    """Where the values of an inner tensor are found.

    Parameters
    ----------
    sequence : str
        Tensor of the main graph: a sequence with one entry for each time that the tensor was computed.
    stacked : int
        How many first axes of an entry are iterations of a Scan.
    """

    sequence: str
    stacked: int


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the subgraphs of a node."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def makes(graph: onnx.GraphProto, tensor: str) -> bool:
    """Say whether a subgraph, or one inside it, computes a tensor or takes it as an input."""
    if any(value.name == tensor for value in graph.input):
        return True
    return any(tensor in node.output or makes_inside(node, tensor) for node in graph.node)


def makes_inside(node: onnx.NodeProto, tensor: str) -> bool:
    """Say whether a subgraph of a node computes a tensor or takes it as an input."""
    return any(makes(inner, tensor) for inner in inner_graphs(node))


class HandOut:
    """Hands tensors out of the subgraphs of a graph, which is changed.

    Parameters
    ----------
    graph : GraphProto
        Main graph; tensors have unique names, in subgraphs too.
    taken : set of str
        More names that are not free.
    """

    def __init__(self, graph: onnx.GraphProto, taken: set[str]) -> None:
        self._graph = graph
        self._taken = set(_names(graph)) | taken

    def add(self, tensor: str) -> HandedOut:
        """Hand out one more tensor.

        Raises
        ------
        CalibrationError
            If it is inside another node than If, Loop and Scan, or inside an If or Loop in a Scan.
        """
        start = self._fresh("none")
        result = self._append(self._graph, tensor, start)
        self._graph.node.insert(0, helper.make_node("SequenceEmpty", [], [start], dtype=TensorProto.FLOAT))
        return result

    def as_float(self, tensor: str) -> str:
        """Give a tensor of the main graph as float32; return the new tensor's name."""
        return self._stack(self._graph, tensor)[0]

    def _append(self, graph: onnx.GraphProto, tensor: str, sequence: str) -> HandedOut:
        """Let a graph append its values of a tensor to a sequence."""
        node = _around(graph, tensor)
        if node is None or node.op_type == "Scan":
            value, stacked = self._stack(graph, tensor)
            longer = self._fresh("appended")
            graph.node.append(helper.make_node("SequenceInsert", [sequence, value], [longer]))
            return HandedOut(longer, stacked)
        if node.op_type == "If":
            return self._through_if(node, tensor, sequence)
        if node.op_type == "Loop":
            return self._through_loop(node, tensor, sequence)
        raise CalibrationError(f"tensor {tensor!r} is inside a {node.op_type}: only If, Loop and Scan hand values out")

    def _through_if(self, node: onnx.NodeProto, tensor: str, sequence: str) -> HandedOut:
        stacked = 0
        for branch in inner_graphs(node):
            if makes(branch, tensor):
                found = self._append(branch, tensor, sequence)
                last, stacked = found.sequence, found.stacked
            else:
                last = self._fresh("unchanged")
                branch.node.append(helper.make_node("Identity", [sequence], [last]))
            branch.output.append(_sequence_info(last))
        result = self._fresh("joined")
        node.output.append(result)
        return HandedOut(result, stacked)

    def _through_loop(self, node: onnx.NodeProto, tensor: str, sequence: str) -> HandedOut:
        (body,) = inner_graphs(node)
        carried = len(body.input) - 2  # the others are the iteration's number and the condition
        before = self._fresh("before")
        found = self._append(body, tensor, before)
        body.input.append(_sequence_info(before))
        body.output.insert(1 + carried, _sequence_info(found.sequence))
        node.input.extend([""] * (2 + carried - len(node.input)))
        node.input.append(sequence)
        node.output.extend([""] * (carried - len(node.output)))
        result = self._fresh("joined")
        node.output.insert(carried, result)
        return HandedOut(result, found.stacked)

    def _stack(self, graph: onnx.GraphProto, tensor: str) -> tuple[str, int]:
        """Make a tensor available in a graph, as float32; return its name there, and how many axes were added."""
        node = _around(graph, tensor)
        if node is None:
            value = self._fresh("float")
            graph.node.append(helper.make_node("Cast", [tensor], [value], to=TensorProto.FLOAT))
            return value, 0
        if node.op_type != "Scan":
            raise CalibrationError(
                f"tensor {tensor!r} is inside a {node.op_type} in a Scan, which hands out no values from there: "
                "leave this site out"
            )
        (body,) = inner_graphs(node)
        inner, depth = self._stack(body, tensor)
        outputs = len(body.output)
        body.output.append(onnx.ValueInfoProto(name=inner))
        for attribute in node.attribute:
            if attribute.name in {"scan_output_axes", "scan_output_directions"} and attribute.ints:
                attribute.ints.append(0)
        node.output.extend([""] * (outputs - len(node.output)))
        result = self._fresh("stacked")
        node.output.append(result)
        return result, depth + 1

    def _fresh(self, hint: str) -> str:
        number = 0
        while f"calibration/{hint}_{number}" in self._taken:
            number += 1
        self._taken.add(f"calibration/{hint}_{number}")
        return f"calibration/{hint}_{number}"


def _around(graph: onnx.GraphProto, tensor: str) -> onnx.NodeProto | None:
    """Return the node whose subgraph makes a tensor; None if the graph itself does."""
    return next((node for node in graph.node if makes_inside(node, tensor)), None)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in (*graph.input, *graph.output, *graph.initializer))
    for node in graph.node:
        yield from (*node.input, *node.output)
        for inner in inner_graphs(node):
            yield from _names(inner)


def _sequence_info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)
