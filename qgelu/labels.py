"""The right class of each sample, checked."""

import os

import numpy as np
from numpy.typing import NDArray

from qgelu.errors import QGeluError


def check_labels(labels: object, where: str = "labels") -> NDArray[np.int64]:
    """Return labels as int64 of shape [samples].

    Raises
    ------
    QGeluError
        If they are not whole numbers of 0 or more in one dimension.
    """
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0:
        raise QGeluError(f"{where}: has shape {list(array.shape)}: give one class number for each sample")
    if array.dtype.kind not in "iu":
        raise QGeluError(f"{where}: is of dtype {array.dtype}: give class numbers, which are integers")
    if array.min() < 0:
        raise QGeluError(f"{where}: holds {array.min()}: class numbers count from 0")
    return array.astype(np.int64)


def load_labels(path: str | os.PathLike[str]) -> NDArray[np.int64]:
    """Read labels from a .npy file.

    Raises
    ------
    QGeluError
        If it cannot be read, or does not hold labels.
    """
    from calibration.array_file import UNREADABLE, read_array

    try:
        with open(path, "rb") as file:
            is_archive = file.read(2) == b"PK"
            file.seek(0)
            content = None if is_archive else read_array(file, os.fstat(file.fileno()).st_size)
    except UNREADABLE as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a .npy file of numbers"
        raise QGeluError(f"{path}: labels cannot be read ({reason}): save them with numpy.save") from None
    if content is None:
        raise QGeluError(f"{path}: holds several arrays: save the labels alone, with numpy.save")
    return check_labels(content, str(path))
