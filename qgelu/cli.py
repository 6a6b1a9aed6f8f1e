"""The command line: ``qgelu demo | inspect | calibrate | quantize | verify | report``.

Tables and progress go to stderr; ``--json`` prints one JSON object on stdout. Exit codes: 0 done; 1 a check failed
(``verify``); 2 bad usage or input, with one line ``error: ...``; 130 interrupted. ``QGELU_DEBUG=1`` in the environment
shows tracebacks and the warnings of libraries.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from qgelu import __version__
from qgelu.errors import QGeluError

if TYPE_CHECKING:
    from calibration import Calibration
    from qgelu.graph.findings import Site
    from qgelu.pipeline import QuantizedSite

CHECK_FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
"""128 + SIGPIPE, as the shell reports a process that a closed pipe ended."""

_LONGEST_DETAIL: Final = 300
_DEBUG_VARIABLE: Final = "QGELU_DEBUG"
_Command = TypeVar("_Command", bound=Callable[..., Any])

# Choices are repeated here: importing where they are defined would take longer than `qgelu --help` may.
_SCOPES: Final = ("ffn", "activation")
_TARGETS: Final = ("portable", "qdq")
_WEIGHT_BITS: Final = ("8", "7", "4")
_METHODS: Final = ("output", "minmax", "percentile", "mse", "entropy")
_BASELINES: Final = ("ort-static", "ort-dynamic")
_TARGET_CPUS: Final = ("host", "vnni", "no-vnni")
_METRICS: Final[dict[str, Any]] = {"accuracy": "accuracy", "top1": "top1_agreement", "cosine": "cosine_mean"}
_BITS: Final = (2, 16)


def _data_option(required: bool, help: str = "Data to run the model on.") -> Callable[[_Command], _Command]:
    return click.option("--data", metavar="D", required=required, help=help)


_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
_mask_option = click.option("--mask", metavar="INPUT", help="Leave out the positions where this input is 0.")
_threads_option = click.option("--threads", type=click.IntRange(1), metavar="N", help="Threads of ONNX Runtime.")
_target_cpu_option = click.option(
    "--target-cpu",
    type=click.Choice(_TARGET_CPUS),
    default="host",
    show_default=True,
    help="Where the model will run: say so if int8 matmuls can saturate there.",
)
_sites_option = click.option(
    "--sites", multiple=True, metavar="NAMES", help="Only these sites: names or globs; with commas, or repeated."
)


def _read_baselines(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Read names with commas between them."""
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    for name in names:
        if name not in _BASELINES:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(_BASELINES)}", ctx, param)
    return names


