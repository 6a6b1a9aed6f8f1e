"""The results of the commands as tables for people."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from qgelu.number_text import decimal, number, percent
from qgelu.terminal import print_table

if TYPE_CHECKING:
    from rich.console import Console

    from qgelu.bit_search import BitTrade
    from qgelu.graph.findings import Findings, Site
    from qgelu.graph.shapes import Dimensions
    from qgelu.pipeline import QuantizedSite
    from qgelu.verification import Verification


def activation_name(activation: str, alpha: float) -> str:
    """Return an activation's name, with alpha where it has one."""
    return f"{activation} (alpha {alpha:.4g})" if activation == "quick_gelu" else activation


def _shape(shape: "Dimensions | None") -> str:
    """Return a shape as text: ``?`` for what is not known."""
    if shape is None:
        return "?"
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _layers(site: "Site") -> str:
    if site.ffn is None:
        return "-"
    rows, hidden = site.ffn.first.weight.shape
    return f"{rows} > {hidden} > {site.ffn.second.weight.shape[1]}"


def print_findings(
    console: "Console", path: str, opset: int, findings: "Findings", warnings: Iterable[str] = ()
) -> None:
    """Show the sites of a model in its order, what came near to one, and warnings."""
    count = len(findings.sites)
    blocks = sum(site.scope == "ffn" for site in findings.sites)
    title = f"{path}: {count} {'site' if count == 1 else 'sites'}, {blocks} of them FFNs (opset {opset})"
    if count:
        inside = any(site.subgraph for site in findings.sites)
        rows = [
            (
                site.name,
                *([site.subgraph or "-"] if inside else []),
                activation_name(site.activation, site.alpha),
                _shape(site.shape),
                _layers(site),
                site.scope,
                site.reason or "-",
            )
            for site in findings.sites
        ]
        where = ["inside"] if inside else []
        columns = ["site", *where, "activation", "input", "layers", "scope", "why only the activation"]
        print_table(console, title, columns, rows)
    else:
        console.print(title, markup=False)
    if findings.near_misses:
        misses = [(miss.anchor, miss.reason) for miss in findings.near_misses]
        print_table(console, "Near misses, left alone", ["node", "reason"], misses)
    for warning in warnings:
        console.print(f"warning: {warning}", markup=False, style="yellow", soft_wrap=True)


def print_quantized_sites(console: "Console", sites: "tuple[QuantizedSite, ...]") -> None:
    """Show what was done at each site."""
    rows = [
        (
            site.name,
            activation_name(site.activation, site.alpha),
            site.scope,
            site.bits,
            site.plan.kind,
            decimal(site.plan.certificate.max_error_lsb, 3),
            site.note or "-",
        )
        for site in sites
    ]
    columns = ["site", "activation", "scope", ">bits", "plan", ">proved LSB", "why only the activation"]
    print_table(console, "Quantized sites", columns, rows)


def print_notes(console: "Console", notes: Iterable[str]) -> None:
    """Show what the user must know beside the results, a line each."""
    for note in notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


def print_trade(console: "Console", trade: "BitTrade") -> None:
    """Show what each site costs alone, what it got, and what came out."""
    widths = sorted({width for site in trade.sites for width in site.alone}, reverse=True)
    rows = [
        (site.name, site.bits, *(number(site.alone[width], 2) if width in site.alone else "-" for width in widths))
        for site in trade.sites
    ]
    columns = ["site", ">bits", *(f">alone at {width}" for width in widths)]
    print_table(console, "Relative error of the outputs with one site alone in integers", columns, rows)
    single = [(f"{width} bits at every site", width, _reached(value)) for width, value in trade.single_width.items()]
    rows = [*single, ("this model", decimal(trade.mean_bits, 2), _reached(trade.reached))]
    title = f"Goal: {trade.goal}; measured on {trade.samples} samples with {trade.measurements} models"
    print_table(console, title, ["model", ">mean bits", f">{trade.metric}"], rows)


def _reached(value: float | None) -> str:
    return "exact" if value is None else f"{value:.6g}"


def print_verification(console: "Console", verification: "Verification") -> None:
    """Show what a verification found, and whether it passed."""
    outputs = [
        (
            output.name,
            output.samples,
            number(output.max_abs_error),
            number(output.relative_error),
            decimal(output.sqnr_db, 1),
            decimal(output.cosine_mean, 5),
            decimal(output.cosine_worst, 5),
            percent(output.top1_agreement),
        )
        for output in verification.outputs
    ]
    columns = [
        "output",
        ">samples",
        ">max error",
        ">relative",
        ">SQNR dB",
        ">cosine",
        ">worst sample",
        ">top-1 same",
    ]
    print_table(console, "End to end, quantized against float", columns, outputs)
    sites = []
    for site in verification.sites:
        check = site.executors
        dip = site.dip
        equal = "-" if check is None else f"{check.inputs - check.differences} of {check.inputs}"
        place = "-" if dip.minimum_from is None else f"{dip.minimum_from:.3f} .. {dip.minimum_to:.3f}"
        sites.append(
            (
                site.name,
                site.scope,
                site.bits,
                f"{dip.max_error_lsb:.3f} / {site.certificate_lsb:.3f}",
                f"{decimal(dip.minimum, 4)} / {decimal(dip.float_minimum, 4)}",
                f"{place} / {dip.float_minimum_at:.3f}",
                equal,
            )
        )
    columns = ["site", "scope", ">bits", ">LSB at dip / proved", ">minimum / float", ">at x / float", ">equal codes"]
    print_table(console, "Sites: near the dip, and executor against executor", columns, sites)
    if verification.executors_note:
        console.print(verification.executors_note, markup=False)
    print_notes(console, verification.notes)
    if verification.passed:
        console.print("passed", style="bold green")
    else:
        console.print("FAILED", style="bold red")
        for failure in verification.failures:
            console.print(f"  {failure}", markup=False)
