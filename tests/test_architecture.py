"""Imports run one way, importing compiles nothing, and no module hides a public function."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Each layer may import itself and the layers before it.
LAYERS = [
    {"qgelu.errors"},
    {"qgelu.activations", "qgelu.qparams", "qgelu._erfc"},
    {"qgelu.native"},
    {"qgelu.kernels"},
    {
        "qgelu.certificate",
        "qgelu.correct_rounding",
        "qgelu.ibert_plan",
        "qgelu.narrow",
        "qgelu.plan",
        "qgelu.packed",
        "qgelu.plan_arguments",
        "qgelu.plan_json",
        "qgelu.planner",
        "qgelu.polynomial",
        "qgelu.polynomial_plan",
        "qgelu.table_plan",
        "qgelu.tail_coefficients",
        "qgelu.wide",
    },
    {"qgelu.ffn"},
    {"qgelu.graph"},
    {"qgelu.ffn_search"},
    {
        "qgelu.accuracy_goal",
        "qgelu.accuracy_metric",
        "qgelu.bit_search",
        "qgelu.caveats",
        "qgelu.evaluation",
        "qgelu.labels",
        "qgelu.output_comparison",
        "qgelu.pair_saturation",
        "qgelu.reference_store",
        "qgelu.sessions",
    },
    {"qgelu.pipeline", "qgelu.simulation"},
    {
        "qgelu.atomic_file",
        "qgelu.dip_check",
        "qgelu.executor_check",
        "qgelu.inspection",
        "qgelu.number_text",
    },
    {"qgelu.terminal", "qgelu.terminal_tables", "qgelu.verification"},
    {"qgelu.reporting", "qgelu.demo"},
    {"qgelu.cli", "qgelu.__main__"},
]
MODULES = sorted([*(ROOT / "qgelu").rglob("*.py"), *(ROOT / "calibration").rglob("*.py")])


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(name):
    for index, layer in enumerate(LAYERS):
        if any(name == entry or name.startswith(entry + ".") for entry in layer):
            return index
    return None


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            # "from qgelu import narrow" names a module too.
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "qgelu")


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_run_one_way(path):
    name = module_name(path)
    imported = {target for target in imports_of(path) if target.startswith(("qgelu.", "calibration"))}
    if name.startswith("calibration"):
        allowed = {"qgelu.activations", "qgelu.qparams"}
        assert {target for target in imported if target.startswith("qgelu.")} <= allowed | {
            f"qgelu.{entry.split('.')[-1]}" for entry in allowed
        }
        return
    own = layer_of(name)
    if name == "qgelu":
        return  # lazy re-exports
    if name == "qgelu.plan":
        imported.discard("qgelu.plan_json")  # to_json, inside the method
    assert own is not None, f"{name} is in no layer"
    imported.discard("calibration.whole_file")  # how files are written; it imports nothing
    for target in imported:
        if target.startswith("calibration"):
            assert own >= layer_of("qgelu.ffn_search"), f"{name} imports {target}"
        elif layer_of(target) is not None:
            assert layer_of(target) <= own, f"{name} imports {target}"


def test_kernels_know_nothing_of_onnx():
    for path in (ROOT / "qgelu" / "kernels").glob("*.py"):
        assert not [target for target in imports_of(path) if target.split(".")[0].startswith("onnx")], path


def test_no_module_hides_a_public_function():
    names = {path.stem for path in (ROOT / "qgelu").iterdir()}
    assert not names & {"inspect", "quantize", "verify", "report", "register", "make_plan", "calibrate"}


def test_import_is_light_and_compiles_nothing():
    code = (
        "import sys, qgelu, calibration\n"
        "heavy = {'numba', 'onnx', 'onnxruntime', 'matplotlib', 'mpmath', 'numpy', 'click'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