def _read_bits(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Read bit widths: ``8``, ``4-16`` or ``4,6,8``."""
    widths: set[int] = set()
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise click.BadParameter(f"{value!r} is not a list of bit widths: write 4-16, or 4,6,8", ctx, param)
        low, high = int(first), int(last) if dash else int(first)
        if not _BITS[0] <= low <= high <= _BITS[1]:
            raise click.BadParameter(f"{value!r} is not within {_BITS[0]} to {_BITS[1]}", ctx, param)
        widths.update(range(low, high + 1))
    return tuple(sorted(widths))


@click.group(
    invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="qgelu", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """GELU, QuickGELU and SiLU of ONNX models in integers.

    Data is a .npz with one array per model input (first axis: samples), a .npy for a model with one input, a folder
    of such batches, or package.module:function that yields feeds.

    Exit codes: 0 done, 1 a check failed, 2 bad usage or input. QGELU_DEBUG=1 in the environment shows tracebacks.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _print_json(content: dict[str, Any]) -> None:
    click.echo(json.dumps(content, indent=2, allow_nan=False))


def _site_to_dict(site: "QuantizedSite") -> dict[str, Any]:
    keys = ("name", "activation", "alpha", "input", "output", "scope", "bits", "weight_bits", "note")
    return {
        **{key: getattr(site, key) for key in keys},
        "plan": site.plan.kind,
        "max_error_lsb": site.plan.certificate.max_error_lsb,
    }


def _load_calibration(path: str | None) -> "Calibration | None":
    if path is None:
        return None
    from calibration import Calibration

    return Calibration.load(path)


def _split(names: Sequence[str]) -> list[str] | None:
    return [part.strip() for value in names for part in value.split(",") if part.strip()] or None


def _check_output(output: str, *inputs: str | None) -> None:
    """Refuse an output that cannot be written, or that would replace an input, before any work is done.

    An input may be a folder of batches.
    """
    from qgelu.atomic_file import check_writable

    check_writable(output)
    if not os.path.exists(output):
        return
    places = [output]
    if output.lower().endswith((".npz", ".npy")):
        places.append(os.path.dirname(os.path.realpath(output)))
    for name in inputs:
        if name is not None and os.path.exists(name) and any(os.path.samefile(place, name) for place in places):
            raise QGeluError(f"{output} is an input of this command: name another file to write")


@cli.command()
@click.option(
    "-o", "--output", metavar="DIR", default="qgelu-demo", show_default=True, help="Folder for what it makes."
)
@_threads_option
@_json_option
def demo(output: str, threads: int | None, as_json: bool) -> None:
    """The whole job on a small trained model with labelled images, both in the package.

    Inspects, calibrates, quantizes with both scopes, verifies, and reports accuracy against bits: two minutes at most.
    """
    from qgelu.demo.run import run_demo
    from qgelu.terminal import make_console

    result = run_demo(output, make_console(), threads=threads)
    if as_json:
        _print_json(result)
    if not result["passed"]:
        raise click.exceptions.Exit(CHECK_FAILED)


def _found_to_dict(site: "Site") -> dict[str, Any]:
    keys = ("name", "activation", "alpha", "input", "output", "scope", "reason", "subgraph")
    layers = None if site.ffn is None else (site.ffn.first, site.ffn.second)
    return {
        **{key: getattr(site, key) for key in keys},
        "shape": None if site.shape is None else list(site.shape),
        "weights": None if layers is None else [list(layer.weight.shape) for layer in layers],
    }


@cli.command()
@click.argument("model")
@_json_option
def inspect(model: str, as_json: bool) -> None:
    """Show where MODEL computes a GELU, QuickGELU or SiLU, and which of these are whole FFNs.

    Of a model that is quantized already, show what was done at each site too.
    """
    from qgelu.caveats import caveats
    from qgelu.graph.model_file import load_model
    from qgelu.graph.normal_form import normal_form
    from qgelu.graph.opset import onnx_version
    from qgelu.graph.sites import find_sites
    from qgelu.pipeline import is_quantized, quantized_sites

    proto = load_model(model)
    findings, opset = find_sites(normal_form(proto)), onnx_version(proto)
    done = quantized_sites(proto, model) if is_quantized(proto) else ()
    warnings = caveats(findings, model)
    if as_json:
        _print_json(
            {
                "model": model,
                "opset": opset,
                "sites": [_found_to_dict(site) for site in findings.sites],
                "near_misses": [{"anchor": miss.anchor, "reason": miss.reason} for miss in findings.near_misses],
                "quantized": [_site_to_dict(site) for site in done],
                "warnings": list(warnings),
            }
        )
    else:
        from qgelu.terminal import make_console
        from qgelu.terminal_tables import print_findings, print_quantized_sites

        console = make_console()
        print_findings(console, model, opset, findings, warnings)
        if done:
            print_quantized_sites(console, done)


@cli.command()
@click.argument("files", nargs=-1, required=True, metavar="MODEL | --merge A B ...")
@_data_option(required=False)
@click.option("-o", "--output", metavar="FILE", required=True, help="Calibration to write (.json).")
@click.option("--merge", is_flag=True, help="Join calibrations of one model instead of making one.")
@click.option("--dask", metavar="ADDRESS", help="Run on this Dask scheduler's workers; --data is a folder.")
@_sites_option
@_mask_option
@_threads_option
@_json_option
def calibrate(
    files: tuple[str, ...],
    data: str | None,
    output: str,
    merge: bool,
    dask: str | None,
    sites: tuple[str, ...],
    mask: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run MODEL on data and write the ranges and histograms of its activations.

    With --merge, join calibrations that were made of one model on several sets of data.
    """
    from qgelu.terminal import StageProgress, make_console

    console = make_console()
    if merge:
        given = {"--data": data, "--mask": mask, "--sites": sites or None, "--threads": threads, "--dask": dask}
        for option, value in given.items():
            if value is not None:
                raise click.UsageError(f"{option} does not go with --merge: leave it out")
        if len(files) < 2:
            raise click.UsageError("--merge joins two calibrations or more: name them before -o")
        _check_output(output, *files)
        from calibration import Calibration, CalibrationError

        found = Calibration.load(files[0])
        for name in files[1:]:
            try:
                found = found.merge(Calibration.load(name))
            except CalibrationError as error:
                where = "" if str(error).startswith(name) else f"{files[0]} and {name}: "
                raise CalibrationError(f"{where}{error}") from None
    else:
        if len(files) > 1:
            raise click.UsageError("one MODEL is calibrated at a time: to join calibrations, add --merge")
        if data is None:
            raise click.UsageError("missing option '--data': name the data to run the model on")
        _check_output(output, files[0], data)
        from qgelu.pipeline import calibrate as run_calibration

        with StageProgress(console) as progress:
            found = run_calibration(
                files[0], data, sites=_split(sites), mask=mask, dask=dask, progress=progress, threads=threads
            )
    found.save(output)
    if as_json:
        _print_json(
            {
                "inputs": list(files),
                "output": output,
                "model_digest": found.model_digest,
                "samples": found.samples,
                "mask": found.mask,
                "tensors": [
                    {"name": name, "count": seen.count, "minimum": seen.minimum, "maximum": seen.maximum}
                    for name, seen in found.tensors.items()
                ],
            }
        )
    else:
        from qgelu.number_text import number
        from qgelu.terminal import print_table

        rows = [
            (name, seen.count, number(seen.minimum), number(seen.maximum), number(seen.root_mean_square))
            for name, seen in found.tensors.items()
        ]
        title = f"{output}: {found.samples} samples"
        print_table(console, title, ["tensor", ">values", ">minimum", ">maximum", ">RMS"], rows)


@cli.command()
@click.argument("model")
@_data_option(required=False, help="Calibration data; or give --calibration.")
@click.option("--calibration", metavar="C", help="What 'qgelu calibrate' wrote; or give --data.")
@click.option("-o", "--output", metavar="OUT", required=True, help="Quantized model to write (.onnx).")
@click.option(
    "--scope",
    type=click.Choice(_SCOPES),
    default="ffn",
    show_default=True,
    help="Whole FFNs where the graph allows it, or the activations alone.",
)
@click.option(
    "--bits",
    type=click.IntRange(*_BITS),
    help="Of the activations' codes: 2 to 8, or to 16 with --scope activation; 8 if neither this nor a goal is given.",
)
@click.option(
    "--target-metric",
    metavar="NAME=VALUE",
    help="Goal: the fewest bits for each site that keep cosine, worst-cosine, sqnr, top1 or accuracy at VALUE or more, "
    "or relative-error at VALUE or less.",
)
@click.option(
    "--max-drop",
    type=click.FloatRange(0.0, 1.0),
    help="Goal: lose at most this share of accuracy (with --labels), of top-1 agreement, or of the cosine.",
)
@click.option("--test", metavar="D", help="Samples to measure a goal on; else every fourth of --data, held out.")
@click.option("--labels", metavar="L", help="Right class of each sample of --test, or of --data (.npy).")
@click.option(
    "--target",
    type=click.Choice(_TARGETS),
    default="portable",
    show_default=True,
    help="Integer ops, or QuantizeLinear and DequantizeLinear around float ops.",
)
@click.option(
    "--weight-bits",
    type=click.Choice(_WEIGHT_BITS),
    default="8",
    show_default=True,
    help="Of integer FFNs' weights: 7 cannot saturate on CPUs without VNNI, 4 makes small files.",
)
@click.option(
    "--method",
    type=click.Choice(_METHODS),
    default="output",
    show_default=True,
    help="How ranges are picked; output: for the least error of an activation's or FFN's output.",
)
@_target_cpu_option
@_sites_option
@_mask_option
@_threads_option
@_json_option
def quantize(
    model: str,
    data: str | None,
    calibration: str | None,
    output: str,
    scope: str,
    bits: int | None,
    target_metric: str | None,
    max_drop: float | None,
    test: str | None,
    labels: str | None,
    target: str,
    weight_bits: str,
    method: str,
    target_cpu: str,
    sites: tuple[str, ...],
    mask: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Write MODEL with its activations, or whole FFNs, in integers."""
    if (data is None) == (calibration is None):
        raise click.UsageError("give one of --data and --calibration: ranges come from either")
    if calibration is not None and mask is not None:
        raise click.UsageError("--mask does not go with --calibration: the mask is part of it")
    if bits is not None and (target_metric is not None or max_drop is not None):
        raise click.UsageError("--bits does not go with a goal, for which bits are searched: leave it out")
    _check_output(output, model, data, calibration, test, labels)
    from calibration.model_size import model_bytes
    from qgelu.labels import load_labels
    from qgelu.pipeline import DEFAULT_BITS
    from qgelu.pipeline import quantize as run_quantization
    from qgelu.terminal import StageProgress, make_console

    stored = _load_calibration(calibration)
    console = make_console()
    with StageProgress(console) as progress:
        result = run_quantization(
            model,
            data,
            calibration=stored,
            scope=scope,
            bits=bits,
            weight_bits=int(weight_bits),
            target=target,
            target_cpu=target_cpu,
            method=method,
            target_metric=target_metric,
            max_drop=max_drop,
            test_data=test,
            labels=None if labels is None else load_labels(labels),
            sites=_split(sites),
            mask=mask,
            progress=progress,
            threads=threads,
        )
        result.save(output)
    if as_json:
        _print_json(
            {
                "model": model,
                "output": output,
                "bytes": model_bytes(result.model),
                "scope": scope,
                "bits": (bits or DEFAULT_BITS) if result.trade is None else None,
                "weight_bits": int(weight_bits),
                "target": target,
                "method": method,
                "trade": None if result.trade is None else result.trade.to_dict(),
                "notes": list(result.notes),
                "sites": [_site_to_dict(site) for site in result.sites],
            }
        )
    else:
        from qgelu.number_text import size
        from qgelu.terminal_tables import print_notes, print_quantized_sites, print_trade

        print_quantized_sites(console, result.sites)
        if result.trade is not None:
            print_trade(console, result.trade)
        print_notes(console, result.notes)
        console.print(f"{output}: {size(model_bytes(result.model))}", markup=False)


@cli.command()
@click.argument("float_model", metavar="FLOAT")
@click.argument("quantized_model", metavar="QUANTIZED")
@_data_option(required=True)
@_target_cpu_option
@_mask_option
@_threads_option
@_json_option
def verify(
    float_model: str,
    quantized_model: str,
    data: str,
    target_cpu: str,
    mask: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Check QUANTIZED against the model FLOAT that it was made from; exit with 1 if it fails.

    Compares the outputs on the data, the codes near the dip with the real answer, and the ops in the file, run by
    ONNX Runtime, bit for bit with the kernels.
    """
    from qgelu.terminal import StageProgress, make_console
    from qgelu.verification import verify as run_verification

    console = make_console()
    with StageProgress(console) as progress:
        result = run_verification(
            float_model, quantized_model, data, mask=mask, target_cpu=target_cpu, progress=progress, threads=threads
        )
    if as_json:
        _print_json(result.to_dict())
    else:
        from qgelu.terminal_tables import print_verification

        print_verification(console, result)
    if not result.passed:
        raise click.exceptions.Exit(CHECK_FAILED)


@cli.command()
@click.argument("model")
@_data_option(required=True, help="Calibration data; test data too, unless --test is given.")
@click.option("--test", metavar="D", help="Data to measure the accuracy on.")
@click.option("--calibration", metavar="C", help="What 'qgelu calibrate' wrote: --data is then only measured on.")
@click.option("--labels", metavar="L", help="Right class of each test sample (.npy).")
@click.option(
    "--bits",
    callback=_read_bits,
    default="4-16",
    show_default=True,
    metavar="WIDTHS",
    help="Bit widths: 4-16, or 4,6,8.",
)
@click.option(
    "--baseline",
    callback=_read_baselines,
    default="",
    metavar="NAMES",
    help=f"Compare with ONNX Runtime's own quantization: {','.join(_BASELINES)}.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0.0, 1.0),
    default=0.01,
    show_default=True,
    help="What the recommended bits may lose: share of answers, or of the cosine.",
)
@click.option(
    "--metric",
    type=click.Choice(tuple(_METRICS)),
    help="What the tolerance is about; if not given, accuracy with --labels, else top-1 where outputs are classes.",
)
@click.option(
    "-o", "--output", "outputs", metavar="FILE", multiple=True, help="Report to write: .html, .md or .json; repeatable."
)
@_target_cpu_option
@_mask_option
@_threads_option
@_json_option
def report(
    model: str,
    data: str,
    test: str | None,
    calibration: str | None,
    labels: str | None,
    bits: tuple[int, ...],
    baseline: tuple[str, ...],
    tolerance: float,
    metric: str | None,
    outputs: tuple[str, ...],
    target_cpu: str,
    mask: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure accuracy against bits for MODEL on your data, and recommend a width."""
    from qgelu.labels import load_labels
    from qgelu.reporting import check_report_path
    from qgelu.reporting import report as run_report
    from qgelu.terminal import StageProgress, make_console

    for path in outputs:
        check_report_path(path)
        _check_output(path, model, data, calibration, test, labels)
    stored = _load_calibration(calibration)
    known = None if labels is None else load_labels(labels)
    console = make_console()
    with StageProgress(console) as progress:
        result = run_report(
            model,
            data,
            calibration=stored,
            test_data=test,
            labels=known,
            bits=bits,
            baselines=baseline,
            tolerance=tolerance,
            metric=None if metric is None else _METRICS[metric],
            target_cpu=target_cpu,
            mask=mask,
            progress=progress,
            threads=threads,
        )
        for path in outputs:
            result.save(path)
    if as_json:
        _print_json(result.to_dict())
    else:
        from qgelu.reporting.terminal import print_report

        print_report(console, result)
        for path in outputs:
            console.print(f"wrote {path}", markup=False)


def _usage_line(error: click.ClickException) -> str:
    """Return click's message as one line with a remedy."""
    message = " ".join(error.format_message().split()).rstrip(".")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "qgelu"
    return f"{message}: see '{command} --help'"


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    click.echo(f"error: {line}", err=True)
    return code


def _silence_libraries() -> None:
    """Keep the warnings of libraries off stderr: what matters to a user is raised."""
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.getLogger().addHandler(logging.NullHandler())


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; prints one line for whatever goes wrong."""
    debug = os.environ.get(_DEBUG_VARIABLE) == "1"
    if not debug:
        _silence_libraries()
    try:
        with cli.make_context("qgelu", list(arguments)) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as leaving:
        sys.stdout.flush()
        return leaving.exit_code
    except click.ClickException as error:
        return _fail(_usage_line(error), BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted: nothing was left half-written", INTERRUPTED)
    except BrokenPipeError:
        # The interpreter flushes stdout once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        return _failed(error)
    return 0


def _failed(error: Exception) -> int:
    from calibration.errors import CalibrationError

    if isinstance(error, QGeluError | CalibrationError):
        return _fail(str(error), BAD_INPUT)
    if isinstance(error, MemoryError):
        return _fail("out of memory: use smaller batches of data", BAD_INPUT)
    detail = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST_DETAIL]}"
    return _fail(f"internal: {detail} ({_DEBUG_VARIABLE}=1 shows where)", BAD_INPUT)


def main() -> NoReturn:
    """Entry point of the ``qgelu`` script."""
    sys.exit(run(sys.argv[1:]))
