"""Text files that appear whole or not at all."""

import os
from pathlib import Path

from calibration.whole_file import replacing
from qgelu.errors import QGeluError


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file to write, before the work that it is for.

    Raises
    ------
    QGeluError
        If it is a folder, or its own folder is missing or cannot be written to.
    """
    file = Path(path)
    if file.is_dir():
        raise QGeluError(f"{file} is a folder: name the file to write")
    if not file.parent.is_dir():
        raise QGeluError(f"{file} cannot be written: the folder {file.parent} does not exist")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise QGeluError(f"{file} cannot be written: the folder {file.parent} is not writable")
    return file


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 file; replaces an older one of that name.

    Raises
    ------
    QGeluError
        If it cannot be written.
    """
    file = check_writable(path)
    try:
        with replacing(file) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise QGeluError(f"{file} cannot be written: {error.strerror or error}") from None
