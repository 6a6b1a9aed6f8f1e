"""Target qdq: QuantizeLinear and DequantizeLinear with our scales around float ops, for compilers that fuse.

The float nodes of a site are repeated between the new nodes; the originals go where nothing else reads them.
"""

from typing import Any

import numpy as np
import onnx

from qgelu.errors import QGeluError
from qgelu.ffn import quantize_weight
from qgelu.graph.editor import GraphEditor
from qgelu.graph.findings import Ffn, Linear, Site
from qgelu.graph.repeat import repeat_activation, repeat_nodes
from qgelu.graph.rewrite_activation import check_element_type, dequantize_nodes, quantize_nodes
from qgelu.qparams import QParams
from qgelu.table_plan import TablePlan

_BIAS_LIMIT = (1 << 31) - 1


def _quantize_dequantize(editor: GraphEditor, x: str, params: QParams, hint: str, output: str | None = None) -> str:
    return dequantize_nodes(editor, quantize_nodes(editor, x, params, hint), params, hint, output)


def _check_float32(element_type: int, name: str) -> None:
    check_element_type(element_type, name)
    if element_type != onnx.TensorProto.FLOAT:
        raise QGeluError(f"site {name!r} is not float32: target 'qdq' needs a float32 model")


def rewrite_qdq_activation(editor: GraphEditor, site: Site, plan: TablePlan, element_type: int) -> None:
    """Put QuantizeLinear and DequantizeLinear before and after one float activation, where the model has none yet."""
    _check_float32(element_type, site.name)
    assert isinstance(plan.input, QParams)
    editor.enter(site.output)
    hint = f"qgelu/{site.name}"
    producers = {output: node for node in editor.graph.node for output in node.output}
    before, after = site.codes_with(plan.input.bits)
    if before is not None and after is not None:
        return
    x = site.input
    if site.bias is not None:
        x = editor.node("Add", [x, editor.constant(site.bias.astype(np.float32), f"{hint}/bias")], f"{hint}/biased")
    renamed = {site.input: x if before else _quantize_dequantize(editor, x, plan.input, f"{hint}/input")}
    repeat_activation(editor, site, producers, renamed, hint)
    if after is None:
        _quantize_dequantize(editor, renamed[site.output], plan.output, f"{hint}/output", site.output)
    else:
        editor.node("Identity", [renamed[site.output]], f"{hint}/same", output=site.output)
    editor.replace(site.output)


def _check_bias(linear: Linear, input_scale: Any) -> None:
    """Raise QGeluError if a runtime that makes the bias int32, as for an integer Gemm, would saturate it."""
    if linear.bias is None:
        return
    _, scale = quantize_weight(linear.weight.astype(np.float64))
    codes = np.abs(linear.bias.astype(np.float64)) / (scale * input_scale)
    if codes.size and float(codes.max()) > _BIAS_LIMIT:
        raise QGeluError(
            f"the bias after weight {linear.weight_name!r} does not fit int32 at channel {int(np.argmax(codes))}: "
            "leave this site out"
        )


def _linear(editor: GraphEditor, x: str, linear: Linear, hint: str, output: str | None = None) -> str:
    """Queue x @ dequantized int8 weight + float bias."""
    codes, scale = quantize_weight(linear.weight.astype(np.float64))
    weight = editor.node(
        "DequantizeLinear",
        [
            editor.constant(codes, f"{hint}/weight_codes"),
            editor.constant(scale.astype(np.float32), f"{hint}/weight_scale"),
            editor.constant(np.zeros(scale.shape, np.int8), f"{hint}/weight_zero_point"),
        ],
        f"{hint}/weight",
        axis=1,
    )
    if linear.bias is None:
        return editor.node("MatMul", [x, weight], f"{hint}/product", output=output)
    product = editor.node("MatMul", [x, weight], f"{hint}/product")
    bias = editor.constant(linear.bias.astype(np.float32), f"{hint}/bias")
    return editor.node("Add", [product, bias], f"{hint}/sum", output=output)


def rewrite_qdq_ffn(
    editor: GraphEditor, site: Site, ffn: Ffn, plan: TablePlan, input: QParams, element_type: int
) -> None:
    """Put QuantizeLinear and DequantizeLinear around both matmuls, their weights and the float activation.

    Raises
    ------
    QGeluError
        If the site's element type cannot be served, or a bias would not fit int32; the graph is as before then.
    """
    _check_float32(element_type, site.name)
    _check_bias(ffn.first, input.scale)
    _check_bias(ffn.second, plan.output.scale)
    assert isinstance(plan.input, QParams)
    editor.enter(site.output)
    hint = f"qgelu/{site.name}"
    producers = {output: node for node in editor.graph.node for output in node.output}
    x = _quantize_dequantize(editor, ffn.first.input, input, f"{hint}/input")
    renamed = {ffn.first.output: _linear(editor, x, ffn.first, f"{hint}/first")}
    repeat_nodes(editor, producers, ffn.before, renamed, f"{hint}/before")
    source = renamed.get(site.input, site.input)
    renamed[site.input] = _quantize_dequantize(editor, source, plan.input, f"{hint}/preactivation")
    repeat_activation(editor, site, producers, renamed, hint)
    renamed[site.output] = _quantize_dequantize(editor, renamed[site.output], plan.output, f"{hint}/hidden")
    repeat_nodes(editor, producers, ffn.after, renamed, f"{hint}/after")
    _linear(editor, renamed[ffn.second.input], ffn.second, f"{hint}/second", ffn.second.output)
    editor.replace(ffn.second.output)
