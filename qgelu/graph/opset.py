"""The model's ai.onnx version."""

import onnx

from qgelu.errors import QGeluError


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
