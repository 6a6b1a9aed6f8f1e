"""Element types of a graph's tensors, and the model's ai.onnx version."""

import onnx
from onnx import TensorProto, version_converter

from qgelu.errors import QGeluError
from qgelu.graph.functions import MINIMUM_OPSET

_SERIALIZED_LIMIT = 1 << 31


def onnx_version(model: onnx.ModelProto) -> int:
    """Return the version of ai.onnx that a model imports.

    Raises
    ------
    QGeluError
        If it imports none, or one newer than the installed ``onnx`` knows.
    """
    versions = [entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}]
    if not versions:
        raise QGeluError("the model imports no ai.onnx opset: export it again")
    if versions[0] > onnx.defs.onnx_opset_version():
        raise QGeluError(
            f"the model uses opset {versions[0]}, the installed onnx knows up to "
            f"{onnx.defs.onnx_opset_version()}: upgrade onnx"
        )
    return int(versions[0])


def with_minimum_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model itself, or a converted copy if its opset is older than the function bodies need.

    Raises
    ------
    QGeluError
        If the conversion fails.
    """
    version = onnx_version(model)
    if version >= MINIMUM_OPSET:
        return model
    try:
        converted = version_converter.convert_version(model, MINIMUM_OPSET)
    except Exception as error:  # the converter raises RuntimeError and others alike
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise QGeluError(
            f"the model's opset {version} could not be raised to {MINIMUM_OPSET} ({reason}): "
            f"export it with opset {MINIMUM_OPSET} or newer"
        ) from None
    # The converter drops the model's functions and the versions of their domains.
    del converted.functions[:]
    converted.functions.extend(model.functions)
    kept = [entry for entry in model.opset_import if entry.domain not in {"", "ai.onnx"}]
    del converted.opset_import[:]
    converted.opset_import.extend([onnx.helper.make_opsetid("", MINIMUM_OPSET), *kept])
    return converted


def element_types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the element type of every tensor that shape inference or the model itself knows."""
    inferred = model
    if model.ByteSize() < _SERIALIZED_LIMIT:
        try:
            inferred = onnx.shape_inference.infer_shapes(model)
        except Exception:  # a model that cannot be inferred still states some types
            inferred = model
    graph = inferred.graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for values in (graph.input, graph.output, graph.value_info)
        for value in values
        if value.type.HasField("tensor_type")
    }
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    return {name: kind for name, kind in types.items() if kind != TensorProto.UNDEFINED}
