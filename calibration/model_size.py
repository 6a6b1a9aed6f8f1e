"""How large a model is, where protobuf itself cannot say: it ends at 2 GB."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import onnx

PROTOBUF_LIMIT: Final = 1 << 31
"""Bytes from which protobuf neither writes a message nor says how long it is."""

_ROOM: Final = 1 << 28
"""Of these, what is left for all that is no weights."""


def model_bytes(model: "onnx.ModelProto") -> int:
    """Return the bytes of a model with its weights inside: exactly, or beyond protobuf's 2 GB those of the weights."""
    weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    return weights if weights >= PROTOBUF_LIMIT - _ROOM else int(model.ByteSize())
