"""Target qdq: QuantizeLinear and DequantizeLinear with our scales around float ops, for compilers that fuse.

The float nodes of a site are repeated between the new nodes; the originals go where nothing else reads them.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qgelu.errors import QGeluError
from qgelu.ffn import IntegerFfn
from qgelu.graph.editor import GraphEditor
from qgelu.graph.findings import Ffn, Site
from qgelu.graph.repeat import repeat_activation, repeat_nodes
from qgelu.graph.rewrite_activation import check_element_type, dequantize_nodes, quantize_nodes
from qgelu.qparams import AccumulatorParams, QParams
from qgelu.table_plan import TablePlan

_MIDDLE: Final = 128
"""Zero point of the block's input codes, in the middle of 0 to 255."""


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


@dataclass(frozen=True, eq=False)
class _Codes:
    """A tensor as codes about a whole middle: real ~ scale * (code - zero_point), per channel.

    Attributes
    ----------
    multiplier, offset : float32 arrays of shape [channels]
        code = saturate(round(x * multiplier + offset)).
    middle : int
        Zero point of QuantizeLinear, whose scale is 1: float sums of small numbers stay exact for longer.
    """

    multiplier: NDArray[np.float32]
    offset: NDArray[np.float32]
    middle: int


def _quantized(editor: GraphEditor, x: str, codes: _Codes, hint: str) -> str:
    """Queue Mul, Add, QuantizeLinear and DequantizeLinear; return code - middle as a float tensor's name."""
    scaled = editor.node("Mul", [x, editor.constant(codes.multiplier, f"{hint}/multiplier")], f"{hint}/scaled")
    offset = (codes.offset.astype(np.float64) - codes.middle).astype(np.float32)
    shifted = editor.node("Add", [scaled, editor.constant(offset, f"{hint}/offset")], f"{hint}/shifted")
    return _quantize_dequantize(editor, shifted, QParams(1.0, codes.middle), hint)


def _linear(
    editor: GraphEditor,
    x: str,
    weight: NDArray[np.int8],
    scale: NDArray[np.float64],
    constant: NDArray[np.float64],
    hint: str,
    output: str | None = None,
) -> str:
    """Queue x @ dequantized int8 weight + float constant."""
    dequantized = editor.node(
        "DequantizeLinear",
        [
            editor.constant(weight, f"{hint}/weight_codes"),
            editor.constant(scale.astype(np.float32), f"{hint}/weight_scale"),
            editor.constant(np.zeros(scale.shape, np.int8), f"{hint}/weight_zero_point"),
        ],
        f"{hint}/weight",
        axis=1,
    )
    product = editor.node("MatMul", [x, dequantized], f"{hint}/product")
    bias = editor.constant(constant.astype(np.float32), f"{hint}/bias")
    return editor.node("Add", [product, bias], f"{hint}/sum", output=output)


def rewrite_qdq_ffn(editor: GraphEditor, site: Site, ffn: Ffn, block: IntegerFfn, element_type: int) -> None:
    """Write an integer block's numbers as float matmuls between QuantizeLinear and DequantizeLinear.

    Before each pair of them, a Mul and an Add bring all channels to one scale, 1; the weights' rows hold what the
    channels' own scales were.

    Raises
    ------
    QGeluError
        If the site's element type cannot be served; the graph is as before then.
    """
    _check_float32(element_type, site.name)
    accumulators, hidden = block.plan.input, block.plan.output
    assert isinstance(accumulators, AccumulatorParams)
    editor.enter(site.output)
    hint = f"qgelu/{site.name}"
    producers = {output: node for node in editor.graph.node for output in node.output}
    channels = block.first_weight.shape[1]
    first_scale, hidden_scale, hidden_zero = (
        np.broadcast_to(np.asarray(value, np.float64), channels)
        for value in (accumulators.scale, hidden.scale, hidden.zero_point)
    )
    before = _Codes(block.input_multiplier, block.input_offset, _MIDDLE)
    behind = _Codes(
        (1.0 / hidden_scale).astype(np.float32), hidden_zero.astype(np.float32), round(float(hidden_zero.mean()))
    )
    # What the middles add to the sums moves into the constants.
    first_moved = before.middle * block.first_weight.sum(axis=0, dtype=np.float64)
    second_moved = behind.middle * block.second_weight.sum(axis=0, dtype=np.float64)
    second_scale = block.output_multiplier.astype(np.float64)

    x = _quantized(editor, ffn.first.input, before, f"{hint}/input")
    constant = first_scale * (block.first_bias + first_moved)
    renamed = {
        ffn.first.output: _linear(editor, x, block.first_weight, first_scale, constant, f"{hint}/first"),
    }
    repeat_nodes(editor, producers, ffn.before, renamed, f"{hint}/before")
    renamed.setdefault(site.input, site.input)
    repeat_activation(editor, site, producers, renamed, hint)
    renamed[site.output] = _quantized(editor, renamed[site.output], behind, f"{hint}/hidden")
    repeat_nodes(editor, producers, ffn.after, renamed, f"{hint}/after")
    constant = block.output_bias + second_scale * second_moved
    _linear(
        editor, renamed[ffn.second.input], block.second_weight, second_scale, constant, f"{hint}/second",
        ffn.second.output,
    )  # fmt: skip
    editor.replace(ffn.second.output)
