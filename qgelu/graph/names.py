"""Which names a graph uses, subgraphs included."""

from collections.abc import Iterable, Iterator

import onnx


def graphs_of(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in an attribute."""
    if attribute.type == onnx.AttributeProto.GRAPH:
        yield attribute.g
    elif attribute.type == onnx.AttributeProto.GRAPHS:
        yield from attribute.graphs


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes (If, Loop, Scan)."""
    for attribute in node.attribute:
        yield from graphs_of(attribute)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and everything inside it: subgraphs, and theirs."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from all_graphs(inner)


def every_node(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and those in their subgraphs."""
    for node in nodes:
        yield node
        for inner in subgraphs(node):
            yield from every_node(inner.node)


def made_in(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the tensors that a graph itself defines: inputs, initializers and results of nodes."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


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
