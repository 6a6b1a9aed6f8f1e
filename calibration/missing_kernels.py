"""Operators that ONNX Runtime 1.32 cannot run, in operators that it can."""

from collections.abc import Iterable
from typing import Final

import onnx

_DOMAINS: Final = ("", "ai.onnx")


def _is_missing(node: onnx.NodeProto) -> bool:
    return node.op_type == "Swish" and node.domain in _DOMAINS


def _graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs) if graph.node]


def _needs_change(node: onnx.NodeProto) -> bool:
    return _is_missing(node) or any(_needs_change(inner) for graph in _graphs(node) for inner in graph.node)


def with_kernels(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes, in copies that ONNX Runtime can run where it has no kernel: Swish as x sigmoid(alpha x)."""
    result: list[onnx.NodeProto] = []
    for node in nodes:
        if _is_missing(node):
            result += _swish(node)
        elif _needs_change(node):
            changed = onnx.NodeProto()
            changed.CopyFrom(node)
            for graph in _graphs(changed):
                inner = with_kernels(graph.node)
                del graph.node[:]
                graph.node.extend(inner)
            result.append(changed)
        else:
            result.append(node)
    return result


def runnable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model, or a copy that ONNX Runtime can run, if it has no kernel for one of its operators."""
    bodies = [model.graph.node, *(function.node for function in model.functions)]
    if not any(_needs_change(node) for nodes in bodies for node in nodes):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for body in (changed.graph, *changed.functions):
        nodes = with_kernels(body.node)
        del body.node[:]
        body.node.extend(nodes)
    return changed


def _swish(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    x, y = node.input[0], node.output[0]
    given = next((attribute for attribute in node.attribute if attribute.name == "alpha"), None)
    constant = onnx.NodeProto(op_type="Constant", output=[f"{y}/alpha"])
    value = constant.attribute.add(name="value_float", type=onnx.AttributeProto.FLOAT, f=1.0)
    if given is not None:
        value.f, value.ref_attr_name = given.f, given.ref_attr_name
    make = onnx.helper.make_node
    return [
        constant,
        make("CastLike", [f"{y}/alpha", x], [f"{y}/alpha_like"]),
        make("Mul", [x, f"{y}/alpha_like"], [f"{y}/scaled"]),
        make("Sigmoid", [f"{y}/scaled"], [f"{y}/gate"]),
        make("Mul", [x, f"{y}/gate"], [y], name=node.name),
    ]
