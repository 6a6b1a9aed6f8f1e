"""An FFN whose codes no executor takes, simulated: rounded to its codes in float arithmetic.

    Mul, Add, Round, Clip, Sub -> MatMul -> float activation -> Mul, Add, Round, Clip, Sub -> MatMul, Add

The matmuls' weights are int8 weights times their scales. Nothing here runs in integers.
"""

import numpy as np
import onnx
from numpy.typing import NDArray

from qgelu.errors import QGeluError
from qgelu.ffn import ChannelQuantization, FloatFfn, middle_code, quantize_weight
from qgelu.graph.editor import GraphEditor
from qgelu.graph.findings import Ffn, Site
from qgelu.graph.repeat import repeat_activation, repeat_nodes


def _rounded(
    editor: GraphEditor,
    x: str,
    scale: NDArray[np.float64],
    zero_point: NDArray[np.float64],
    bits: int,
    about: NDArray[np.float64],
    hint: str,
) -> str:
    """Queue round(x / scale + zero_point), saturated to the codes, less ``about``."""
    scaled = editor.node(
        "Mul", [x, editor.constant((1.0 / scale).astype(np.float32), f"{hint}/multiplier")], f"{hint}/scaled"
    )
    shifted = editor.node(
        "Add", [scaled, editor.constant(zero_point.astype(np.float32), f"{hint}/offset")], f"{hint}/shifted"
    )
    whole = editor.node("Round", [shifted], f"{hint}/whole")
    ends = [
        editor.constant(np.array(end, np.float32), f"{hint}/{name}")
        for end, name in ((0, "least"), ((1 << bits) - 1, "most"))
    ]
    codes = editor.node("Clip", [whole, *ends], f"{hint}/codes")
    return editor.node("Sub", [codes, editor.constant(about.astype(np.float32), f"{hint}/about")], f"{hint}/centred")


def _weight(folded: NDArray[np.float64]) -> NDArray[np.float32]:
    codes, scale = quantize_weight(folded)
    return np.asarray(codes * scale, dtype=np.float32)


def rewrite_simulated_ffn(
    editor: GraphEditor,
    site: Site,
    ffn: Ffn,
    block: FloatFfn,
    input: ChannelQuantization,
    hidden: ChannelQuantization,
    element_type: int,
) -> None:
    """Replace one FFN by its simulation with these scales, of any bits.

    Raises
    ------
    QGeluError
        If the site is not float32.
    """
    if element_type != onnx.TensorProto.FLOAT:
        raise QGeluError(f"site {site.name!r} is not float32: it is not simulated")
    hint = f"qgelu/{site.name}"
    editor.enter(site.output)
    producers = {output: node for node in editor.graph.node for output in node.output}
    first, second = block.first_weight.astype(np.float64), block.second_weight.astype(np.float64)
    # As in the integer block, what the channels' middles add goes through the float weight.
    middle = np.full(len(first), middle_code(input.bits))
    folded = input.scale[:, None] * first
    bias = (middle - input.zero_point) @ folded
    if block.first_bias is not None:
        bias = bias + block.first_bias
    codes = _rounded(editor, ffn.first.input, input.scale, input.zero_point, input.bits, middle, f"{hint}/input")
    product = editor.node("MatMul", [codes, editor.constant(_weight(folded), f"{hint}/first")], f"{hint}/product")
    renamed = {
        ffn.first.output: editor.node(
            "Add", [product, editor.constant(bias.astype(np.float32), f"{hint}/bias")], f"{hint}/sum"
        )
    }
    repeat_nodes(editor, producers, ffn.before, renamed, f"{hint}/before")
    repeat_activation(editor, site, producers, renamed, hint)
    zero = np.clip(np.rint(hidden.zero_point), 0, (1 << hidden.bits) - 1)
    centred = _rounded(editor, renamed[site.output], hidden.scale, zero, hidden.bits, zero, f"{hint}/hidden")
    renamed[site.output] = centred
    repeat_nodes(editor, producers, ffn.after, renamed, f"{hint}/after")
    second_weight = editor.constant(_weight(hidden.scale[:, None] * second), f"{hint}/second")
    source = renamed[ffn.second.input]
    if block.second_bias is None:
        editor.node("MatMul", [source, second_weight], f"{hint}/second_product", output=ffn.second.output)
    else:
        product = editor.node("MatMul", [source, second_weight], f"{hint}/second_product")
        second_bias = editor.constant(block.second_bias.astype(np.float32), f"{hint}/second_bias")
        editor.node("Add", [product, second_bias], f"{hint}/output", output=ffn.second.output)
    editor.replace(ffn.second.output)
