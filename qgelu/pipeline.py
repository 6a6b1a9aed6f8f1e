"""From a float model and data to a model whose activations, or whole FFNs, run in integers."""

import dataclasses
import fnmatch
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from calibration.model_size import model_bytes
from qgelu.accuracy_goal import AccuracyGoal, read_goal
from qgelu.activations import dip, evaluate
from qgelu.bit_search import BitTrade, search_bits
from qgelu.caveats import caveats
from qgelu.errors import QGeluError
from qgelu.evaluation import check_mask, reference_batches
from qgelu.ffn import FloatFfn, IntegerFfn, assemble_ffn
from qgelu.ffn_search import enough_samples, search_block
from qgelu.graph.editor import GraphEditor
from qgelu.graph.findings import Ffn, Findings, Site
from qgelu.graph.functions import DOMAIN
from qgelu.graph.model_file import load_model, save_model
from qgelu.graph.names import every_node
from qgelu.graph.normal_form import normal_form, with_supported_opset
from qgelu.graph.rewrite_activation import rewrite_activation
from qgelu.graph.rewrite_ffn import rewrite_ffn
from qgelu.graph.rewrite_qdq import rewrite_qdq_activation, rewrite_qdq_ffn
from qgelu.graph.sites import find_sites
from qgelu.labels import check_labels
from qgelu.pair_saturation import check_target_cpu, pair_saturation_notes
from qgelu.plan import Plan
from qgelu.reference_store import ReferenceStore
from qgelu.sessions import ModelRunner
from qgelu.table_plan import TablePlan, make_table_plan

if TYPE_CHECKING:
    from distributed import Client

    from calibration import BatchSource, Calibration, TensorStatistics
    from calibration.activation_range import ActivationMethod

Scope = Literal["ffn", "activation"]
Target = Literal["portable", "qdq"]
SCOPES: Final[tuple[str, ...]] = get_args(Scope)
TARGETS: Final[tuple[str, ...]] = get_args(Target)
METHODS: Final = ("output", "minmax", "percentile", "mse", "entropy")
"""How ranges are picked; the first is the default."""

METADATA_KEY: Final = "qgelu.sites"
"""Metadata entry of a quantized model: a JSON list of its sites with their plans."""

DEFAULT_BITS: Final = 8
FFN_MAX_BITS: Final = 8
WEIGHT_BITS: Final = (8, 7, 4)
"""Of an integer FFN's weights; the first is the default."""

_Found = TypeVar("_Found")

Progress = Callable[[str, int, int | None], None]
"""Called with a stage's name, what is done and, where known, what there is."""


@dataclass(frozen=True)
class QuantizedSite:
    """One site of a quantized model.

    Attributes
    ----------
    name, activation, alpha : as found in the float model
    input, output : str
        Float tensors of the float model: the activation's input and output.
    scope : str
        "ffn" or "activation": what was done.
    bits : int
        Of the activation's codes.
    note : str
        Why the scope is less than asked for; empty if it is not.
    plan : Plan
    weight_bits : int or None
        Of the integer weights of scope "ffn".
    """

    name: str
    activation: str
    alpha: float
    input: str
    output: str
    scope: Scope
    bits: int
    note: str
    plan: Plan
    weight_bits: int | None = None


