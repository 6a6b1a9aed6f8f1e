"""Which names a graph uses, subgraphs included."""

from collections.abc import Iterator

import onnx


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes (If, Loop, Scan)."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def used_by(node: onnx.NodeProto) -> set[str]:
    """Return the tensors a node reads, those that its subgraphs take from outside included."""
    used = {name for name in node.input if name}
    for graph in subgraphs(node):
        inner = {value.name for value in graph.output}
        for child in graph.node:
            inner |= used_by(child)
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        own |= {output for child in graph.node for output in child.output}
        used |= inner - own
    return used


def used_names(graph: onnx.GraphProto) -> set[str]:
    """Return every name of a tensor or node in a graph and its subgraphs."""
    names = {value.name for values in (graph.input, graph.output, graph.value_info) for value in values}
    names |= {tensor.name for tensor in graph.initializer}
    names |= {tensor.values.name for tensor in graph.sparse_initializer}
    for node in graph.node:
        names |= {node.name, *node.input, *node.output}
        for child in subgraphs(node):
            names |= used_names(child)
    return names
