"""ONNX Runtime sessions on the CPU, quiet, for models in memory or in files."""

import tempfile
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import onnx
from numpy.typing import NDArray

from calibration.missing_kernels import runnable
from calibration.model_size import model_bytes
from qgelu.errors import QGeluError
from qgelu.native.loader import is_built, register

_SERIALIZED_LIMIT: Final = 3 << 29
"""Beyond this a model goes through a file with its weights beside it: protobuf ends at 2 GB."""


class ModelRunner:
    """Runs a model; use it in a ``with`` statement.

    Parameters
    ----------
    model : path or ModelProto
    what : str
        What to call the model in messages.
    threads : int, optional
        ONNX Runtime's threads.
    native : bool
        Whether to run custom ops by the native library, where that is there; the codes are the same.

    Raises
    ------
    QGeluError
        If ONNX Runtime cannot load the model.
    """

    def __init__(
        self,
        model: str | PathLike[str] | onnx.ModelProto,
        what: str,
        *,
        threads: int | None = None,
        native: bool = False,
    ) -> None:
        import onnxruntime

        self.what = what
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors reach the user as exceptions, once
        options.enable_mem_pattern = False  # plans are kept for each shape of input: they would pile up
        if threads is not None:
            options.intra_op_num_threads = threads
        if native and is_built():
            register(options)
        try:
            self._session = onnxruntime.InferenceSession(
                self._source(model), options, providers=["CPUExecutionProvider"]
            )
        except QGeluError:
            raise
        except Exception as error:  # ONNX Runtime's have no common base
            self.close()
            raise QGeluError(f"{what}: ONNX Runtime cannot load it: {one_line(error)}") from None
        self._inputs = {value.name for value in self._session.get_inputs()}
        self.outputs: tuple[str, ...] = tuple(value.name for value in self._session.get_outputs())

    def _source(self, model: str | PathLike[str] | onnx.ModelProto) -> bytes | str:
        if not isinstance(model, onnx.ModelProto):
            return str(model)
        model = runnable(model)
        if model_bytes(model) < _SERIALIZED_LIMIT:
            return bytes(model.SerializeToString())
        from qgelu.graph.model_file import save_model

        self._folder = tempfile.TemporaryDirectory(prefix="qgelu-")
        path = Path(self._folder.name) / "model.onnx"
        save_model(model, path)
        return str(path)

    def run(self, feed: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the named outputs, or all of them, for one batch.

        Raises
        ------
        QGeluError
            If ONNX Runtime cannot run the model on it.
        """
        names = list(self.outputs if outputs is None else outputs)
        if not names:  # to ONNX Runtime, no names mean all outputs
            return {}
        try:
            results = self._session.run(names, {key: value for key, value in feed.items() if key in self._inputs})
        except Exception as error:  # ONNX Runtime's have no common base
            raise QGeluError(f"{self.what}: ONNX Runtime cannot run it: {one_line(error)}") from None
        return dict(zip(names, results, strict=True))

    def close(self) -> None:
        """Delete the files that a large model went through."""
        if self._folder is not None:
            self._folder.cleanup()

    def __enter__(self) -> "ModelRunner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def one_line(error: BaseException, limit: int = 400) -> str:
    """Return an exception's message as part of one line."""
    text = " ".join(str(error).split())
    return text[:limit] if text else type(error).__name__