@dataclass(frozen=True)
class QuantizedModel:
    """A quantized model and what was done to it.

    Attributes
    ----------
    model : ModelProto
    sites : tuple of QuantizedSite
    target : str
        "portable" or "qdq".
    trade : BitTrade or None
        How the bits of each site were found; None if they were given.
    notes : tuple of str
        What the user must know about the model, its calibration and the target CPU, a line each.
    """

    model: onnx.ModelProto
    sites: tuple[QuantizedSite, ...]
    target: Target
    trade: BitTrade | None = None
    notes: tuple[str, ...] = ()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model; the file appears whole or not at all."""
        save_model(self.model, path)


def _no_progress(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""


def as_model(model: str | PathLike[str] | onnx.ModelProto) -> onnx.ModelProto:
    """Return a model, read from its file if a path is given."""
    return model if isinstance(model, onnx.ModelProto) else load_model(model)


def select_sites(findings: Findings, names: Sequence[str] | None) -> tuple[Site, ...]:
    """Return the sites whose names match one of the names or globs; all if none are given.

    Raises
    ------
    QGeluError
        If there is no site at all, or a name matches none.
    """
    if not findings.sites:
        near = f" ({len(findings.near_misses)} near misses: see 'qgelu inspect')" if findings.near_misses else ""
        raise QGeluError(f"no GELU, QuickGELU or SiLU in the model{near}: nothing to quantize")
    if not names:
        return findings.sites
    chosen: set[str] = set()
    for name in names:
        matching = {site.name for site in findings.sites if site.name == name or fnmatch.fnmatchcase(site.name, name)}
        if not matching:
            raise QGeluError(f"no site is named {name!r}: 'qgelu inspect' lists the names")
        chosen |= matching
    return tuple(site for site in findings.sites if site.name in chosen)


def ffn_bits(sites: Iterable[QuantizedSite]) -> dict[str, int]:
    """Return the bits of each whole FFN, by name."""
    return {site.name: site.bits for site in sites if site.scope == "ffn"}


def model_name(source: object) -> str:
    """Return what to call a model in messages: its path, or "the model"."""
    return str(source) if isinstance(source, str | PathLike) else "the model"


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a float model in the form in which its sites are found and rewritten: the tensors of sites are its."""
    return with_supported_opset(normal_form(model))


def is_quantized(model: onnx.ModelProto) -> bool:
    """Return whether a model names sites in its metadata, as :func:`quantize` writes them."""
    return any(entry.key == METADATA_KEY for entry in model.metadata_props)


def check_not_quantized(model: onnx.ModelProto, name: str = "the model") -> None:
    """Raise QGeluError if a model has been through :func:`quantize` already."""
    if is_quantized(model) or any(node.domain == DOMAIN for node in every_node(model.graph.node)):
        raise QGeluError(f"{name} is quantized by qgelu already: give the float model")


