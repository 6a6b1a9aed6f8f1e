"""Scope activation: QuantizeLinear -> qgelu.QGelu -> DequantizeLinear in place of the float activation.

Before: nodes compute f(x) from the float tensor x. After: the same output name holds the dequantized answer of
the table; interior tensors that others read stay computed.
"""

import numpy as np
from onnx import TensorProto

from qgelu.errors import QGeluError
from qgelu.graph.editor import GraphEditor
from qgelu.graph.findings import Site
from qgelu.graph.functions import DOMAIN, Opsets
from qgelu.graph.plan_nodes import plan_node, tensor_type
from qgelu.qparams import QParams
from qgelu.table_plan import TablePlan

_SIXTEEN_BIT_OPSET = 21
"""QuantizeLinear takes 16-bit codes from this opset on."""


def quantize_nodes(editor: GraphEditor, x: str, params: QParams, hint: str) -> str:
    """Queue nodes that turn a float32 tensor into codes, per tensor; return the codes' name."""
    scale = editor.constant(np.array(params.scale, np.float32), f"{hint}/scale")
    if params.bits <= 8 or editor.opset >= _SIXTEEN_BIT_OPSET:
        zero = editor.constant(np.array(params.zero_point, params.dtype), f"{hint}/zero_point")
        return editor.node("QuantizeLinear", [x, scale, zero], f"{hint}/codes")
    scaled = editor.node("Round", [editor.node("Div", [x, scale], f"{hint}/scaled")], f"{hint}/rounded")
    zero = editor.constant(np.array(params.zero_point, np.float32), f"{hint}/zero_point")
    low = editor.constant(np.array(params.qmin, np.float32), f"{hint}/qmin")
    high = editor.constant(np.array(params.qmax, np.float32), f"{hint}/qmax")
    clipped = editor.node("Clip", [editor.node("Add", [scaled, zero], f"{hint}/shifted"), low, high], f"{hint}/clipped")
    return editor.node("Cast", [clipped], f"{hint}/codes", to=tensor_type(params.dtype))


def dequantize_nodes(editor: GraphEditor, codes: str, params: QParams, hint: str, output: str | None = None) -> str:
    """Queue nodes that turn codes into a float32 tensor, per tensor; return its name."""
    scale = editor.constant(np.array(params.scale, np.float32), f"{hint}/scale")
    if params.bits <= 8 or editor.opset >= _SIXTEEN_BIT_OPSET:
        zero = editor.constant(np.array(params.zero_point, params.dtype), f"{hint}/zero_point")
        return editor.node("DequantizeLinear", [codes, scale, zero], f"{hint}/real", output=output)
    real = editor.node("Cast", [codes], f"{hint}/codes_as_float", to=TensorProto.FLOAT)
    zero = editor.constant(np.array(params.zero_point, np.float32), f"{hint}/zero_point")
    shifted = editor.node("Sub", [real, zero], f"{hint}/unshifted")
    return editor.node("Mul", [shifted, scale], f"{hint}/real", output=output)


def as_float32(editor: GraphEditor, x: str, element_type: int, hint: str) -> str:
    """Queue a Cast to float32 unless x is float32 already."""
    if element_type == TensorProto.FLOAT:
        return x
    return editor.node("Cast", [x], f"{hint}/float32", to=TensorProto.FLOAT)


def check_element_type(element_type: int, name: str) -> None:
    """Raise QGeluError unless a site's tensors are float32, float16 or bfloat16."""
    if element_type not in {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}:
        kind = TensorProto.DataType.Name(element_type).lower()
        raise QGeluError(f"site {name!r} computes in {kind}: convert the model to float32 first")


def rewrite_activation(editor: GraphEditor, site: Site, plan: TablePlan, element_type: int) -> None:
    """Replace one activation by its table; between codes that the model holds already, by the table alone.

    Raises
    ------
    QGeluError
        If the site's element type cannot be served.
    """
    check_element_type(element_type, site.name)
    editor.enter(site.output)
    hint = f"qgelu/{site.name}"
    assert isinstance(plan.input, QParams)
    before, after = site.codes_with(plan.input.bits)
    if before is not None:
        codes = before.tensor
    else:
        x = as_float32(editor, site.input, element_type, hint)
        if site.bias is not None:
            bias = editor.constant(site.bias.astype(np.float32), f"{hint}/bias")
            x = editor.node("Add", [x, bias], f"{hint}/biased")
        codes = quantize_nodes(editor, x, plan.input, f"{hint}/input")
    node = plan_node(plan)
    editor.use_function(node.function(Opsets(editor.opset, editor.ml_version)))
    inputs = [codes, *(editor.constant(value, f"{hint}/{name}") for name, value in node.parameters.items())]
    last = None if after is None else after.tensor
    answer = editor.node(node.op_type, inputs, f"{hint}/activated", output=last, domain=DOMAIN, **node.attributes)
    if after is not None:
        editor.replace(after.tensor)
        return
    if element_type == TensorProto.FLOAT:
        dequantize_nodes(editor, answer, plan.output, f"{hint}/output", site.output)
    else:
        real = dequantize_nodes(editor, answer, plan.output, f"{hint}/output")
        editor.node("Cast", [real], f"{hint}/cast_back", output=site.output, to=element_type)
    editor.replace(site.output)
