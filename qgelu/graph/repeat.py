"""Copies of a site's float nodes, between other nodes than before."""

import onnx

from qgelu.graph.editor import GraphEditor
from qgelu.graph.findings import Site

_WITHOUT_BIAS = {"BiasGelu": "Gelu", "FastGelu": "FastGelu"}


def repeat_nodes(
    editor: GraphEditor,
    producers: dict[str, onnx.NodeProto],
    outputs: tuple[str, ...],
    renamed: dict[str, str],
    hint: str,
) -> None:
    """Queue copies of nodes with their tensors renamed; ``renamed`` learns the copies' outputs."""
    for name in outputs:
        node = producers[name]
        inputs = [renamed.get(value, value) for value in node.input]
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        renamed[name] = editor.node(
            node.op_type, inputs, f"{hint}/{node.op_type.lower()}", domain=node.domain, **attributes
        )


def repeat_activation(
    editor: GraphEditor, site: Site, producers: dict[str, onnx.NodeProto], renamed: dict[str, str], hint: str
) -> None:
    """Queue copies of the activation's nodes; of one that adds a bias, the one that does not."""
    if site.bias is None:
        repeat_nodes(editor, producers, site.region, renamed, hint)
        return
    node = producers[site.output]
    operator = _WITHOUT_BIAS[node.op_type]
    renamed[site.output] = editor.node(
        operator, [renamed[site.input]], f"{hint}/{operator.lower()}", domain=node.domain
    )
