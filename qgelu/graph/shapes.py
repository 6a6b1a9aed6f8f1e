"""Shapes and element types of a graph's tensors, by shape inference alone."""

import functools
import math
from typing import Final

import onnx
from onnx import TensorProto, helper

from qgelu.graph.elementwise import CONTRIB_DOMAIN, STANDARD_DOMAINS
from qgelu.graph.names import all_graphs, subgraphs

_SMALL: Final = 64
"""Initializers up to this size may hold a shape; the others' values are of no use to inference."""

_KEEP_SHAPE: Final = frozenset({"BiasGelu", "FastGelu", "Gelu", "QuickGelu"})

_MADE_UP: Final = "unk__"
"""How the names begin that inference itself gives to sizes."""

Dimensions = tuple[int | str | None, ...]


class Shapes:
    """What shape inference finds out of a graph and its subgraphs, computed when first asked for.

    Tensors go by their names: what two subgraphs name alike is told of one of them.
    What the model itself states about its inner tensors and outputs may be missing or wrong: it is not used.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model

    def dimensions(self, tensor: str) -> Dimensions | None:
        """Return the sizes (None or a name if not known), or None if not even the rank is known."""
        value = self._inferred.get(tensor)
        if value is None or not value.HasField("shape"):
            return None
        return tuple(_size(each) for each in value.shape.dim)

    def rank(self, tensor: str) -> int | None:
        """Return the number of dimensions, None if it is not known."""
        dimensions = self.dimensions(tensor)
        return None if dimensions is None else len(dimensions)

    def last(self, tensor: str) -> int | None:
        """Return the size of the last axis, None if it is not known."""
        dimensions = self.dimensions(tensor)
        return dimensions[-1] if dimensions and isinstance(dimensions[-1], int) else None

    def element_type(self, tensor: str) -> int | None:
        """Return the ONNX element type, None if it is not known."""
        value = self._inferred.get(tensor)
        return value.elem_type if value is not None and value.elem_type else None

    def stated_element_type(self, tensor: str) -> int | None:
        """Return the element type that the model itself states, None if it does not."""
        return self._stated.get(tensor)

    @functools.cached_property
    def _stated(self) -> dict[str, int]:
        return {
            value.name: value.type.tensor_type.elem_type
            for graph in all_graphs(self._model.graph)
            for value in (*graph.input, *graph.value_info, *graph.output)
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type
        }

    @functools.cached_property
    def _inferred(self) -> dict[str, onnx.TypeProto.Tensor]:
        bare = _bare(self._model)
        for data_propagation in (True, False):
            try:
                graph = onnx.shape_inference.infer_shapes(bare, data_prop=data_propagation).graph
            except Exception:  # whatever a damaged or unusual model makes it raise: then nothing is known
                continue
            return {
                value.name: value.type.tensor_type
                for each in all_graphs(graph)
                for value in (*each.input, *each.value_info, *each.output)
                if value.type.HasField("tensor_type")
            }
        return {}


def _size(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dimension.HasField("dim_value"):
        return int(dimension.dim_value)
    name = str(dimension.dim_param)
    return None if not name or name.startswith(_MADE_UP) else name


def _bare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without weights, stated shapes and fused activations that inference does not know."""
    graph = onnx.GraphProto(name="shapes")
    initializers = {tensor.name for tensor in model.graph.initializer}
    graph.input.extend(value for value in model.graph.input if value.name not in initializers)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL and tensor.data_location != TensorProto.EXTERNAL:
            graph.initializer.append(tensor)
        else:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    graph.node.extend(_bare_node(node) for node in model.graph.node)
    graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in model.graph.output)
    return helper.make_model(
        graph,
        opset_imports=[entry for entry in model.opset_import if entry.domain in STANDARD_DOMAINS]
        + [entry for entry in model.opset_import if entry.domain not in STANDARD_DOMAINS],
        functions=model.functions,
        ir_version=model.ir_version,
    )


def _bare_node(node: onnx.NodeProto) -> onnx.NodeProto:
    if node.domain == CONTRIB_DOMAIN and node.op_type in _KEEP_SHAPE:
        return helper.make_node("Identity", node.input[:1], node.output[:1])
    if not any(True for _ in subgraphs(node)):
        return node
    bare = onnx.NodeProto()
    bare.CopyFrom(node)
    for graph in subgraphs(bare):
        nodes = [_bare_node(inner) for inner in graph.node]
        outputs = [onnx.ValueInfoProto(name=value.name) for value in graph.output]
        for field in (graph.node, graph.value_info, graph.output):
            del field[:]
        graph.node.extend(nodes)
        graph.output.extend(outputs)
    return bare
