"""An FFN whose codes no executor takes, simulated: rounded to its codes in float arithmetic.

    Mul, Add, Round, Clip, Sub -> MatMul -> float activation -> Mul, Add, Round, Clip, Sub -> MatMul, Add

The matmuls' weights are int8 weights times their scales. Nothing here runs in integers.
"""

import numpy as np
import onnx
from numpy.typing import NDArray

from qgelu.errors import QGeluError
from qgelu.ffn import ChannelQuantization, FoldedLayer, middle_code
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


def _layer(
    editor: GraphEditor, centred: str, layer: FoldedLayer, about: NDArray[np.float64], hint: str, output: str | None
) -> str:
    """Queue the layer on codes less ``about``, which moves into the constant."""
    weight = layer.codes * layer.scale
    constant = layer.constant + about @ weight
    product = editor.node(
        "MatMul", [centred, editor.constant(weight.astype(np.float32), f"{hint}/weight")], f"{hint}/product"
    )
    added = editor.constant(constant.astype(np.float32), f"{hint}/constant")
    return editor.node("Add", [product, added], f"{hint}/sum", output=output)


def rewrite_simulated_ffn(
    editor: GraphEditor,
    site: Site,
    ffn: Ffn,
    input: ChannelQuantization,
    hidden: ChannelQuantization,
    first: FoldedLayer,
    second: FoldedLayer,
    element_type: int,
) -> None:
    """Replace one FFN by its simulation with these scales, of any bits, and weights.

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
    # Codes are counted from the middle of their range: float32 sums stay small.
    middle = np.full(len(first.codes), middle_code(input.bits))
    codes = _rounded(editor, ffn.first.input, input.scale, input.zero_point, input.bits, middle, f"{hint}/input")
    renamed = {ffn.first.output: _layer(editor, codes, first, middle, f"{hint}/first", None)}
    repeat_nodes(editor, producers, ffn.before, renamed, f"{hint}/before")
    repeat_activation(editor, site, producers, renamed, hint)
    zero = hidden.zero_point
    centred = _rounded(editor, renamed[site.output], hidden.scale, zero, hidden.bits, zero, f"{hint}/hidden")
    renamed[site.output] = centred
    repeat_nodes(editor, producers, ffn.after, renamed, f"{hint}/after")
    _layer(editor, renamed[ffn.second.input], second, zero, f"{hint}/second", ffn.second.output)
    editor.replace(ffn.second.output)
