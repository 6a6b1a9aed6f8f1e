"""The identity of a model, to tell whether a calibration is of it."""

import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx


def model_digest(model: "onnx.ModelProto") -> str:
    """Return the SHA-256, in hex, of what the model computes and of its names.

    Goes piece by piece, so that models beyond protobuf's 2 GB can be told apart too. Metadata, documentation
    and recorded shapes of inner tensors have no part in it.
    """
    graph = model.graph
    digest = hashlib.sha256()
    for group in (
        sorted(model.opset_import, key=lambda opset: opset.domain),
        model.functions,
        graph.input,
        graph.initializer,
        graph.sparse_initializer,
        graph.node,
        graph.output,
    ):
        digest.update(len(group).to_bytes(8, "little"))
        for piece in group:
            content = _content(piece)
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
    return digest.hexdigest()


def _content(piece: Any) -> bytes:
    import onnx

    if isinstance(piece, onnx.TensorProto) and piece.HasField("raw_data"):
        # Without the fields that loading external data leaves behind.
        head = f"{piece.name} {piece.data_type} {list(piece.dims)} ".encode()
        return head + bytes(piece.raw_data)
    return bytes(piece.SerializeToString(deterministic=True))
