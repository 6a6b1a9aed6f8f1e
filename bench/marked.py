"""Generated parts of documents: what stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def replace(file: str, name: str, lines: list[str], *, check: bool = False) -> bool:
    """Put lines between a document's marks; return whether that changes it. With ``check``, write nothing."""
    path = ROOT / file
    text = path.read_text()
    pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"error: {file} has no marks for {name}")
    body = "\n".join(lines)
    new = pattern.sub(lambda match: f"{match[1]}{body}\n{match[2]}", text)
    if new != text and not check:
        path.write_text(new)
    return new != text


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
