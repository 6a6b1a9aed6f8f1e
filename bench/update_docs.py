"""Renew the tables in docs/ that follow from the code alone.

python bench/update_docs.py            # rewrite
python bench/update_docs.py --check    # only compare; exit 1 if something would change
"""

import argparse
import sys

from marked import replace, table

from qgelu.cli import cli
from qgelu.polynomial import FORMATS, tail_polynomial


def tails():
    """Return the tails' table of docs/arithmetic.md."""
    rows = []
    for lanes in (16, 32):
        for family in ("gelu", "gelu_tanh", "sigmoid"):
            tail, form = tail_polynomial(family, lanes), FORMATS[lanes]
            degree = tail.coefficients.shape[1] - 1
            numbers = (lanes, tail.cutoff, form.argument_bits, 1 << form.segment_bits, degree, tail.gain)
            rows.append([f"`{family}`", *(f"{number:g}" for number in numbers), f"{tail.proof.max_error:.2e}"])
    header = ["family", "lanes", "T", "B", "segments", "degree", "G", "largest abs(p / G - g)"]
    return table(header, rows)


def commands():
    """Return the help of every command, for docs/command-line.md."""
    lines = []
    for name, command in cli.commands.items():
        context = command.make_context(f"qgelu {name}", [], resilient_parsing=True)
        context.max_content_width = context.terminal_width = 100
        lines += [f"### qgelu {name}", "", "```", *command.get_help(context).splitlines(), "```", ""]
    return lines


TABLES = {("docs/arithmetic.md", "tails"): tails, ("docs/command-line.md", "commands"): commands}

# Help is laid out by click, whose versions differ: a test looks for every option instead.
UNCHECKED = {"commands"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    changed = []
    for (file, name), make in TABLES.items():
        if not (check and name in UNCHECKED) and replace(file, name, make(), check=check):
            changed.append(f"{file}: {name}")
    if check and changed:
        sys.exit("would change: " + ", ".join(changed))


if __name__ == "__main__":
    main()
