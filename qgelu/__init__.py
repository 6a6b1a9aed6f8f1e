"""GELU, tanh-GELU, QuickGELU and SiLU in integers: plans, kernels, calibration and ONNX models.

Everything is loaded on first use: importing the package compiles nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qgelu import activations as activations
    from qgelu.errors import QGeluError as QGeluError
    from qgelu.inspection import inspect as inspect
    from qgelu.kernels.host import get_config as get_config
    from qgelu.kernels.host import show_config as show_config
    from qgelu.native.loader import native_library_path as native_library_path
    from qgelu.native.loader import register as register
    from qgelu.packed import pack_int4 as pack_int4
    from qgelu.packed import run_packed as run_packed
    from qgelu.packed import unpack_int4 as unpack_int4
    from qgelu.pipeline import calibrate as calibrate
    from qgelu.pipeline import quantize as quantize
    from qgelu.plan import Plan as Plan
    from qgelu.plan_json import plan_from_json as plan_from_json
    from qgelu.planner import make_plan as make_plan
    from qgelu.qparams import AccumulatorParams as AccumulatorParams
    from qgelu.qparams import QParams as QParams
    from qgelu.reporting.builder import report as report
    from qgelu.verification import verify as verify

__version__ = "0.1.0"

_HOMES = {
    "AccumulatorParams": "qgelu.qparams",
    "Plan": "qgelu.plan",
    "QGeluError": "qgelu.errors",
    "QParams": "qgelu.qparams",
    "calibrate": "qgelu.pipeline",
    "inspect": "qgelu.inspection",
    "get_config": "qgelu.kernels.host",
    "make_plan": "qgelu.planner",
    "pack_int4": "qgelu.packed",
    "native_library_path": "qgelu.native.loader",
    "plan_from_json": "qgelu.plan_json",
    "register": "qgelu.native.loader",
    "run_packed": "qgelu.packed",
    "show_config": "qgelu.kernels.host",
    "quantize": "qgelu.pipeline",
    "unpack_int4": "qgelu.packed",
    "report": "qgelu.reporting.builder",
    "verify": "qgelu.verification",
}

__all__ = ["__version__", "activations", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name == "activations":
        return importlib.import_module("qgelu.activations")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'qgelu' has no attribute {name!r}")
