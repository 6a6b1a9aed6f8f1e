"""Is a quantized model what it claims to be: end to end, near the dip, and executor against executor."""

import json
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import onnx

from qgelu.dip_check import DipErrors, check_dip
from qgelu.errors import QGeluError
from qgelu.evaluation import Evaluation, check_mask, evaluate_model, reference_batches
from qgelu.executor_check import ExecutorCheck, check_executors, custom_nodes
from qgelu.graph.names import every_node
from qgelu.output_comparison import OutputErrors
from qgelu.pair_saturation import check_target_cpu, pair_saturation_notes
from qgelu.pipeline import (
    METADATA_KEY,
    Progress,
    QuantizedModel,
    QuantizedSite,
    as_model,
    check_not_quantized,
    ffn_bits,
    model_name,
    prepared,
    quantized_sites,
)
from qgelu.sessions import ModelRunner

if TYPE_CHECKING:
    from calibration import BatchSource

FORMAT: Final = "qgelu.verification"
VERSION: Final = 1

_CERTIFICATE_SLACK: Final = 1e-9
"""LSB; float64 rounding of the exact answer."""

ModelSource = str | PathLike[str] | onnx.ModelProto


@dataclass(frozen=True)
class SiteVerification:
    """What was found at one site.

    Attributes
    ----------
    name, activation, alpha, scope, bits, note : as in :class:`qgelu.pipeline.QuantizedSite`
    plan : str
        Kind of plan.
    certificate_lsb : float
        Largest error that the plan's certificate allows, proved anew.
    proof : str
        "enumerated" or "bounded".
    misrounded : int or None
        Enumerated inputs whose code is not the correctly rounded one.
    dip : DipErrors
    executors : ExecutorCheck or None
        None for target "qdq", which has no custom ops.
    """

    name: str
    activation: str
    alpha: float
    scope: str
    bits: int
    note: str
    plan: str
    certificate_lsb: float
    proof: str
    misrounded: int | None
    dip: DipErrors
    executors: ExecutorCheck | None


