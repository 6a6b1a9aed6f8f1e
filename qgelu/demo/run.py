"""``qgelu demo``: the whole job on the model and the images in this package."""

import time
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qgelu.demo import load_calibration, load_test, model_path
from qgelu.errors import QGeluError

if TYPE_CHECKING:
    from rich.console import Console

    from qgelu.reporting import Report

REPORT_BITS: Final = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
_SHOWN_BITS: Final = 8
_SCOPES: Final = ("ffn", "activation")


def _make_folder(folder: str | PathLike[str]) -> Path:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise QGeluError(f"{path} is a file: name a folder for the demo's output") from None
    except OSError as error:
        raise QGeluError(f"{path} cannot be made ({error.strerror}): name a folder that can be written to") from None
    return path


def _accuracy(report: "Report") -> dict[str, Any]:
    """Return the accuracy on the test images of the float model and of both scopes at 8 bits."""
    found: dict[str, Any] = {}
    for candidate in report.candidates:
        for output in candidate.outputs:
            found["float"] = output.float_accuracy
            if candidate.scope is not None and candidate.bits == _SHOWN_BITS:
                found[candidate.scope] = output.accuracy
            elif candidate.scope is None:
                found[candidate.label] = output.accuracy
    return found


def run_demo(folder: str | PathLike[str], console: "Console", *, threads: int | None = None) -> dict[str, Any]:
    """Run every step and show it; return what came out as JSON values.

    Parameters
    ----------
    folder : path
        Made if it is not there; holds the models, the calibration and the report afterwards.
    console : Console
    threads : int, optional
        ONNX Runtime's threads.

    Raises
    ------
    QGeluError
        If the folder cannot be written to.
    """
    from qgelu.graph.model_file import load_model
    from qgelu.graph.opset import onnx_version
    from qgelu.graph.sites import find_sites
    from qgelu.number_text import percent
    from qgelu.pipeline import calibrate, quantize
    from qgelu.reporting import BASELINES, report
    from qgelu.reporting.terminal import print_report
    from qgelu.terminal import StageProgress
    from qgelu.terminal_tables import print_findings, print_quantized_sites, print_verification
    from qgelu.verification import verify

    start = time.monotonic()
    path = _make_folder(folder)
    model, images = load_model(model_path()), load_calibration()
    test_images, labels = load_test()
    files: list[str] = []

    console.rule("1. Inspect: where the model computes GELU", align="left")
    print_findings(console, model_path().name, onnx_version(model), find_sites(model))

    console.rule("2. Calibrate: what values occur there", align="left")
    with StageProgress(console) as progress:
        statistics = calibrate(model, images, progress=progress, threads=threads)
    statistics.save(path / "calibration.json")
    files.append("calibration.json")

    passed = True
    for number, scope in enumerate(_SCOPES, start=3):
        console.rule(f"{number}. Quantize with scope {scope}, and verify", align="left")
        with StageProgress(console) as progress:
            result = quantize(model, calibration=statistics, scope=scope, progress=progress)
            verification = verify(model, result, test_images, progress=progress, threads=threads)
        name = f"digits_vit.{scope}.int8.onnx"
        result.save(path / name)
        files.append(name)
        print_quantized_sites(console, result.sites)
        print_verification(console, verification)
        passed = passed and verification.passed

    console.rule("5. Report: accuracy against bits", align="left")
    with StageProgress(console) as progress:
        found = report(
            model_path(),
            images,
            calibration=statistics,
            test_data=test_images,
            labels=labels,
            bits=REPORT_BITS,
            baselines=BASELINES,
            progress=progress,
            threads=threads,
        )
    for suffix in ("html", "md", "json"):
        found.save(path / f"report.{suffix}")
        files.append(f"report.{suffix}")
    print_report(console, found)

    accuracy = _accuracy(found)
    console.rule("Done", align="left")
    console.print(f"Right answers on {labels.size} test images that calibration never saw:", markup=False)
    for name, value in accuracy.items():
        described = name if name not in _SCOPES else f"{_SHOWN_BITS} bits, scope {name}"
        console.print(f"  {described}: {percent(value)} ({round(value * labels.size)})", markup=False)
    console.print(f"In {path}: {', '.join(files)}", markup=False)
    return {
        "folder": str(path),
        "files": files,
        "passed": passed,
        "test_images": int(labels.size),
        "accuracy": accuracy,
        "recommended_bits": found.recommendations[0].bits,
        "recommended_scope": found.recommendations[0].scope,
        "seconds": round(time.monotonic() - start, 1),
    }
