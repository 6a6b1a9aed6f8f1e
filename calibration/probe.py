"""A copy of a model that gives chosen tensors as outputs, and computes nothing else."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx

from calibration.control_flow import HandedOut, HandOut, inner_graphs, makes_inside
from calibration.errors import CalibrationError
from calibration.missing_kernels import with_kernels

_LARGE: Final = 1 << 30
"""Bytes of initializers from which they go into a file: protobuf ends at 2 GB."""

_SMALL_TENSOR: Final = 1024  # bytes; shape arguments and the like stay in the model


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, those that its subgraphs take from outside among them."""
    yield from node.input
    for graph in inner_graphs(node):
        for inner in graph.node:
            yield from _reads(inner)
        yield from (output.name for output in graph.output)


@dataclass(frozen=True)
class Probe:
    """A model to run, and where it gives the tensors that were asked for.

    Parameters
    ----------
    model : ModelProto
        Without initializers.
    outputs : tuple of str
        The model's outputs, one for each tensor.
    handed_out : dict of str to HandedOut
        Of the tensors that are inside subgraphs.
    """

    model: onnx.ModelProto
    outputs: tuple[str, ...]
    handed_out: dict[str, HandedOut]


def probe_model(model: onnx.ModelProto, tensors: Sequence[str], as_float: Collection[str] = ()) -> Probe:
    """Return a new model that gives these tensors and has only the nodes that they need.

    Parameters
    ----------
    model : ModelProto
        Tensors have unique names, in subgraphs too.
    tensors : sequence of str
    as_float : collection of str
        Those of the main graph to give as float32.

    Raises
    ------
    CalibrationError
        If a tensor is not computed by a node, or cannot be handed out of the subgraph that it is in.
    """
    whole = onnx.GraphProto(input=model.graph.input, output=model.graph.output)
    whole.node.extend(with_kernels(model.graph.node))
    computed = {name for node in whole.node for name in node.output if name}
    hand_out = HandOut(whole, {tensor.name for tensor in model.graph.initializer})
    handed_out: dict[str, HandedOut] = {}
    outputs = []
    for name in tensors:
        if name in computed:
            outputs.append(hand_out.as_float(name) if name in as_float else name)
        elif any(makes_inside(node, name) for node in whole.node):
            handed_out[name] = hand_out.add(name)
            outputs.append(handed_out[name].sequence)
        else:
            raise CalibrationError(f"tensor {name!r} is not computed in the model: observe inputs or results of nodes")
    needed, used = _needed(whole.node, outputs)
    probe = onnx.ModelProto(ir_version=model.ir_version)
    probe.opset_import.extend(model.opset_import)
    probe.functions.extend(model.functions)
    for function in probe.functions:
        body = with_kernels(function.node)
        del function.node[:]
        function.node.extend(body)
    graph = probe.graph
    graph.name = model.graph.name or "probe"
    graph.node.extend(whole.node[place] for place in sorted(used))
    graph.input.extend(model.graph.input)
    types = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    graph.value_info.extend(
        value for value in model.graph.value_info if value.name in needed and value.name not in outputs
    )
    graph.output.extend(types.get(name, onnx.ValueInfoProto(name=name)) for name in outputs)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    return Probe(probe, tuple(outputs), handed_out)


def holds_bfloat16(model: onnx.ModelProto) -> bool:
    """Say whether a model's inputs, initializers or casts are of type bfloat16."""
    kind = onnx.TensorProto.BFLOAT16
    return (
        any(tensor.data_type == kind for tensor in model.graph.initializer)
        or any(value.type.tensor_type.elem_type == kind for value in model.graph.input)
        or any(
            attribute.name == "to" and attribute.i == kind for node in model.graph.node for attribute in node.attribute
        )
    )


def _needed(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> tuple[set[str], set[int]]:
    """Return the tensors that outputs depend on, and the places of the nodes that make them."""
    producers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    needed: set[str] = set()
    places: set[int] = set()
    waiting = list(outputs)
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        if name in producers and producers[name] not in places:
            places.add(producers[name])
            waiting += _reads(nodes[producers[name]])
    return needed, places


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