def calibrate(
    model: str | PathLike[str] | onnx.ModelProto,
    data: Any,
    *,
    sites: Sequence[str] | None = None,
    mask: str | None = None,
    dask: "str | Client | None" = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> "Calibration":
    """Run a float model on data and return the ranges and histograms of every site.

    Parameters
    ----------
    model : path or ModelProto
    data : str, dict, iterable or callable
        What :func:`calibration.open_data` takes.
    sites : sequence of str, optional
        Names or globs of the sites to observe; all if not given.
    mask : str, optional
        Model input that is 0 where a position is padding.
    dask : str or distributed.Client, optional
        Scheduler's address, or client: the data, a folder of batches or a sequence of parts, is run on its workers.
    progress : callable, optional
        See :data:`Progress`.
    threads : int, optional
        ONNX Runtime's threads.
    """
    import calibration

    original = as_model(model)
    check_not_quantized(original, model_name(model))
    proto = prepared(original)
    chosen = select_sites(find_sites(proto), sites)
    report = progress or _no_progress
    requests = []
    for site in chosen:
        requests.append(calibration.TensorRequest(site.input, per_channel=site.bias is not None))
        if site.ffn is not None:
            requests.append(calibration.TensorRequest(site.ffn.first.input, per_channel=True, sample_rows=True))
            requests.append(calibration.TensorRequest(site.output, per_channel=True))

    def step(done: int, total: int | None) -> None:
        report("calibrate", done, total)

    if dask is None:
        source = calibration.open_data(data, calibration.input_specs(original))
        captured = calibration.capture(proto, requests, source, mask=mask, progress=step, threads=threads)
    else:
        from calibration.dask_adapter import calibrate_with_dask, connected

        with connected(dask) as client:
            captured = calibrate_with_dask(proto, requests, data, client, mask=mask, progress=step, threads=threads)
    return dataclasses.replace(captured, model_digest=calibration.model_digest(original))


@dataclass(frozen=True)
class _Choice:
    """Everything that decides how one site is quantized; and what was found for others, by kind, name and bits."""

    statistics: "Calibration"
    bits: int
    method: "ActivationMethod"
    target: Target
    weight_bits: int
    found: dict[tuple[str, str, int], Any] = field(default_factory=dict)

    def once(self, kind: str, site: Site, make: Callable[[Site, "_Choice"], _Found]) -> _Found:
        """Return what make gives for a site at these bits, or the error that it raised before."""
        key = (kind, site.name, self.bits)
        if key not in self.found:
            try:
                self.found[key] = make(site, self)
            except QGeluError as error:
                self.found[key] = error
        result = self.found[key]
        if isinstance(result, QGeluError):
            raise result
        return result  # type: ignore[no-any-return]


def _tensor_statistics(calibration: "Calibration", name: str) -> "TensorStatistics":
    if name not in calibration.tensors:
        raise QGeluError(f"the calibration has no tensor {name!r}: calibrate this model again")
    return calibration.tensors[name]


def _activation_range(site: Site, choice: _Choice) -> tuple[float, float]:
    """Return the range of f's argument that a site's codes are spent on."""
    import calibration

    statistics = _tensor_statistics(choice.statistics, site.input)
    if site.bias is None:
        return calibration.pick_activation_input_range(
            statistics, site.activation, site.alpha, choice.bits, choice.method, signed=False
        )
    # The sum with the node's own bias is no tensor of the graph: its range follows from the channels'.
    assert statistics.channel_minimum is not None
    assert statistics.channel_maximum is not None
    bias = site.bias.astype(np.float64)
    least = calibration.negligible_below(site.activation, site.alpha, choice.bits)
    low = float((statistics.channel_minimum + bias).min())
    return max(min(low, 0.0), least), max(float((statistics.channel_maximum + bias).max()), 0.0)


def _activation_plan(site: Site, choice: _Choice) -> TablePlan:
    """Return the table of a site: input range picked for the activation's output, output range its image.

    Where the model holds codes of as many bits already, their scales stay.
    """
    import calibration

    before, after = site.codes_with(choice.bits)
    if before is not None:
        source = before.params
    else:
        low, high = _activation_range(site, choice)
        source = calibration.qparams_from_range(low, high, choice.bits, signed=False)
    if after is not None:
        return make_table_plan(source, after.params, site.activation, site.alpha)
    ends = source.dequantize(np.array([source.qmin, source.qmax]))
    values = list(evaluate(ends, site.activation, site.alpha))
    bottom = dip(site.activation, site.alpha)
    if ends[0] < bottom.x < ends[1]:
        values.append(bottom.y)
    output = calibration.qparams_from_range(float(min(values)), float(max(values)), choice.bits, signed=False)
    return make_table_plan(source, output, site.activation, site.alpha)


_USELESS_ERROR: Final = 0.9
"""Relative error of an FFN's output from which on integers keep nothing of it; a constant output has about 1."""


def _integer_block(site: Site, choice: _Choice) -> IntegerFfn:
    ffn = site.ffn
    assert ffn is not None
    block = FloatFfn(ffn.first.weight, ffn.first.bias, ffn.second.weight, ffn.second.bias, site.activation, site.alpha)
    found = search_block(
        block,
        _tensor_statistics(choice.statistics, ffn.first.input),
        _tensor_statistics(choice.statistics, site.output),
        choice.bits,
        choice.weight_bits,
        choice.method,
    )
    if found.relative_error > _USELESS_ERROR:
        raise QGeluError(
            f"on the calibration data its integers err by {found.relative_error:.3g} times its output "
            "(values too small, or too few bits): leave this site out"
        )
    return assemble_ffn(block, found.input, found.output, found.first, found.second, found.weight_limit)


def _check_finite(ffn: Ffn) -> None:
    for linear in (ffn.first, ffn.second):
        if not np.isfinite(linear.weight).all():
            raise QGeluError(f"weight {linear.weight_name!r} holds NaN or infinity: check the model")
        if linear.bias is not None and not np.isfinite(linear.bias).all():
            raise QGeluError(f"the bias after weight {linear.weight_name!r} holds NaN or infinity: check the model")


def _without_taken_layer(site: Site, second_layers: set[str]) -> Site:
    """Return a site as an activation only if its first layer is the second one of an FFN rewritten before it."""
    if site.ffn is None or second_layers.isdisjoint(site.ffn.first.node_outputs):
        return site
    return dataclasses.replace(
        site, scope="activation", ffn=None, reason="the layer before it is the second of another FFN"
    )


def _rewrite(
    editor: GraphEditor, site: Site, scope: Scope, choice: _Choice, element_type: int
) -> tuple[Plan, Scope, str]:
    """Rewrite one site; return its plan, the scope it got, and why that is less than asked for."""
    note = "" if site.scope == "ffn" or scope == "activation" else site.reason
    if scope == "ffn" and site.ffn is not None:
        _check_finite(site.ffn)
        try:
            block = choice.once("ffn", site, _integer_block)
        except QGeluError as error:
            note = str(error)
        else:
            rewrite = rewrite_qdq_ffn if choice.target == "qdq" else rewrite_ffn
            rewrite(editor, site, site.ffn, block, element_type)
            return block.plan, "ffn", ""
    plan = choice.once("activation", site, _activation_plan)
    if choice.target == "qdq":
        rewrite_qdq_activation(editor, site, plan, element_type)
    else:
        rewrite_activation(editor, site, plan, element_type)
    return plan, "activation", note


def _check_options(scope: str, bits: int, weight_bits: int, target: str, method: str) -> None:
    if scope not in SCOPES:
        raise QGeluError(f"scope {scope!r} is not known: use one of {', '.join(SCOPES)}")
    if target not in TARGETS:
        raise QGeluError(f"target {target!r} is not known: use one of {', '.join(TARGETS)}")
    if method not in METHODS:
        raise QGeluError(f"method {method!r} is not known: use one of {', '.join(METHODS)}")
    if weight_bits not in WEIGHT_BITS:
        raise QGeluError(f"weight bits must be 8, 7 or 4, not {weight_bits}")
    if weight_bits != WEIGHT_BITS[0] and scope != "ffn":
        raise QGeluError(f"{weight_bits}-bit weights are those of whole FFNs: use scope 'ffn'")
    if weight_bits != WEIGHT_BITS[0] and target == "qdq":
        raise QGeluError(f"target 'qdq' writes 8-bit weights, not {weight_bits}: leave weight bits at 8")
    if not 2 <= bits <= 16:
        raise QGeluError(f"bits must be from 2 to 16, not {bits}")
    if scope == "ffn" and bits > FFN_MAX_BITS:
        raise QGeluError(
            f"integer FFNs have 2 to {FFN_MAX_BITS} bits, not {bits} (MatMulInteger takes 8-bit codes): use scope "
            "'activation', or fewer bits"
        )
    if target == "qdq" and bits != 8:
        raise QGeluError(f"target 'qdq' writes 8-bit codes, not {bits}: leave bits at 8")


@dataclass(frozen=True)
class _Job:
    """A float model, ready to be quantized at any bits for each site."""

    model: onnx.ModelProto
    sites: tuple[Site, ...]
    scope: Scope
    choice: _Choice

    def build(self, bits: Mapping[str, int], report: Progress = _no_progress) -> QuantizedModel:
        """Return the model with the named sites in integers, the others in float; it is not checked."""
        editor = GraphEditor(self.model)
        done = []
        second_layers: set[str] = set()
        for index, found in enumerate(self.sites):
            report("quantize", index, len(self.sites))
            site = _without_taken_layer(found, second_layers)
            got: Scope = "ffn" if self.scope == "ffn" and site.ffn is not None else "activation"
            if site.name in bits:
                choice = dataclasses.replace(self.choice, bits=bits[site.name])
                element_type = site.element_type or TensorProto.FLOAT
                plan, got, note = _rewrite(editor, site, self.scope, choice, element_type)
                named = (site.name, site.activation, site.alpha, site.input, site.output)
                whole = got == "ffn" and choice.target == "portable"
                weight_bits = choice.weight_bits if whole else None
                done.append(QuantizedSite(*named, got, choice.bits, note, plan, weight_bits))
            if got == "ffn" and site.ffn is not None:
                second_layers.update(site.ffn.second.node_outputs)
        report("quantize", len(self.sites), len(self.sites))
        result = editor.finish()
        _write_metadata(result, done, self.choice.target)
        return QuantizedModel(result, tuple(done), self.choice.target)


@dataclass(frozen=True)
class _Test:
    """What a goal is measured on: samples, and the right classes of all that were given."""

    samples: "BatchSource"
    held_out: bool
    labels: NDArray[np.int64] | None


def _test_of(model: onnx.ModelProto, data: Any, test_data: Any, labels: Any) -> tuple[Any, _Test]:
    """Return the data to calibrate on, and what to measure a goal on: data of its own, or a share of the other."""
    import calibration

    specs = calibration.input_specs(model)
    classes = None if labels is None else check_labels(labels)
    if test_data is not None:
        return data, _Test(calibration.open_data(test_data, specs), False, classes)
    if data is None:
        raise QGeluError("a calibration holds no samples to measure a goal on: give test data too")
    kept, held_out = calibration.hold_out(calibration.open_data(data, specs), specs)
    return kept, _Test(held_out, True, classes)


def _searched(
    job: _Job, goal: AccuracyGoal, test: _Test, mask: str | None, report: Progress, threads: int | None
) -> QuantizedModel:
    """Return the model with the fewest bits that keep the goal."""
    import calibration

    with ReferenceStore() as store:
        with ModelRunner(job.model, "the float model", threads=threads) as runner:
            for number, (feed, outputs) in enumerate(reference_batches(runner, test.samples), start=1):
                store.add(feed, outputs)
                report("run float model", number, test.samples.count)
        if store.samples == 0:
            raise QGeluError("the data has too few samples to hold some out: give more, or test data of its own")
        labels = test.labels
        if labels is not None and test.held_out:
            specs = calibration.input_specs(job.model)
            count = job.choice.statistics.samples + store.samples
            if labels.size != count:
                raise QGeluError(f"labels: {labels.size} labels for {count} samples: give one for each")
            labels = labels[calibration.held_out_samples(count, specs)]
        bits, trade = search_bits(
            lambda bits: job.build(bits).model,
            [site.name for site in job.sites],
            goal,
            store,
            widths=(FFN_MAX_BITS,) if job.scope == "ffn" else (FFN_MAX_BITS, 16),
            mask=mask,
            labels=labels,
            threads=threads,
            progress=report,
        )
    return dataclasses.replace(job.build(bits, report), trade=trade)


def quantize(
    model: str | PathLike[str] | onnx.ModelProto,
    data: Any = None,
    *,
    calibration: "Calibration | None" = None,
    scope: str = "ffn",
    bits: int | None = None,
    weight_bits: int = 8,
    target: str = "portable",
    target_cpu: str = "host",
    method: str = "output",
    target_metric: str | None = None,
    max_drop: float | None = None,
    test_data: Any = None,
    labels: Any = None,
    sites: Sequence[str] | None = None,
    mask: str | None = None,
    progress: Progress | None = None,
    threads: int | None = None,
) -> QuantizedModel:
    """Return a model whose activations, or whole FFNs, run in integers.

    Parameters
    ----------
    model : path or ModelProto
        Float model; not changed.
    data : optional
        What :func:`calibration.open_data` takes. Give this or ``calibration``.
    calibration : Calibration, optional
        From :func:`calibrate` on the same model.
    scope : str
        "ffn": matmul, activation and matmul in integers where the graph allows it, the activation alone
        elsewhere. "activation": the activation alone everywhere.
    bits : int
        Of the activations' codes: 2 to 8, or to 16 with scope "activation". 8 if not given, unless a goal is.
    weight_bits : int
        Of the weights of integer FFNs: 8, 7 (sums of two products stay within int16) or 4 (stored as INT4 in files
        of opset 21 and newer).
    target : str
        "portable": integer ops. "qdq": QuantizeLinear and DequantizeLinear around float ops, for compilers.
    target_cpu : str
        What the model will run on: "host" (this CPU), "vnni" or "no-vnni". Where ONNX Runtime's int8 matmuls can
        saturate there, :attr:`QuantizedModel.notes` says so.
    method : str
        How ranges are picked: "output" (least squared error of the activation's output, or of the whole FFN's),
        "minmax", "percentile", "mse" or "entropy".
    target_metric : str, optional
        A goal, "NAME=VALUE": find the fewest bits for each site with which the model's outputs keep it. "cosine",
        "worst-cosine", "sqnr" (dB), "top1" (same largest class as the float model), "accuracy" (with labels): at
        least the value; "relative-error": at most. Of several outputs the worst counts.
    max_drop : float, optional
        A goal in terms of what is lost: accuracy with labels, else top-1 agreement where an output is classes, else
        cosine; as the loss in a report.
    test_data : optional
        Samples to measure a goal on. If not given, every fourth sample of ``data`` (every fourth batch, where the
        model fixes its size) is kept from calibration and measured on.
    labels : int array of shape [samples], optional
        Right class of each sample of ``test_data``, or of ``data`` without it.
    sites : sequence of str, optional
        Names or globs; all sites if not given.
    mask : str, optional
        Model input that is 0 where a position is padding.
    progress : callable, optional
        See :data:`Progress`.
    threads : int, optional
        ONNX Runtime's threads while calibrating.

    Raises
    ------
    QGeluError, CalibrationError
        If model, data or options cannot be used, or a goal is missed at the most bits.
    """
    from calibration import input_specs, model_digest

    goal = read_goal(target_metric, max_drop)
    if goal is None and (test_data is not None or labels is not None):
        raise QGeluError("test data and labels go with a target metric or a largest drop: give one of these too")
    if goal is not None and bits is not None:
        raise QGeluError("bits are searched for a target metric or a largest drop: leave bits out")
    if goal is not None and target == "qdq":
        raise QGeluError("target 'qdq' writes 8-bit codes: a target metric or a largest drop needs target 'portable'")
    if goal is not None and goal.metric == "accuracy" and labels is None:
        raise QGeluError("target metric 'accuracy' needs labels: give the right class of each sample")
    check_target_cpu(target_cpu)
    uniform = DEFAULT_BITS if bits is None else bits
    _check_options(scope, uniform, weight_bits, target, method)
    original = as_model(model)
    check_not_quantized(original, model_name(model))
    proto = prepared(original)
    findings = find_sites(proto)
    chosen = select_sites(findings, sites)
    if (data is None) == (calibration is None):
        raise QGeluError("give either data or a calibration")
    check_mask(mask, [spec.name for spec in input_specs(original)])
    test = None
    if goal is not None:
        data, test = _test_of(original, data, test_data, labels)
    if calibration is None:
        calibration = calibrate(original, data, sites=sites, mask=mask, progress=progress, threads=threads)
    elif calibration.model_digest != model_digest(original):
        raise QGeluError("the calibration was made for another model: calibrate this one")
    report = progress or _no_progress
    choice = _Choice(calibration, uniform, method, target, weight_bits)  # type: ignore[arg-type]
    job = _Job(proto, chosen, scope, choice)  # type: ignore[arg-type]
    if goal is not None and test is not None:
        result = _searched(job, goal, test, mask if mask is not None else calibration.mask, report, threads)
    else:
        result = job.build(dict.fromkeys((site.name for site in chosen), uniform), report)
    _check_result(result.model, proto)
    notes = pair_saturation_notes(result.model, ffn_bits(result.sites), target_cpu)
    warnings = caveats(findings, None if isinstance(model, onnx.ModelProto) else model)
    return dataclasses.replace(result, notes=(*warnings, *_few_samples_notes(job, result.sites), *notes))


def _few_samples_notes(job: _Job, done: Iterable[QuantizedSite]) -> tuple[str, ...]:
    """Return one line if FFNs were calibrated with few samples."""
    whole = ffn_bits(done)
    seen = [
        (statistics.count // statistics.channels, statistics.channels)
        for site in job.sites
        if site.name in whole and site.ffn is not None
        if (statistics := _tensor_statistics(job.choice.statistics, site.ffn.first.input)).channels
    ]
    few = [(count, channels) for count, channels in seen if count < enough_samples(channels)]
    if not few:
        return ()
    count, channels = min(few)
    return (
        f"calibrated with only {count} rows (tokens) for an FFN of {channels} channels: on other data it may be less "
        f"accurate; give data with at least {enough_samples(channels)}",
    )


_CHECKED_BYTES: Final = 3 << 29
"""Bytes of a model from which the checker is left out: it takes copies, and nothing beyond 2 GB."""


def _check_result(result: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Run onnx.checker with full shape inference on the result; a failure is a bug of ours.

    A model that the checker refused before is let through: runtimes are more lenient. So are models beyond
    protobuf's 2 GB, which the checker cannot take.
    """
    if model_bytes(result) >= _CHECKED_BYTES:
        return
    try:
        onnx.checker.check_model(result, full_check=True)
    except Exception as error:  # checker and shape inference raise different types
        try:
            onnx.checker.check_model(original, full_check=True)
        except Exception:  # see above
            return
        reason = str(error).strip().splitlines()[0]
        raise QGeluError(
            f"the quantized model does not pass onnx.checker ({reason}): please report this model"
        ) from None


def _write_metadata(model: onnx.ModelProto, sites: Iterable[QuantizedSite], target: str) -> None:
    from qgelu.plan_json import plan_to_dict

    entries = [
        {
            **{key: value for key, value in vars(site).items() if key != "plan"},
            "target": target,
            "plan": plan_to_dict(site.plan, packed=True),
        }
        for site in sites
    ]
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA_KEY, json.dumps(entries, separators=(",", ":"))


_SITE_FIELDS: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("name", "activation", "input", "output", "scope", "note"), (str,)),
    "alpha": (int, float),
    "bits": (int,),
}


def _checked(value: Any, key: str, kinds: tuple[type, ...]) -> Any:
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise TypeError(f"{key!r} is a {type(value).__name__}")
    return value


def quantized_sites(model: onnx.ModelProto, name: str = "the model") -> tuple[QuantizedSite, ...]:
    """Return the sites that a quantized model's metadata names, their plans proved anew.

    Parameters
    ----------
    model : ModelProto
    name : str
        What to call it in messages.

    Raises
    ------
    QGeluError
        If the model was not quantized by this package, or the metadata is damaged.
    """
    from qgelu.plan_json import plan_from_json

    text = next((entry.value for entry in model.metadata_props if entry.key == METADATA_KEY), None)
    if text is None:
        raise QGeluError(
            f"{name} was not quantized by qgelu (it has no metadata {METADATA_KEY!r}): give what 'qgelu quantize' wrote"
        )
    try:
        return tuple(
            QuantizedSite(
                **{key: _checked(entry[key], key, kinds) for key, kinds in _SITE_FIELDS.items()},
                weight_bits=_checked(entry.get("weight_bits"), "weight_bits", (int, type(None))),
                plan=plan_from_json(json.dumps(entry["plan"])),
            )
            for entry in json.loads(text)
        )
    except QGeluError as error:
        raise QGeluError(f"{name}: metadata {METADATA_KEY!r}: {error}") from None
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise QGeluError(f"{name}: metadata {METADATA_KEY!r} is damaged: {type(error).__name__}: {error}") from None
