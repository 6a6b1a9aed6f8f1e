"""A copy of a model that gives chosen tensors as outputs, and computes nothing else."""

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import onnx

from calibration.errors import CalibrationError

_LARGE: Final = 1 << 30
"""Bytes of initializers from which they go into a file: protobuf ends at 2 GB."""

_SMALL_TENSOR: Final = 1024  # bytes; shape arguments and the like stay in the model


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, those that its subgraphs take from outside among them."""
    yield from node.input
    for attribute in node.attribute:
        for graph in itertools.chain([attribute.g] if attribute.HasField("g") else [], attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)
            yield from (output.name for output in graph.output)


def probe_model(model: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """Return a new model with these outputs and only the nodes that they need; initializers are left out.

    Raises
    ------
    CalibrationError
        If a tensor is not computed by a node of the main graph.
    """
    computed = {name for node in model.graph.node for name in node.output if name}
    for name in outputs:
        if name not in computed:
            raise CalibrationError(
                f"tensor {name!r} is not computed in the model's graph: observe inputs or results of nodes"
            )
    needed, nodes = set(outputs), []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            needed.update(_reads(node))
            nodes.append(node)
    probe = onnx.ModelProto(ir_version=model.ir_version)
    probe.opset_import.extend(model.opset_import)
    probe.functions.extend(model.functions)
    graph = probe.graph
    graph.name = model.graph.name or "probe"
    graph.node.extend(reversed(nodes))
    graph.input.extend(model.graph.input)
    types = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    graph.value_info.extend(
        value for value in model.graph.value_info if value.name in needed and value.name not in outputs
    )
    graph.output.extend(types.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    return probe


def serialize(probe: onnx.ModelProto, model: onnx.ModelProto, folder: Path) -> bytes | str:
    """Return the probe with the initializers of its model, as bytes, or as a path in folder if it is large.

    Raises
    ------
    CalibrationError
        If an initializer's data was not loaded.
    """
    inputs = {value.name for value in probe.graph.input}
    used = {name for node in probe.graph.node for name in _reads(node)} | inputs
    tensors = [tensor for tensor in model.graph.initializer if tensor.name in used]
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise CalibrationError(
                f"initializer {tensor.name!r} is in an external file that was not loaded: load it with the model"
            )
    if sum(_bytes(tensor) for tensor in tensors) < _LARGE:
        probe.graph.initializer.extend(tensors)
        return bytes(probe.SerializeToString())
    with (folder / "weights").open("wb") as file:
        for tensor in tensors:
            if not tensor.HasField("raw_data") or _bytes(tensor) < _SMALL_TENSOR:
                probe.graph.initializer.append(tensor)
                continue
            content = tensor.raw_data
            outside = probe.graph.initializer.add(
                name=tensor.name,
                data_type=tensor.data_type,
                dims=tensor.dims,
                data_location=onnx.TensorProto.EXTERNAL,
            )
            for key, value in (("location", "weights"), ("offset", file.tell()), ("length", len(content))):
                outside.external_data.add(key=key, value=str(value))
            file.write(content)
    path = folder / "model.onnx"
    path.write_bytes(probe.SerializeToString())
    return str(path)


def _bytes(tensor: onnx.TensorProto) -> int:
    """Return the size of a tensor, without a copy of its data; 8 bytes an element at most."""
    return 8 * int(math.prod(tensor.dims))
