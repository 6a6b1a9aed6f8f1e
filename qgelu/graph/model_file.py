"""Reading and writing ONNX files: one clear line if that fails, and never a half-written file."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import TensorProto
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

from calibration.whole_file import replacing
from qgelu.errors import QGeluError
from qgelu.graph.lean import without_initializers
from qgelu.graph.names import subgraphs
from qgelu.graph.wellformed import check_wellformed

# Protobuf's limit is 2 GiB for the whole file; what is not weights needs some of it.
_LARGEST_WEIGHTS_INSIDE: Final = (2 << 30) - (128 << 20)
_PROTOBUF_LIMIT: Final = 2 << 30
_SMALLEST_OUTSIDE: Final = 1024
_ALIGNMENT: Final = 4096
"""Tensors start at pages of the data file, so that runtimes can map them into memory."""


def load_model(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Read an ONNX file with its external data.

    Raises
    ------
    QGeluError
        If the file is missing, unreadable, not an ONNX model, damaged, empty, or if its external data are
        missing or too short.
    """
    file = Path(path)
    model = onnx.ModelProto()
    try:
        if file.is_dir():
            raise QGeluError(f"{file} is a folder: name the .onnx file in it")
        kind = file.stat()
        if not stat.S_ISREG(kind.st_mode) and not stat.S_ISFIFO(kind.st_mode):
            raise QGeluError(f"{file} is not a regular file: name the .onnx file")
        if kind.st_size >= _PROTOBUF_LIMIT:
            raise QGeluError(f"{file} is larger than 2 GB: export it with external data")
        content = file.read_bytes()
        if not content:
            raise QGeluError(f"{file} is empty: export the model again")
        model.ParseFromString(content)
    except FileNotFoundError:
        raise QGeluError(f"{file} does not exist: check the path of the model") from None
    except QGeluError:
        raise
    except (OSError, ValueError) as error:
        raise QGeluError(f"{file} cannot be read: {_first_line(error)}") from None
    except DecodeError:
        raise QGeluError(f"{file} is not an ONNX model, or is damaged or incomplete") from None
    _check_contents(model, file)
    try:
        check_wellformed(model)
    except QGeluError as error:
        raise QGeluError(f"{file}: {error}") from None
    _load_external_data(model, file)
    return model


def save_model(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a model as a whole or not at all; replaces an older file of that name.

    A model of more than 2 GB keeps its weights in a second file, ``<name>.data``, beside it. The model is not
    changed.

    Raises
    ------
    QGeluError
        If the file cannot be written.
    """
    file = Path(path)
    try:
        if file.is_dir():
            raise QGeluError(f"{file} is a folder: name the file to write")
        if file.exists() and not file.is_file():
            raise QGeluError(f"{file} is not a regular file: name the file to write")
        if not file.parent.is_dir():
            raise QGeluError(f"{file} cannot be written: the folder {file.parent} does not exist")
        if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _LARGEST_WEIGHTS_INSIDE:
            _save_with_data_beside(model, file)
        else:
            with replacing(file) as stream:
                stream.write(model.SerializeToString())
    except QGeluError:
        raise
    except (OSError, EncodeError, ValueError) as error:
        raise QGeluError(f"{file} cannot be written: {_first_line(error)}") from error


def _check_contents(model: onnx.ModelProto, file: Path) -> None:
    # Other files can happen to parse: everything in a protobuf is optional.
    if not model.HasField("graph") or not model.ir_version:
        raise QGeluError(f"{file} is not an ONNX model, or is damaged or incomplete: it holds no graph")
    if not model.opset_import:
        raise QGeluError(f"{file} is damaged or incomplete: it names no operator set")
    graph = model.graph
    if not graph.node:
        raise QGeluError(f"{file} has a graph without nodes: there is nothing to quantize")
    initializers = {tensor.name for tensor in graph.initializer}
    if all(value.name in initializers for value in graph.input):
        raise QGeluError(f"{file} has a graph without inputs: there is nothing to feed")
    if not graph.output:
        raise QGeluError(f"{file} has a graph without outputs: there is nothing to compute")


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Yield all tensors stored in a graph, its nodes and subgraphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for inner in subgraphs(node):
            yield from _tensors(inner)


def _load_external_data(model: onnx.ModelProto, file: Path) -> None:
    outside = [tensor for tensor in _tensors(model.graph) if uses_external_data(tensor)]
    for tensor in outside:
        try:
            entry = ExternalDataInfo(tensor)
        except ValueError as error:
            raise QGeluError(f"{file}: tensor {tensor.name!r} is damaged: {_first_line(error)}") from None
        data = file.parent / entry.location
        if not entry.location or not data.is_file():
            raise QGeluError(
                f"{file}: the data file {data} of tensor {tensor.name!r} is missing: "
                "put it where the model was exported to"
            )
        if (entry.offset or 0) + (entry.length or 0) > data.stat().st_size:
            raise QGeluError(f"{file}: the data file {data} ends before tensor {tensor.name!r}: it is incomplete")
    if not outside:
        return
    try:
        load_external_data_for_model(model, str(file.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise QGeluError(f"{file}: its external data cannot be read: {_first_line(error)}") from None


def _save_with_data_beside(model: onnx.ModelProto, file: Path) -> None:
    data = file.with_name(f"{file.name}.data")
    lean = without_initializers(model)
    # The data file takes its place first: a model must never name data that are not there.
    with replacing(file) as stream, replacing(data) as weights:
        for tensor in model.graph.initializer:
            stored = lean.graph.initializer.add()
            if len(tensor.raw_data) < _SMALLEST_OUTSIDE:
                stored.CopyFrom(tensor)
                continue
            weights.write(bytes(-weights.tell() % _ALIGNMENT))
            stored.name, stored.data_type, stored.doc_string = (
                tensor.name,
                tensor.data_type,
                tensor.doc_string,
            )
            stored.dims.extend(tensor.dims)
            stored.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", data.name),
                ("offset", weights.tell()),
                ("length", len(tensor.raw_data)),
            ):
                stored.external_data.add(key=key, value=str(value))
            weights.write(tensor.raw_data)
        stream.write(lean.SerializeToString())


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
