"""What the pages in docs/ say about files, ops, formulas and JSON is what the code does; their Python runs."""

import ast
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import qgelu
from calibration import equalize, qparams_from_range
from calibration.row_sample import row_limit
from qgelu import cli, narrow
from qgelu.demo import load_calibration, load_test, model_path
from qgelu.graph.functions import (
    DOMAIN,
    MINIMUM_OPSET,
    ML_VERSION,
    NARROW_INPUTS,
    TABLE_INPUTS,
    VERSION,
    WIDE_INPUTS,
)
from qgelu.graph.rewrite_activation import _SIXTEEN_BIT_OPSET

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SCRIPTS = ROOT / "bench"


def page(name):
    return (DOCS / name).read_text()


def python_blocks():
    for path in sorted(DOCS.glob("*.md")):
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL), start=1):
            yield pytest.param(block, id=f"{path.name}-{number}")


@pytest.mark.parametrize("block", list(python_blocks()))
def test_python_in_docs_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "block", "exec"), {})


def test_every_file_has_its_line():
    text = page("architecture.md")
    named = set(re.findall(r"`((?:qgelu|calibration)/[\w./]+\.\w+)`", text))
    there = {
        str(path.relative_to(ROOT))
        for package in ("qgelu", "calibration")
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".j2", ".onnx", ".npz", ".c", ".h"}
    }
    assert named == there
    for script in re.findall(r"`((?:bench|tests)/\w+\.py)`", text):
        assert (ROOT / script).exists(), script


def test_the_index_names_every_page():
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", page("README.md")))
    assert linked == {path.name for path in DOCS.glob("*.md")} - {"README.md"}


# The ops' page.


def between(text, start, end=None):
    part = text[text.index(start) + len(start) :]
    return part if end is None else part[: part.index(end)]


def first_cells(text, cell=0):
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [name for row in rows for name in re.findall(r"`([\w.]+)`", row[cell])]


def test_inputs_of_the_ops():
    text = page("ops.md")
    table, requantize = between(text, "## QGelu", "## Requantize"), between(text, "## RequantizeGelu", "## What a")
    assert first_cells(table, 1) == [*TABLE_INPUTS, "to", "output"]
    head, integers = requantize.split("The equations count")
    outer = first_cells(head, 1)
    for inputs, column in ((NARROW_INPUTS, 0), (WIDE_INPUTS, 2)):
        assert [*outer[:4], *first_cells(integers, column), *outer[4:6]] == list(inputs)
    assert outer[6:] == ["to", "output"]


@pytest.fixture(scope="module")
def calibrated():
    return qgelu.calibrate(model_path(), {"images": load_calibration()["images"][:64]})


@pytest.mark.parametrize("scope", ["activation", "ffn"])
def test_the_graph_node_by_node(scope, calibrated):
    end = "**Scope `ffn`**" if scope == "activation" else "*Below 8 bits*"
    listed = first_cells(between(page("ops.md"), f"**Scope `{scope}`**", end), 0)
    assert len(listed) == (3 if scope == "activation" else 13)
    model = qgelu.quantize(model_path(), calibration=calibrated, scope=scope, sites=["node_gelu"]).model
    made = [node for node in model.graph.node if node.name.startswith("qgelu/")]
    assert [f"{node.domain}.{node.op_type}".lstrip(".") for node in made] == listed


def test_metadata_keys(calibrated):
    text = between(page("ops.md"), "## The metadata")
    model = qgelu.quantize(model_path(), calibration=calibrated).model
    entry = json.loads(next(one.value for one in model.metadata_props if one.key == "qgelu.sites"))[0]
    for key in (*entry, *entry["plan"]):
        assert f"`{key}`" in text
    assert {function.name for function in model.functions if function.domain == DOMAIN} == {"RequantizeGelu"}
    assert model.ir_version >= 8


def test_ranges_of_the_narrow_integers():
    rows = re.findall(r"^\| `(\w+)` \| (\d+), ([\d^ -]+?) \|", page("ops.md"), re.MULTILINE)
    stated = {name: (int(low), eval(high.replace("^", "**"))) for name, low, high in rows}
    assert len(stated) == 6
    plan = qgelu.make_plan(qgelu.AccumulatorParams(3e-5), qgelu.QParams(0.02, 9))
    integers = vars(plan.integers)
    zero, one = np.array([9]), np.ones(1)
    for name, (low, high) in stated.items():
        assert low <= integers[name][0] <= high
        for value in (low - 1, high + 1):
            changed = narrow.NarrowParameters(**{**integers, name: np.array([value])})
            reason = narrow.check(changed, 3e-5 * one, 0.02 * one, zero, 255, plan.tail, 1.0)
            assert reason == f"{name} leaves {low} to {high}"


# The calibration's page.


def test_equalization_is_what_the_page_says():
    rng = np.random.default_rng(3)
    low, high = -rng.uniform(1, 9, 12), rng.uniform(1, 9, 12)
    weight, a, bits, clip = rng.normal(size=(12, 7)), 0.7, 6, 0.8
    last = 2**bits - 1
    half, middle = (high - low) / 2, (high + low) / 2
    f = half**a / np.abs(weight).max(axis=1) ** (1 - a)  # (55)
    scale = clip * (2 * half / (last * f)).max() * f  # (56), (57)
    found = equalize(low, high, weight, a, bits, clip=clip)
    np.testing.assert_allclose(found.scale, scale)
    np.testing.assert_allclose(found.zero_point, last / 2 - middle / scale)


