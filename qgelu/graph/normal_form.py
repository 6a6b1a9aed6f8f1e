"""The form of a model in which sites are found and rewritten: functions inlined, unique names, an opset that runs.

What a model computes stays the same, and so do the names in its main graph. A model that is in this form already is
returned as it is.
"""

import math
from collections.abc import Callable, Iterator
from typing import Final

import onnx
from onnx import TensorProto, helper, inliner, version_converter

from qgelu.errors import QGeluError
from qgelu.graph.elementwise import STANDARD_DOMAINS
from qgelu.graph.functions import MINIMUM_OPSET
from qgelu.graph.lean import append_initializers, without_initializers
from qgelu.graph.local_functions import LocalFunctions
from qgelu.graph.names import all_graphs, every_node, made_in, subgraphs, used_names
from qgelu.graph.opset import onnx_version

_MATMULS: Final = frozenset({"MatMul", "Gemm"})
_NEWEST_RUN: Final = 27
"""Newest ai.onnx version of which ONNX Runtime 1.32 has every operator that a rewritten model uses."""

_LARGE: Final = 1 << 16
"""Elements from which an initializer's values are of no use to inliner and converter, which copy the model."""


def normal_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with those functions inlined that hold activations or layers, and unique names in subgraphs.

    Functions of another ai.onnx version than the model's stay.

    Raises
    ------
    QGeluError
        If inlining fails.
    """
    if _hides_layers(model):
        model = _through(model, inliner.inline_local_functions, "its functions cannot be inlined")
    return _with_unique_names(model)


def with_supported_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model itself, or a converted copy if its opset is too old or too new for what is written.

    A newer opset than ONNX Runtime knows is named an older one if none of the operators in use changed in between.

    Raises
    ------
    QGeluError
        If the conversion fails.
    """
    version = onnx_version(model)
    if version > _NEWEST_RUN:
        return _renamed_opset(model, version)
    if version >= MINIMUM_OPSET:
        return model
    converted = _through(
        model,
        lambda lean: version_converter.convert_version(lean, MINIMUM_OPSET),
        f"opset {version} cannot be raised to {MINIMUM_OPSET}",
        f": export it with opset {MINIMUM_OPSET} or newer",
    )
    # The converter drops the model's functions and the versions of their domains.
    del converted.functions[:]
    converted.functions.extend(model.functions)
    kept = [entry for entry in model.opset_import if entry.domain not in STANDARD_DOMAINS]
    del converted.opset_import[:]
    converted.opset_import.extend([helper.make_opsetid("", MINIMUM_OPSET), *kept])
    return converted


def _renamed_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    for node in _all_nodes(model):
        if node.domain in STANDARD_DOMAINS and (
            not onnx.defs.has(node.op_type, "")
            or onnx.defs.get_schema(node.op_type, version, "").since_version > _NEWEST_RUN
        ):
            return model
    renamed = without_initializers(model)
    append_initializers(renamed.graph, model.graph.initializer)
    for imports in (renamed.opset_import, *(function.opset_import for function in renamed.functions)):
        for entry in imports:
            if entry.domain in STANDARD_DOMAINS:
                entry.version = min(entry.version, _NEWEST_RUN)
    return renamed


def _hides_layers(model: onnx.ModelProto) -> bool:
    """Say whether a function holds a matmul, or an activation that is not all of it."""
    functions = LocalFunctions(model)
    bodies = (node for function in model.functions for node in every_node(function.node))
    if any(node.op_type in _MATMULS and node.domain in STANDARD_DOMAINS for node in bodies):
        return True
    return any(
        functions.is_call(node) and functions.is_anchor(node) and functions.operation(node) is None
        for node in _all_nodes(model)
    )


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    yield from every_node(model.graph.node)
    for function in model.functions:
        yield from every_node(function.node)


def _through(
    model: onnx.ModelProto, change: Callable[[onnx.ModelProto], onnx.ModelProto], failure: str, remedy: str = ""
) -> onnx.ModelProto:
    """Return what a tool of the onnx package makes of a model; large weights do not pass through it."""
    lean = without_initializers(model)
    declared = {value.name for value in model.graph.input}
    weights = []
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) < _LARGE and tensor.data_location != TensorProto.EXTERNAL:
            lean.graph.initializer.append(tensor)
            continue
        weights.append(tensor)
        if tensor.name not in declared:
            lean.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    try:
        changed = change(lean)
    except Exception as error:  # inliner and converter raise RuntimeError and others alike
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise QGeluError(f"the model's {failure} ({ascii(lines[0])[1:-1]}){remedy}") from None
    added = {tensor.name for tensor in weights} - declared
    inputs = [value for value in changed.graph.input if value.name not in added]
    del changed.graph.input[:]
    changed.graph.input.extend(inputs)
    append_initializers(changed.graph, weights)
    del changed.metadata_props[:]
    changed.metadata_props.extend(model.metadata_props)
    return changed


def _with_unique_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model, or a copy in which no subgraph names a tensor as another graph does."""
    made = [name for graph in all_graphs(model.graph) for name in set(made_in(graph))]
    if len(made) == len(set(made)):
        return model
    unique = without_initializers(model)
    append_initializers(unique.graph, model.graph.initializer)
    taken = used_names(model.graph)
    seen = set(made_in(unique.graph))
    for node in unique.graph.node:
        for inner in subgraphs(node):
            _rename(inner, {}, seen, taken)
    return unique


def _rename(graph: onnx.GraphProto, outer: dict[str, str], seen: set[str], taken: set[str]) -> None:
    own = set(made_in(graph))
    renamed = {name: target for name, target in outer.items() if name not in own}
    for name in sorted(own & seen):
        number = 1
        while f"{name}_{number}" in taken:
            number += 1
        renamed[name] = f"{name}_{number}"
        taken.add(renamed[name])
    seen |= own
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = renamed.get(value.name, value.name)
    for tensor in graph.sparse_initializer:
        tensor.values.name = renamed.get(tensor.values.name, tensor.values.name)
    for node in graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name in renamed:
                    names[place] = renamed[name]
        for inner in subgraphs(node):
            _rename(inner, renamed, seen, taken)