@dataclass(frozen=True)
class Verification:
    """Result of :func:`verify`.

    Attributes
    ----------
    target : str
        "portable" or "qdq".
    batches : int
    outputs : tuple of OutputErrors
        End to end, per model output.
    sites : tuple of SiteVerification
    executors_note : str
        Why executors were not compared; empty if they were.
    failures : tuple of str
        One line for each reason why the check failed.
    notes : tuple of str
        What the user must know about the target CPU, a line each.
    """

    target: str
    batches: int
    outputs: tuple[OutputErrors, ...]
    sites: tuple[SiteVerification, ...]
    executors_note: str
    failures: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values (format ``qgelu.verification``)."""
        return {"format": FORMAT, "version": VERSION, "passed": self.passed, **asdict(self)}


def _target(model: onnx.ModelProto) -> str:
    text = next(entry.value for entry in model.metadata_props if entry.key == METADATA_KEY)
    targets = {str(entry.get("target", "portable")) for entry in json.loads(text)}
    return "qdq" if targets == {"qdq"} else "portable"


def _check_same_model(reference: onnx.ModelProto, quantized: onnx.ModelProto, sites: tuple[QuantizedSite, ...]) -> None:
    """Raise QGeluError if the quantized model was plainly not made from the float one."""
    remedy = "give the float model that it was made from"
    expected = [value.name for value in reference.graph.input]
    actual = [value.name for value in quantized.graph.input]
    if set(actual) - set(expected) or set(expected) - set(actual):
        raise QGeluError(
            f"the quantized model takes {', '.join(actual)}, the float model {', '.join(expected)}: {remedy}"
        )
    nodes = every_node(prepared(reference).graph.node)
    known = {name for node in nodes for name in node.output} | set(expected)
    for site in sites:
        for tensor in (site.input, site.output):
            if tensor not in known:
                raise QGeluError(f"tensor {tensor!r} of site {site.name!r} is not in the float model: {remedy}")


def _check_site(
    model: onnx.ModelProto, site: QuantizedSite, *, executors: bool, threads: int | None
) -> tuple[SiteVerification, list[str]]:
    certificate = site.plan.certificate
    dip = check_dip(site.plan)
    check = check_executors(model, site.name, site.plan, threads=threads) if executors else None
    failures = []
    if dip.max_error_lsb > certificate.max_error_lsb + _CERTIFICATE_SLACK:
        failures.append(
            f"near the dip the error is {dip.max_error_lsb:.4g} LSB at input {dip.value}, beyond the "
            f"certificate's {certificate.max_error_lsb:.4g}"
        )
    if site.plan.kind == "table" and certificate.misrounded:
        failures.append(
            f"{certificate.misrounded} entries of its table in the metadata are not correctly rounded "
            f"(largest error {certificate.max_error_lsb:.4g} LSB)"
        )
    if check is not None and check.failure:
        count = f"{check.differences} of {check.inputs} codes differ: " if check.differences else ""
        failures.append(f"executors: {count}{check.failure}")
    found = SiteVerification(
        site.name,
        site.activation,
        site.alpha,
        site.scope,
        site.bits,
        site.note,
        site.plan.kind,
        certificate.max_error_lsb,
        certificate.proof,
        certificate.misrounded,
        dip,
        check,
    )
    return found, [f"site {site.name!r}: {failure}" for failure in failures]


def _end_to_end(
    reference: onnx.ModelProto,
    quantized: onnx.ModelProto,
    source: "BatchSource",
    mask: str | None,
    report: Progress,
    threads: int | None,
) -> Evaluation:
    with ModelRunner(reference, "the float model", threads=threads) as float_runner:
        try:
            quantized_runner = ModelRunner(quantized, "the quantized model", threads=threads)
        except QGeluError as error:
            return Evaluation((), (str(error),), 0)
        with quantized_runner:
            return evaluate_model(
                reference_batches(float_runner, source),
                quantized_runner,
                mask=mask,
                progress=lambda done: report("compare outputs", done, source.count),
            )


def verify(
    float_model: ModelSource,
    quantized_model: ModelSource | QuantizedModel,
    data: Any,
    *,
    mask: str | None = None,
    target_cpu: str = "host",
    progress: Progress | None = None,
    threads: int | None = None,
) -> Verification:
    """Check a quantized model against the float model that it was made from.

    End to end: both models run on the data, one batch at a time, and every output is compared. Near the dip: each
    plan's codes for x in [-1.5, -0.25] against the real answer, and the plan's certificate, proved anew. Executor
    against executor: each custom op, taken out of the quantized file with its own initializers and function, is
    run on ONNX Runtime, and by the native library where that is built, and compared bit for bit with the Numba kernel
    of the plan in the metadata.

    What is around the custom ops (int8 weights, scales of the codes, the final dequantization) is not compared piece
    by piece: what is wrong there shows in the end-to-end errors, which have no limit of their own.

    Parameters
    ----------
    float_model : path or ModelProto
    quantized_model : path, ModelProto or QuantizedModel
        From :func:`qgelu.quantize`.
    data : optional
        What :func:`calibration.open_data` takes.
    mask : str, optional
        Model input that is 0 where a position of outputs [samples, positions, ...] is padding.
    target_cpu : str
        What the model will run on, for :attr:`Verification.notes`: as for :func:`qgelu.quantize`.
    progress : callable, optional
        See :data:`qgelu.pipeline.Progress`.
    threads : int, optional
        ONNX Runtime's threads.

    Raises
    ------
    QGeluError, CalibrationError
        If a model or the data cannot be used, or the two models do not belong together. A check that fails
        raises nothing: see :attr:`Verification.failures`.
    """
    import calibration

    check_target_cpu(target_cpu)
    report = progress or (lambda stage, done, total: None)
    reference = as_model(float_model)
    quantized = quantized_model.model if isinstance(quantized_model, QuantizedModel) else as_model(quantized_model)
    check_not_quantized(reference, model_name(float_model))
    sites = quantized_sites(quantized, model_name(quantized_model))
    _check_same_model(reference, quantized, sites)
    target = _target(quantized)
    specs = calibration.input_specs(reference)
    check_mask(mask, [spec.name for spec in specs])
    source = calibration.open_data(data, specs)
    end_to_end = _end_to_end(reference, quantized, source, mask, report, threads)
    checked = []
    failures = list(end_to_end.failures)
    for index, site in enumerate(sites):
        report("check sites", index, len(sites))
        found, reasons = _check_site(quantized, site, executors=target != "qdq", threads=threads)
        checked.append(found)
        failures += reasons
    report("check sites", len(sites), len(sites))
    if target != "qdq" and len(custom_nodes(quantized)) != len(sites):
        failures.append(
            f"the file has {len(custom_nodes(quantized))} custom ops for the {len(sites)} sites in its metadata"
        )
    note = ""
    if target == "qdq":
        note = "target qdq has no custom ops: the runtime computes the activation; near the dip, figures are the plan's"
    notes = pair_saturation_notes(quantized, ffn_bits(sites), target_cpu)
    return Verification(target, end_to_end.batches, end_to_end.outputs, tuple(checked), note, tuple(failures), notes)
