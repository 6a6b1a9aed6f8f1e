"""Measuring: calibrate once, quantize at every width, run each on the test data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

import qgelu
from calibration.model_size import model_bytes
from qgelu.accuracy_metric import METRIC_NAMES, Metric, choose_metric, loss_of
from qgelu.errors import QGeluError
from qgelu.evaluation import Evaluation, check_mask, evaluate_model
from qgelu.graph.findings import Site
from qgelu.graph.opset import onnx_version
from qgelu.graph.sites import find_sites
from qgelu.labels import check_labels
from qgelu.pair_saturation import check_target_cpu
from qgelu.pipeline import (
    FFN_MAX_BITS,
    Progress,
    as_model,
    calibrate,
    check_not_quantized,
    model_name,
    prepared,
    quantize,
    select_sites,
)
from qgelu.reference_store import ReferenceStore
from qgelu.reporting.baselines import BASELINES, DESCRIPTIONS, run_baseline
from qgelu.reporting.content import (
    Candidate,
    Curve,
    DataSummary,
    ModelSummary,
    Recommendation,
    Report,
    Scope,
    SiteSummary,
)
from qgelu.reporting.curves import CURVE_BITS, model_curves
from qgelu.reporting.recommendation import recommend
from qgelu.reporting.reference import record_reference
from qgelu.reporting.site_quality import site_quality
from qgelu.sessions import ModelRunner
from qgelu.simulation import simulate_ffns

if TYPE_CHECKING:
    from calibration import BatchSource, Calibration

DEFAULT_BITS: Final = range(4, 17)
DEFAULT_TOLERANCE: Final = 0.01
_MOST_BITS: Final = 16


@dataclass(frozen=True)
class _Job:
    """One candidate to measure."""

    label: str
    scope: Scope | None
    bits: int
    baseline: str | None = None
    simulated: bool = False


@dataclass(frozen=True)
class _Bench:
    """What every candidate is measured with."""

    model: onnx.ModelProto
    prepared: onnx.ModelProto
    statistics: "Calibration"
    names: tuple[str, ...]
    store: ReferenceStore
    recorded: dict[str, NDArray[np.float32]]
    mask: str | None
    labels: NDArray[np.int64] | None
    target_cpu: str
    threads: int | None

    def evaluate(self, model: onnx.ModelProto, label: str) -> Evaluation:
        with ModelRunner(model, f"candidate {label!r}", threads=self.threads, native=True) as runner:
            return evaluate_model(self.store, runner, mask=self.mask, labels=self.labels)


def _describe(source: Any) -> str:
    if isinstance(source, str | PathLike):
        return str(source)
    return "arrays in memory" if isinstance(source, Mapping) else f"{type(source).__name__} of feeds"


def _jobs(sites: Sequence[Site], bits: Sequence[int], baselines: Sequence[str]) -> list[_Job]:
    jobs = []
    if any(site.scope == "ffn" for site in sites):
        jobs = [
            _Job(f"ffn, {width} bits", "ffn", width)
            if width <= FFN_MAX_BITS
            else _Job(f"ffn, {width} bits, simulated", "ffn", width, simulated=True)
            for width in bits
        ]
    jobs += [_Job(f"activation, {width} bits", "activation", width) for width in bits]
    return jobs + [_Job(name, None, 8, name) for name in baselines]


def _executed(scope: Scope, scopes: Sequence[str]) -> str:
    if scope == "activation":
        return "activations in integers (tables), all else in float"
    blocks = sum(got == "ffn" for got in scopes)
    rest = len(scopes) - blocks
    alone = f", {rest} {'activation' if rest == 1 else 'activations'} alone" if rest else ""
    return f"{blocks} {'FFN' if blocks == 1 else 'FFNs'} in integers from end to end{alone}; all else in float"


def _measure(bench: _Bench, job: _Job) -> tuple[Candidate, tuple[Curve, ...], tuple[str, ...]]:
    assert job.scope is not None
    result = quantize(
        bench.model,
        calibration=bench.statistics,
        scope=job.scope,
        bits=job.bits,
        target_cpu=bench.target_cpu,
        sites=bench.names,
    )
    evaluation = bench.evaluate(result.model, job.label)
    candidate = Candidate(
        job.label,
        "qgelu",
        job.scope,
        job.bits,
        _executed(job.scope, [site.scope for site in result.sites]),
        model_bytes(result.model),
        evaluation.outputs,
        evaluation.failures,
        None,
        tuple(site_quality(site, bench.recorded.get(site.name)) for site in result.sites),
    )
    curves = model_curves(result.sites, job.scope) if job.bits in CURVE_BITS else ()
    return candidate, curves, tuple(f"{job.label}: {note}" for note in result.notes)


def _measure_simulated(bench: _Bench, job: _Job, sites: Sequence[Site]) -> Candidate:
    result = simulate_ffns(bench.prepared, sites, bench.statistics, job.bits)
    evaluation = bench.evaluate(result.model, job.label)
    count, rest = len(result.simulated), len(sites) - len(result.simulated)
    left = f", {rest} {'site' if rest == 1 else 'sites'} left in float" if rest else ""
    return Candidate(
        job.label,
        "simulated",
        job.scope,
        job.bits,
        f"simulated: {count} {'FFN' if count == 1 else 'FFNs'} rounded to codes in float arithmetic{left}",
        model_bytes(result.model),
        evaluation.outputs,
        evaluation.failures,
        None,
        (),
    )


def _measure_baseline(bench: _Bench, job: _Job, sites: Sequence[Site], source: "BatchSource") -> Candidate | None:
    assert job.baseline is not None
    model = run_baseline(job.baseline, bench.prepared, sites, source)
    if model is None:
        return None
    evaluation = bench.evaluate(model, job.label)
    return Candidate(
        job.label,
        "baseline",
        None,
        job.bits,
        DESCRIPTIONS[job.baseline],
        model_bytes(model),
        evaluation.outputs,
        evaluation.failures,
        None,
        (),
    )


def _with_losses(candidates: Sequence[Candidate], metric: Metric) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(**{**vars(candidate), "loss": loss_of(candidate.outputs, metric)}) for candidate in candidates
    )


def _check_options(bits: Iterable[int], baselines: Iterable[str], tolerance: float) -> tuple[list[int], list[str]]:
    widths = sorted(set(bits))
    if not widths or widths[0] < 2 or widths[-1] > _MOST_BITS:
        raise QGeluError(f"bits must be from 2 to {_MOST_BITS}, at least one of them, not {widths}")
    names = list(dict.fromkeys(baselines))
    for name in names:
        if name not in BASELINES:
            raise QGeluError(f"baseline {name!r} is not known: use one of {', '.join(BASELINES)}")
    if not 0.0 <= tolerance <= 1.0:
        raise QGeluError(f"tolerance must be from 0 to 1, not {tolerance}")
    return widths, names


def _check_labels_fit(labels: NDArray[np.int64] | None, store: ReferenceStore) -> None:
    if labels is None:
        return
    if not store.has_classes:
        raise QGeluError("labels: no output of the model is [samples, classes]: leave the labels out")
    if labels.size != store.samples:
        raise QGeluError(f"labels: {labels.size} labels for {store.samples} samples of test data: give one for each")


def _recommendations(candidates: Sequence[Candidate], metric: Metric, tolerance: float) -> tuple[Recommendation, ...]:
    scopes: tuple[Scope, ...] = ("ffn", "activation")
    present = {candidate.scope for candidate in candidates if candidate.kind == "qgelu"}
    found = [recommend(candidates, scope, metric, tolerance) for scope in scopes if scope in present]
    return tuple(sorted(found, key=lambda one: one.bits is None))


def _notes(
    data: DataSummary, skipped: Sequence[str], widths: Sequence[int], *, blocks: bool, static: bool
) -> tuple[str, ...]:
    simulated = blocks and widths[-1] > FFN_MAX_BITS
    notes = [
        "Every number was measured by running the model with ONNX Runtime"
        + ("." if simulated else "; nothing is simulated.")
    ]
    if simulated:
        notes.append(
            f"Integer FFNs have 2 to {FFN_MAX_BITS} bits: candidates called simulated round to more bits in float "
            "arithmetic, with weights of 8 bits. No executor runs them, and none is recommended."
        )
    if data.same:
        notes.append(
            "Ranges were picked on the same data that accuracy is measured on: new data will do a little worse. "
            "Give separate test data to know how much."
        )
    if not blocks:
        notes.append("No activation sits between two matmuls with constant weights: only scope activation applies.")
    notes += [f"Baseline {name} was left out: the model has no FFN that it could be restricted to." for name in skipped]
    if data.mask is not None and static:
        notes.append("ONNX Runtime's own static calibration takes no mask: as a baseline, it sees padding too.")
    return tuple(notes)


def report(
    model: str | PathLike[str] | onnx.ModelProto,
    data: Any,
    *,
    calibration: "Calibration | None" = None,
    test_data: Any = None,
    bits: Iterable[int] = DEFAULT_BITS,
    labels: Any = None,
    baselines: Iterable[str] = (),
    tolerance: float = DEFAULT_TOLERANCE,
    metric: Metric | None = None,
    sites: Sequence[str] | None = None,
    mask: str | None = None,
    target_cpu: str = "host",
    progress: Progress | None = None,
    threads: int | None = None,
) -> Report:
    """Measure accuracy against bits and recommend a width.

    Parameters
    ----------
    model : path or ModelProto
        Float model.
    data : optional
        Calibration data: what :func:`calibration.open_data` takes.
    calibration : Calibration, optional
        From :func:`qgelu.calibrate` on the same model: the data is then only measured on.
    test_data : optional
        Data to measure on; ``data`` if not given.
    bits : iterable of int
        Widths of the activations' codes, 2 to 16; beyond 8, scope ffn is simulated.
    labels : int array of shape [samples], optional
        Right class of each test sample, for outputs [samples, classes].
    baselines : iterable of str
        Any of "ort-static" and "ort-dynamic".
    tolerance : float
        Largest loss that a recommended width may have: share of answers (accuracy, top-1 agreement), or of the
        cosine or the relative error where the outputs are no classes.
    metric : str, optional
        What the tolerance is about: "accuracy", "top1_agreement", "cosine_mean" or "relative_error". If not
        given, the first of these that the outputs have.
    sites : sequence of str, optional
        Names or globs; all sites if not given.
    mask : str, optional
        Model input that is 0 where a position is padding.
    target_cpu : str
        What the model will run on: as for :func:`qgelu.quantize`. Notes tell of widths at which int8 matmuls can
        saturate there.
    progress : callable, optional
        See :data:`qgelu.pipeline.Progress`.
    threads : int, optional
        ONNX Runtime's threads.

    Raises
    ------
    QGeluError, CalibrationError
        If model, data or options cannot be used.
    """
    from calibration import input_specs, open_data

    widths, names = _check_options(bits, baselines, tolerance)
    check_target_cpu(target_cpu)
    classes = None if labels is None else check_labels(labels)
    if metric == "accuracy" and classes is None:
        raise QGeluError("metric 'accuracy' needs labels: give the right class of each test sample")
    if metric is not None and metric not in METRIC_NAMES:
        raise QGeluError(f"metric {metric!r} is not known: use one of {', '.join(METRIC_NAMES)}")
    proto = as_model(model)
    check_not_quantized(proto, model_name(model))
    form = prepared(proto)
    chosen = select_sites(find_sites(form), sites)
    specs = input_specs(proto)
    check_mask(mask, [spec.name for spec in specs])
    step: Progress = progress or (lambda stage, done, total: None)
    statistics = calibration or calibrate(
        proto, data, sites=[site.name for site in chosen], mask=mask, progress=step, threads=threads
    )
    skipped: list[str] = []
    candidates: list[Candidate] = []
    curves: list[Curve] = []
    notes: list[str] = []
    with ReferenceStore() as store:
        recorded = record_reference(
            form,
            chosen,
            open_data(data if test_data is None else test_data, specs),
            store,
            mask=mask,
            progress=step,
            threads=threads,
        )
        _check_labels_fit(classes, store)
        site_names = tuple(site.name for site in chosen)
        bench = _Bench(proto, form, statistics, site_names, store, recorded, mask, classes, target_cpu, threads)
        jobs = _jobs(chosen, widths, names)
        for index, job in enumerate(jobs):
            step("measure candidates", index, len(jobs))
            if job.simulated:
                candidates.append(_measure_simulated(bench, job, chosen))
                continue
            if job.baseline is None:
                candidate, found, told = _measure(bench, job)
                candidates.append(candidate)
                curves += found
                notes += told
                continue
            baseline = _measure_baseline(bench, job, chosen, open_data(data, specs))
            if baseline is None:
                skipped.append(job.baseline)
            else:
                candidates.append(baseline)
        step("measure candidates", len(jobs), len(jobs))
        samples = store.samples
    judged_by = choose_metric([output for candidate in candidates for output in candidate.outputs], metric)
    measured = _with_losses(candidates, judged_by)
    about = DataSummary(
        _describe(data) if calibration is None else "a calibration made before",
        _describe(data if test_data is None else test_data),
        statistics.samples,
        samples,
        test_data is None and calibration is None,
        mask,
        classes is not None,
    )
    return Report(
        _summary(model, proto, chosen, statistics),
        about,
        judged_by,
        tolerance,
        measured,
        tuple(curves),
        _recommendations(measured, judged_by, tolerance),
        (
            *_notes(
                about,
                skipped,
                widths,
                blocks=any(site.scope == "ffn" for site in chosen),
                static="ort-static" in set(names) - set(skipped),
            ),
            *notes,
        ),
        _versions(),
    )


def _summary(model: Any, proto: onnx.ModelProto, sites: Sequence[Site], statistics: "Calibration") -> ModelSummary:
    name = proto.graph.name or "model in memory"
    if not isinstance(model, onnx.ModelProto):
        name = Path(model).name
    summaries = tuple(SiteSummary(site.name, site.activation, site.alpha, site.scope, site.reason) for site in sites)
    return ModelSummary(name, onnx_version(proto), model_bytes(proto), statistics.model_digest, summaries)


def _versions() -> dict[str, str]:
    import onnxruntime

    return {
        "qgelu": qgelu.__version__,
        "onnxruntime": onnxruntime.__version__,
        "onnx": onnx.__version__,
        "numpy": np.__version__,
    }
