"""Refuse models that are damaged in a way that a parser does not see."""

from typing import Final

import onnx

from qgelu.errors import QGeluError
from qgelu.graph.elementwise import STANDARD_DOMAINS
from qgelu.graph.names import subgraphs

_TENSOR_TYPES: Final = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}

_RUNTIME_OPERATORS: Final = frozenset({"SimplifiedLayerNormalization"})
"""What ONNX Runtime's optimizer writes into ONNX's own domain; LayerNormalization too, in opsets before ONNX has it."""

_LARGEST_VERSION: Final = (1 << 31) - 1
"""Largest that the checker takes."""


def check_wellformed(model: onnx.ModelProto) -> None:
    """Check names, and every operator of the standard domain against its definition.

    Runtimes refuse what is refused here: text that is not text, two nodes that make one tensor, operators with
    a wrong number of inputs or a wrong type of attribute.

    Raises
    ------
    QGeluError
        With the name of the node.
    """
    for version in (model.ir_version, *(entry.version for entry in model.opset_import)):
        if not 0 <= version <= _LARGEST_VERSION:
            raise QGeluError(f"version {version} is not one of ONNX's: the model is damaged")
    context = onnx.checker.C.CheckerContext()
    context.ir_version = max(model.ir_version, 3)
    context.opset_imports = {_text(entry.domain): entry.version for entry in model.opset_import}
    known = any(
        entry.domain in STANDARD_DOMAINS and entry.version <= onnx.defs.onnx_opset_version()
        for entry in model.opset_import
    )
    _check_graph(model.graph, context if known else None)
    for function in model.functions:
        for name in (function.name, function.domain, function.overload, *function.input, *function.output):
            _text(name)
        for node in function.node:
            _check_names(node)


def _check_graph(graph: onnx.GraphProto, context: onnx.checker.C.CheckerContext | None) -> None:
    made: set[str] = set()
    given = {_text(value.name) for value in graph.input}
    stored = {_text(tensor.name) for tensor in graph.initializer}
    for tensor in graph.initializer:
        if tensor.data_type not in _TENSOR_TYPES:
            raise QGeluError(f"tensor {tensor.name!r} is of no type that ONNX has: the model is damaged")
    for value in (*graph.output, *graph.value_info):
        _text(value.name)
    for node in graph.node:
        _check_names(node)
        for name in node.output:
            if name and (name in made or name in given or name in stored):
                raise QGeluError(f"tensor {name!r} is made more than once: the model is damaged")
            made.add(name)
        inner = tuple(subgraphs(node))
        for child in inner:
            _check_graph(child, context)
        if context is not None and node.domain in STANDARD_DOMAINS and not inner:
            _check_operator(node, context)


def _check_names(node: onnx.NodeProto) -> None:
    for name in (node.op_type, node.domain, node.name, node.overload, *node.input, *node.output):
        _text(name)
    if not node.op_type.isprintable():
        raise QGeluError(f"there is no operator {node.op_type!r}: the model is damaged")
    for attribute in node.attribute:
        _text(attribute.name)
        _text(attribute.ref_attr_name)


def _text(name: str) -> str:
    # Protobuf gives bytes where a text field holds none.
    if not isinstance(name, str):
        raise QGeluError(f"the name {name!r} is not valid text: the model is damaged")
    return name


def _check_operator(node: onnx.NodeProto, context: onnx.checker.C.CheckerContext) -> None:
    version = next((context.opset_imports[each] for each in STANDARD_DOMAINS if each in context.opset_imports), 0)
    if node.op_type in _RUNTIME_OPERATORS or (onnx.defs.has(node.op_type, "") and not _is_defined(node, version)):
        return
    try:
        onnx.checker.check_node(node, context)
    except (onnx.checker.ValidationError, UnicodeDecodeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        label = node.name or next(iter(node.output), "")
        raise QGeluError(f"{node.op_type} node {label!r} is not valid: {ascii(lines[0])[1:-1]}") from None


def _is_defined(node: onnx.NodeProto, version: int) -> bool:
    try:
        onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return False
    return True