def test_scales_are_what_the_page_says():
    for low, high, bits, signed in ((-1.0, 3.0, 8, False), (0.5, 2.0, 4, True), (-7.0, -1.0, 12, True)):
        found = qparams_from_range(low, high, bits, signed)
        bottom, top, steps = min(low, 0.0), max(high, 0.0), 2**bits - 1
        assert found.scale == float(np.float32((top - bottom) / steps))
        assert found.zero_point == found.qmin + round(min(max(-bottom / found.scale, 0), steps))


def test_calibration_file_keys(calibrated, tmp_path):
    text = page("calibration.md")
    calibrated.save(tmp_path / "calibration.json")
    content = json.loads((tmp_path / "calibration.json").read_text())
    for part in (content, content["tensors"]["gelu"], content["tensors"]["gelu"]["histogram"]):
        for key in part:
            assert f"`{key}`" in text
    assert "up to 4096 rows or 2^20 numbers" in text
    assert (row_limit(1), row_limit(1 << 10)) == (4096, 1 << 10)


def literals(path):
    """Return the text of every string of a module, f-strings with ``...`` for what they are filled with."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)


def test_refusals_are_those_of_the_code():
    written = " ".join(
        re.sub(r"'?\.\.\.'?", "...", text)
        for path in [
            *(ROOT / "calibration").glob("*.py"),
            *(ROOT / f"qgelu/{name}.py" for name in ("pipeline", "ffn_search", "bit_search")),
        ]
        for text in literals(path)
    )
    rows = first_column(between(page("calibration.md"), "## What is refused"))
    assert len(rows) > 40
    missing = [row for row in rows if not all(piece.strip() in written for piece in row.split("..."))]
    assert missing == []


def first_column(text):
    rows = [line.strip("|").split("|")[0] for line in text.splitlines() if line.startswith("| `")]
    return [re.sub(r"'?\.\.\.'?", "...", quoted) for row in rows for quoted in re.findall(r"`([^`]+)`", row)]


# JSON on the command line's page and on the report's.


def shape(value):
    """Return the keys of JSON values; of a list, those of its first entry."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(inner) for inner in value[:1]] if isinstance(value, list) else None


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    np.savez(folder / "calib.npz", images=load_calibration()["images"][:64])
    images, labels = load_test()
    np.savez(folder / "test.npz", images=images["images"][:64])
    np.save(folder / "labels.npy", labels[:64])
    (folder / "digits_vit.onnx").write_bytes(model_path().read_bytes())
    return folder


@pytest.mark.slow
def test_examples_have_the_keys_of_what_commands_print(files, capfd, monkeypatch):
    monkeypatch.chdir(files)
    blocks = re.findall(r"^\$ qgelu ([^\n]*--json)\n(\{.*?^\})$", page("command-line.md"), re.MULTILINE | re.DOTALL)
    shown = {command.split()[0] for command, _ in blocks}
    assert shown == set(cli.cli.commands)
    compared = 0
    for command, text in blocks:
        if command.startswith(("demo", "calibrate --merge")):
            continue
        capfd.readouterr()
        assert cli.run(command.split()) == 0
        assert shape(json.loads(capfd.readouterr().out)) == shape(json.loads(text)), command
        compared += 1
    assert compared == 5
    report = json.loads(blocks[[command.split()[0] for command, _ in blocks].index("report")][1])
    listed = page("report.md")
    for part in (report, report["candidates"][0], report["candidates"][0]["outputs"][0], report["curves"][0]):
        for key in part:
            assert f"`{key}`" in listed


def test_example_scripts_and_the_page_name_the_same_parts():
    sys.path.insert(0, str(SCRIPTS))
    try:
        import command_examples
    finally:
        sys.path.remove(str(SCRIPTS))
    marks = set(re.findall(r"<!-- example_(\w+):begin -->", page("command-line.md")))
    assert marks == set(command_examples.EXAMPLES)
    for name, command in command_examples.EXAMPLES.items():
        assert f"$ qgelu {command}\n" in between(page("command-line.md"), f"<!-- example_{name}:begin -->")


def test_environment_variables():
    text = page("command-line.md")
    used = set()
    for path in (ROOT / "qgelu").rglob("*.py"):
        used |= set(re.findall(r'"(QGELU_[A-Z]+)"', path.read_text()))
    assert used
    assert set(re.findall(r"`(QGELU_[A-Z]+)", text)) == used


def test_exit_codes():
    text = page("command-line.md")
    for code in (0, cli.CHECK_FAILED, cli.BAD_INPUT, cli.INTERRUPTED, cli.BROKEN_PIPE):
        assert f"\n| {code} | " in text


def test_opsets():
    text = " ".join(page("ops.md").split())
    assert f"own version, {MINIMUM_OPSET} or newer" in text
    assert f"raised to {MINIMUM_OPSET};" in text
    assert f"below opset {_SIXTEEN_BIT_OPSET}" in text
    assert f"Domain `{DOMAIN}`, version {VERSION}" in text
    assert f"own version, {ML_VERSION} if it has none" in text
