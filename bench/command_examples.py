"""Run every command on the shipped model and put what it prints into docs/command-line.md.

    python bench/command_examples.py            # rewrite
    python bench/command_examples.py --print    # only show

Of JSON, lists are cut to their first entry; of what people see, spaces at the end of a line are.
"""

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

from marked import ROOT, replace

from qgelu import cli

PAGE = "docs/command-line.md"
PREPARE = "example_data"
"""Mark of the code that makes the data."""

EXAMPLES = {
    "inspect_table": "inspect digits_vit.onnx",
    "inspect": "inspect digits_vit.onnx --json",
    "calibrate": "calibrate digits_vit.onnx --data calib.npz -o calibration.json --json",
    "merge": "calibrate --merge calibration.json more.json -o both.json --json",
    "quantize": "quantize digits_vit.onnx --calibration calibration.json -o digits.int8.onnx --json",
    "goal": "quantize digits_vit.onnx --data calib.npz --target-metric sqnr=25 -o digits.mixed.onnx",
    "verify_table": "verify digits_vit.onnx digits.int8.onnx --data test.npz",
    "verify": "verify digits_vit.onnx digits.int8.onnx --data test.npz --json",
    "report": "report digits_vit.onnx --data calib.npz --test test.npz --labels labels.npy"
    " --bits 4,8 -o report.html --json",
    "demo": "demo -o made --json",
    "failed": "quantize digits_vit.onnx --data labels.npy -o digits.int8.onnx",
}
BEFORE = {"merge": ["calibrate digits_vit.onnx --data test.npz -o more.json"]}
"""What an example needs that the page does not show."""


def example_data():
    """Return the code on the page that makes the data."""
    text = (ROOT / PAGE).read_text()
    return text[text.index(f"<!-- {PREPARE} -->") :].split("```python\n")[1].split("```")[0]


def cut(value):
    """Return JSON values with every list cut to its first entry."""
    if isinstance(value, dict):
        return {key: cut(inner) for key, inner in value.items()}
    return [cut(inner) for inner in value[:1]] if isinstance(value, list) else value


def run(command):
    """Return exit code, stdout and stderr of one command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(command.split())
    return code, out.getvalue(), err.getvalue()


def example(name):
    """Return the lines of one example."""
    for command in BEFORE.get(name, ()):
        run(command)
    code, out, err = run(EXAMPLES[name])
    text = json.dumps(cut(json.loads(out)), indent=2) if out else err
    lines = [line.rstrip() for line in text.strip().splitlines()]
    return ["```", f"$ qgelu {EXAMPLES[name]}", *lines, "```"], code


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--print", action="store_true", dest="only_print", help="write nothing")
    only_print = parser.parse_args().only_print
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        exec(example_data(), {})
        for name in EXAMPLES:
            found[name], code = example(name)
            print(f"{name}: exit code {code}", file=sys.stderr)
            print("\n".join(found[name]), end="\n\n")
        assert Path("report.html").exists()
        os.chdir(ROOT)
    for name, lines in found.items():
        if not only_print:
            replace(PAGE, f"example_{name}", lines)


if __name__ == "__main__":
    main()
