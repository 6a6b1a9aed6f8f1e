"""Renew the generated tables in docs/: what stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``.

python bench/update_docs.py            # rewrite
python bench/update_docs.py --check    # only compare; exit 1 if something would change
"""

import argparse
import re
import sys
from pathlib import Path

from qgelu.polynomial import FORMATS, tail_polynomial

DOCS = Path(__file__).resolve().parent.parent / "docs"


def tails():
    """Return the rows of the tails' table in docs/arithmetic.md."""
    rows = [
        "| family | lanes | T | B | segments | degree | G | largest abs(p / G - g) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for lanes in (16, 32):
        for family in ("gelu", "gelu_tanh", "sigmoid"):
            tail, form = tail_polynomial(family, lanes), FORMATS[lanes]
            rows.append(
                f"| `{family}` | {lanes} | {tail.cutoff:g} | {form.argument_bits} | {1 << form.segment_bits} "
                f"| {tail.coefficients.shape[1] - 1} | {tail.gain:g} | {tail.proof.max_error:.2e} |"
            )
    return rows


TABLES = {("arithmetic.md", "tails"): tails}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    changed = []
    for (file, name), make in TABLES.items():
        path = DOCS / file
        text = path.read_text()
        pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        rows = "\n".join(make())
        new = pattern.sub(lambda match, rows=rows: f"{match[1]}{rows}\n{match[2]}", text)
        if new != text:
            changed.append(f"docs/{file}: {name}")
            if not check:
                path.write_text(new)
    if check and changed:
        sys.exit("would change: " + ", ".join(changed))


if __name__ == "__main__":
    main()
