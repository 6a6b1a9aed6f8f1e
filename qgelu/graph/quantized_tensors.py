"""Codes that a model holds around an activation already: DequantizeLinear before it, QuantizeLinear after it."""

from typing import Final

import onnx
from onnx import TensorProto

from qgelu.errors import QGeluError
from qgelu.graph.elementwise import CONTRIB_DOMAIN, STANDARD_DOMAINS, attributes
from qgelu.graph.findings import Codes
from qgelu.graph.shapes import Shapes
from qgelu.graph.view import GraphView
from qgelu.qparams import QParams

_BITS_AND_SIGN: Final[dict[int | None, tuple[int, bool]]] = {
    TensorProto.UINT8: (8, False),
    TensorProto.INT8: (8, True),
    TensorProto.UINT16: (16, False),
    TensorProto.INT16: (16, True),
}


def codes_before(tensor: str, view: GraphView, shapes: Shapes) -> Codes | None:
    """Return the codes that a tensor is dequantized from, per tensor; None if it is not."""
    place = view.producer(tensor)
    if place is None or not _is(view.nodes[place], "DequantizeLinear"):
        return None
    node = view.nodes[place]
    return _codes(node, node.input[0], shapes.element_type(node.input[0]), view)


def codes_after(tensor: str, view: GraphView) -> Codes | None:
    """Return the codes that a tensor is quantized to, per tensor; None if it is not, or if it is read otherwise too."""
    readers = view.readers(tensor)
    if tensor in view.outputs or len(readers) != 1:
        return None
    node = view.nodes[readers[0]]
    if not _is(node, "QuantizeLinear") or node.input[0] != tensor:
        return None
    return _codes(node, node.output[0], attributes(node).get("output_dtype", 0) or TensorProto.UINT8, view)


def _is(node: onnx.NodeProto, operator: str) -> bool:
    return node.op_type == operator and (node.domain in STANDARD_DOMAINS or node.domain == CONTRIB_DOMAIN)


def _codes(node: onnx.NodeProto, tensor: str, default_type: int | None, view: GraphView) -> Codes | None:
    if len(node.input) < 2 or view.constants.known(tensor):
        return None
    scale = view.constants.scalar(node.input[1])
    zero_point, kind = 0, default_type
    if len(node.input) > 2 and node.input[2]:
        value = view.constants.value(node.input[2])
        if value is None or value.size != 1 or value.dtype.kind not in "iu":
            return None
        zero_point, kind = int(value.reshape(-1)[0]), onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
    if scale is None or kind not in _BITS_AND_SIGN:
        return None
    bits, signed = _BITS_AND_SIGN[kind]
    try:
        return Codes(tensor, QParams(scale, zero_point, bits, signed))
    except QGeluError:  # a scale that no plan can have
        return None
