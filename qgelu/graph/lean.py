"""Copies of a model without its weights: what copies, converts or writes the rest need not hold them twice."""

from collections.abc import Iterable

import onnx


def without_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model without the initializers of its main graph."""
    lean = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _copy_field(lean, field.name, value)
    for field, value in model.graph.ListFields():
        if field.name != "initializer":
            _copy_field(lean.graph, field.name, value)
    return lean


def append_initializers(graph: onnx.GraphProto, tensors: Iterable[onnx.TensorProto]) -> None:
    """Add copies of tensors to a graph; ``extend`` would serialize each, and fail beyond 2 GB."""
    for tensor in tensors:
        graph.initializer.add().CopyFrom(tensor)


def _copy_field(target: onnx.ModelProto | onnx.GraphProto, name: str, value: object) -> None:
    if isinstance(value, str | int):
        setattr(target, name, value)
    else:
        getattr(target, name).MergeFrom(value)
