"""ONNX Runtime's own quantization of the FFNs' matmuls, to compare with."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import onnx

from calibration import BatchSource
from qgelu.errors import QGeluError
from qgelu.graph.findings import Site
from qgelu.sessions import one_line

BASELINES: Final = ("ort-static", "ort-dynamic")

DESCRIPTIONS: Final = {
    "ort-static": (
        "onnxruntime.quantization.quantize_static, QDQ, MinMax, uint8 activations, int8 weights per channel, "
        "restricted to the matmuls of the FFNs; activation functions in float"
    ),
    "ort-dynamic": (
        "onnxruntime.quantization.quantize_dynamic, uint8 activations, int8 weights per channel, "
        "restricted to the matmuls of the FFNs; activation functions in float"
    ),
}
_MATMULS: Final = ("MatMul", "Gemm")


class _Reader:
    """Batches as ONNX Runtime's calibration reads them (duck-typed CalibrationDataReader)."""

    def __init__(self, source: BatchSource) -> None:
        self._feeds: Iterator[dict[str, Any]] = iter(source)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the tool's advice on pre-processing off stderr: it writes to the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _with_names(model: onnx.ModelProto, outputs: set[str]) -> tuple[onnx.ModelProto, list[str]]:
    """Return a copy whose FFN matmuls have names, and these."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    taken = {node.name for node in copy.graph.node}
    names = []
    for index, node in enumerate(copy.graph.node):
        if node.op_type in _MATMULS and node.output[0] in outputs:
            if not node.name:
                name = f"ffn_matmul_{index}"
                while name in taken:
                    name += "_"
                node.name = name
            names.append(node.name)
    return copy, names


def run_baseline(
    name: str, model: onnx.ModelProto, sites: Sequence[Site], source: BatchSource
) -> onnx.ModelProto | None:
    """Return the model as ONNX Runtime quantizes its FFNs' matmuls; None if it has no FFN.

    Raises
    ------
    QGeluError
        If ONNX Runtime's tool fails on the model.
    """
    import onnxruntime.quantization as tool

    outputs = {
        output
        for site in sites
        if site.ffn is not None
        for linear in (site.ffn.first, site.ffn.second)
        for output in linear.node_outputs
    }
    if not outputs:
        return None
    named, nodes = _with_names(model, outputs)
    if not nodes:  # they are in subgraphs; and without names, the tool would take every matmul
        return None
    with _quiet(), tempfile.TemporaryDirectory(prefix="qgelu-baseline-") as folder:
        path = Path(folder) / "model.onnx"
        try:
            if name == "ort-static":
                tool.quantize_static(
                    named,
                    path,
                    _Reader(source),
                    quant_format=tool.QuantFormat.QDQ,
                    op_types_to_quantize=list(_MATMULS),
                    nodes_to_quantize=nodes,
                    per_channel=True,
                    activation_type=tool.QuantType.QUInt8,
                    weight_type=tool.QuantType.QInt8,
                )
            else:
                tool.quantize_dynamic(
                    named,
                    path,
                    op_types_to_quantize=list(_MATMULS),
                    # Before it chooses, the tool splits each Gemm into a MatMul of this name and an Add.
                    nodes_to_quantize=[*nodes, *(f"{node}_MatMul" for node in nodes)],
                    per_channel=True,
                    weight_type=tool.QuantType.QInt8,
                )
            quantized = onnx.load(path)
        except Exception as error:  # whatever the tool raises
            raise QGeluError(
                f"baseline {name}: ONNX Runtime's quantization failed ({one_line(error, 200)}): leave it out"
            ) from None
    return quantized
