"""Reports to a file."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qgelu.atomic_file import write_text
from qgelu.errors import QGeluError

if TYPE_CHECKING:
    from qgelu.reporting.content import Report

SUFFIXES: Final = (".html", ".md", ".json")


def check_report_path(path: str | os.PathLike[str]) -> str:
    """Return the suffix of a report's file.

    Raises
    ------
    QGeluError
        If no report is written with that suffix.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise QGeluError(f"{path}: a report is a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file: name one of these")
    return suffix


def save_report(report: "Report", path: str | os.PathLike[str]) -> None:
    """Write a report in the format that the suffix says."""
    suffix = check_report_path(path)
    if suffix == ".json":
        text = json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n"
    elif suffix == ".md":
        text = report.to_markdown()
    else:
        text = report.to_html()
    write_text(path, text)
