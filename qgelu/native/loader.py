"""The native library for ONNX Runtime: where it is, and registering it with sessions."""

import ctypes
import functools
import weakref
from pathlib import Path
from typing import Any

from qgelu.errors import QGeluError
from qgelu.native.build import PACKAGE, library_name

_registered: weakref.WeakSet[Any] = weakref.WeakSet()
"""Session options that have the library: twice would keep their sessions from loading."""


def native_library_path() -> Path:
    """Return the path of the shared library with the native kernels.

    Any host of ONNX Runtime 1.19 or newer loads it by its ``RegisterCustomOpsLibrary``: docs/native.md.

    Raises
    ------
    QGeluError
        If it has not been built from the sources that are here.
    """
    path = PACKAGE / library_name()
    if not is_built():
        raise QGeluError(
            "the native kernels are not built: with gcc or clang installed, run python -m qgelu.native.build"
        )
    return path


def is_built() -> bool:
    """Return whether the native library is there."""
    return (PACKAGE / library_name()).exists()


def register(session_options: Any) -> None:
    """Let sessions with these options run quantized models on the native kernels.

    The codes are the same, bit for bit, with and without.

    Parameters
    ----------
    session_options : onnxruntime.SessionOptions
        Changed in place, before the session is made. A second time does nothing.

    Raises
    ------
    QGeluError
        If the library has not been built, or ONNX Runtime cannot use it.
    """
    path = native_library_path()
    enlist = getattr(session_options, "register_custom_ops_library", None)
    if enlist is None:
        raise QGeluError(f"register takes onnxruntime.SessionOptions, not {type(session_options).__name__}")
    if session_options in _registered:
        return
    _keep_loaded(path)
    try:
        enlist(str(path))
    except Exception as error:  # ONNX Runtime's have no common base
        message = " ".join(str(error).split())
        raise QGeluError(f"{path.name}: ONNX Runtime cannot use it: {message}") from None
    _registered.add(session_options)


@functools.cache
def _keep_loaded(path: Path) -> ctypes.CDLL:
    """Load the library for as long as the process lives: ONNX Runtime would unload it with the last session."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise QGeluError(f"{path}: cannot be loaded: {error}: run python -m qgelu.native.build") from None
