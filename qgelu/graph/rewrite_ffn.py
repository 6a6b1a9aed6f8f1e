"""Scope ffn: the whole block in integers, from one QuantizeLinear to one dequantization.

    Mul, Add, QuantizeLinear (uint8) -> MatMulInteger -> qgelu.RequantizeGelu -> MatMulInteger -> Cast, Mul, Add

Before: first matmul, activation and second matmul in float, shape-only nodes between them. After: the second
matmul's output name holds the dequantized result; the shape-only nodes run on integers.
"""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from qgelu.ffn import IntegerFfn
from qgelu.graph.editor import GraphEditor
from qgelu.graph.findings import Ffn, Site
from qgelu.graph.functions import DOMAIN, Opsets
from qgelu.graph.plan_nodes import plan_node
from qgelu.graph.rewrite_activation import as_float32, check_element_type

_SKIPPED = {"Identity", "Dropout"}
"""Nodes between matmul and activation that integers need not pass through."""


def _through_shape_nodes(
    editor: GraphEditor, producers: dict[str, onnx.NodeProto], outputs: tuple[str, ...], value: str, hint: str
) -> str:
    """Repeat shape-only nodes on an integer tensor."""
    for name in outputs:
        node = producers[name]
        if node.op_type in _SKIPPED:
            continue
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        value = editor.node(node.op_type, [value, *node.input[1:]], f"{hint}/{node.op_type.lower()}", **attributes)
    return value


def _input_codes(editor: GraphEditor, site: Site, block: IntegerFfn, x: str, hint: str) -> str:
    multiplier = editor.constant(block.input_multiplier, f"{hint}/input_multiplier")
    offset = editor.constant(block.input_offset, f"{hint}/input_offset")
    scaled = editor.node("Mul", [x, multiplier], f"{hint}/input_scaled")
    shifted = editor.node("Add", [scaled, offset], f"{hint}/input_shifted")
    one = editor.constant(np.array(1.0, np.float32), f"{hint}/one")
    zero = editor.constant(np.array(0, np.uint8), f"{hint}/zero")
    codes = editor.node("QuantizeLinear", [shifted, one, zero], f"{hint}/input_codes")
    if block.input_bits < 8:
        top = editor.constant(np.array((1 << block.input_bits) - 1, np.uint8), f"{hint}/input_qmax")
        codes = editor.node("Min", [codes, top], f"{hint}/input_saturated")
    return codes


def _unfolded(editor: GraphEditor, multiplier: NDArray[np.float32], hint: str) -> str:
    """Return the multiplier as a product by 1 that ONNX Runtime does not fold.

    It makes MatMulInteger, Cast, Mul and Add one operator where the Mul is by such a product: an element of a
    sequence is not folded.
    """
    one = editor.constant(np.array(1.0, np.float32), f"{hint}/one")
    first = editor.constant(np.array(0, np.int64), f"{hint}/first")
    sequence = editor.node("SequenceConstruct", [one], f"{hint}/ones")
    element = editor.node("SequenceAt", [sequence, first], f"{hint}/unfolded_one")
    # Shape inference knows no shape of an element.
    shaped = editor.node(
        "Reshape", [element, editor.constant(np.array([1], np.int64), f"{hint}/one_shape")], f"{hint}/shaped_one"
    )
    constant = editor.constant(multiplier, f"{hint}/output_multiplier")
    return editor.node("Mul", [shaped, constant], f"{hint}/output_multiplier_times_one")


def rewrite_ffn(editor: GraphEditor, site: Site, ffn: Ffn, block: IntegerFfn, element_type: int) -> None:
    """Replace one FFN by its integer block.

    Raises
    ------
    QGeluError
        If the site's element type cannot be served.
    """
    check_element_type(element_type, site.name)
    editor.enter(site.output)
    hint = f"qgelu/{site.name}"
    producers = {output: node for node in editor.graph.node for output in node.output}
    x = as_float32(editor, ffn.first.input, element_type, hint)
    codes = _input_codes(editor, site, block, x, hint)
    first_weight = editor.weight(block.first_weight, f"{hint}/first_weight")
    accumulator = editor.node("MatMulInteger", [codes, first_weight], f"{hint}/first_accumulator")
    before = _through_shape_nodes(editor, producers, ffn.before, accumulator, f"{hint}/before")
    node = plan_node(block.plan, block.first_bias)
    editor.use_function(node.function(Opsets(editor.opset, editor.ml_version)))
    parameters = [editor.constant(value, f"{hint}/{name}") for name, value in node.parameters.items()]
    hidden = editor.node(node.op_type, [before, *parameters], f"{hint}/hidden", domain=DOMAIN, **node.attributes)
    after = _through_shape_nodes(editor, producers, ffn.after, hidden, f"{hint}/after")
    second_weight = editor.weight(block.second_weight, f"{hint}/second_weight")
    sums = editor.node("MatMulInteger", [after, second_weight], f"{hint}/second_accumulator")
    real = editor.node("Cast", [sums], f"{hint}/second_as_float", to=TensorProto.FLOAT)
    multiplier = _unfolded(editor, block.output_multiplier, hint)
    bias = editor.constant(block.output_bias, f"{hint}/output_bias")
    scaled = editor.node("Mul", [real, multiplier], f"{hint}/output_scaled")
    if element_type == TensorProto.FLOAT:
        editor.node("Add", [scaled, bias], f"{hint}/output", output=ffn.second.output)
    else:
        result = editor.node("Add", [scaled, bias], f"{hint}/output")
        editor.node("Cast", [result], f"{hint}/cast_back", output=ffn.second.output, to=element_type)
    editor.replace(ffn.second.output)
    for source, target in (
        (ffn.first.output, accumulator),
        (site.input, before),
        (site.output, hidden),
        (ffn.second.input, after),
    ):
        editor.redirect_shapes(source, target)
