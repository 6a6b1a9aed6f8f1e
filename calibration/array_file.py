"""Arrays from .npy and .npz files, whose headers may lie: nothing is made that is larger than the file can hold."""

import math
import os
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from calibration.errors import CalibrationError

UNREADABLE: Final = (
    OSError,
    EOFError,
    ValueError,
    SyntaxError,
    RecursionError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
)
"""What NumPy and zipfile raise on damaged files."""

_MOST_EXPANSION: Final = 1100
"""Deflate makes at most 1,032 bytes of one."""


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name, of any type but pickled objects; that of a .npy is named "".

    Raises
    ------
    CalibrationError
        If the file cannot be read, is damaged, or holds pickled objects.
    """
    if path.suffix not in (".npz", ".npy"):
        raise CalibrationError(f"{path}: is neither .npz nor .npy: save the data with numpy.savez")
    try:
        with path.open("rb") as file:
            if path.suffix == ".npy":
                return {"": read_array(file, os.fstat(file.fileno()).st_size)}
            return _read_members(file)
    except UNREADABLE as error:
        if "Object arrays" in str(error):
            raise CalibrationError(
                f"{path}: holds pickled objects, which are not loaded: save plain arrays of numbers"
            ) from None
        raise CalibrationError(f"{path}: cannot be read as {path.suffix} ({brief(error)}): save it anew") from None


def _read_members(file: BinaryIO) -> dict[str, NDArray[Any]]:
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.file_size > _MOST_EXPANSION * max(1, info.compress_size):
                raise ValueError(f"{info.filename!r} cannot be of {info.file_size} bytes")
            with archive.open(info) as member:
                arrays[info.filename.removesuffix(".npy")] = read_array(member, info.file_size)
    return arrays


def read_array(file: Any, size: int) -> NDArray[Any]:
    """Read one array after its header was held against the bytes that there are."""
    version = npy_format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = npy_format.read_array_header_1_0(file)
    else:
        shape, _, dtype = npy_format.read_array_header_2_0(file)
    claimed = math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise ValueError("Object arrays")
    if min(shape, default=0) < 0 or claimed > size:
        raise ValueError(f"its header says {claimed} bytes, and it has {size}")
    file.seek(0)
    return np.asarray(npy_format.read_array(file, allow_pickle=False))


def brief(error: BaseException) -> str:
    """Return an exception as part of one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
