"""What the terminal, Markdown and HTML show of a report, as rows of text."""

from dataclasses import dataclass
from typing import Final

from qgelu.accuracy_metric import METRIC_NAMES, describe_loss
from qgelu.number_text import decimal, number, percent, size
from qgelu.output_comparison import OutputErrors
from qgelu.reporting.content import Candidate, Report
from qgelu.reporting.recommendation import within

SITE_BITS: Final = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
"""Widths of which a table of sites shows a column, where they were measured."""


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes
    ----------
    title : str
    columns : tuple of str
        Those of numbers start with ">".
    rows : tuple of tuple of str
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def main_output(candidate: Candidate) -> OutputErrors | None:
    """Return the output that tables show: one of classes if there is one, else the first with a cosine."""
    ranked = sorted(candidate.outputs, key=lambda output: (output.top1_agreement is None, output.cosine_mean is None))
    return ranked[0] if ranked else None


def _accuracy_columns(report: Report) -> list[str]:
    columns = ["candidate", "within tolerance"]
    if report.metric == "accuracy":
        columns.append(">accuracy")
    if report.metric in {"accuracy", "top1_agreement"}:
        columns.append(">top-1 same")
    return [*columns, ">cosine", ">worst", ">SQNR dB", ">relative", ">size"]


def _accuracy_row(report: Report, candidate: Candidate) -> tuple[str, ...]:
    verdict = "yes" if within(candidate, report.tolerance) else "no"
    output = main_output(candidate)
    cells = [candidate.label, verdict if not candidate.failures else "failed"]
    if output is None:
        blank = len(_accuracy_columns(report)) - 3
        return (*cells, *["-"] * blank, size(candidate.bytes))
    if report.metric == "accuracy":
        cells.append(percent(output.accuracy))
    if report.metric in {"accuracy", "top1_agreement"}:
        cells.append(percent(output.top1_agreement))
    return (
        *cells,
        decimal(output.cosine_mean, 5),
        decimal(output.cosine_worst, 4),
        decimal(output.sqnr_db, 1) if output.relative_error else "exact",
        number(output.relative_error, 2),
        size(candidate.bytes),
    )


def accuracy_table(report: Report) -> Table:
    """Return every candidate's accuracy on the test data, the float model's first."""
    rows = [_accuracy_row(report, candidate) for candidate in report.candidates]
    columns = _accuracy_columns(report)
    output = next((found for found in map(main_output, report.candidates) if found is not None), None)
    first = ["float", "-"]
    if report.metric == "accuracy":
        first.append(percent(None if output is None else output.float_accuracy))
    first += ["-"] * (len(columns) - len(first) - 1)
    title = "Accuracy against bits" if output is None else f"Accuracy against bits: output {output.name}"
    return Table(title, tuple(columns), ((*first, size(report.model.bytes)), *rows))


def site_table(report: Report, scope: str) -> Table | None:
    """Return the SQNR of each site's activation by bits; None if the scope was not measured."""
    shown = [candidate for candidate in report.of_scope(scope) if candidate.bits in SITE_BITS]
    if not shown:
        return None
    rows = tuple(
        (
            site.name,
            *(decimal(candidate.sites[index].sqnr_db, 1) for candidate in shown),
        )
        for index, site in enumerate(report.model.sites)
    )
    columns = ("site", *(f">{candidate.bits} bits" for candidate in shown))
    return Table(f"SQNR in dB of each activation's output, scope {scope}", columns, rows)


def certificate_table(report: Report) -> Table:
    """Return, by candidate, the largest proved error of its sites beside the largest one measured near the dip."""
    rows = []
    for candidate in report.candidates:
        if candidate.sites:
            proved = max(candidate.sites, key=lambda site: site.certificate_lsb)
            measured = max(site.dip_error_lsb for site in candidate.sites)
            rows.append(
                (
                    candidate.label,
                    " and ".join(sorted({site.plan for site in candidate.sites})),
                    decimal(proved.certificate_lsb, 3),
                    decimal(measured, 3),
                )
            )
    columns = ("candidate", "plan", ">proved, LSB", ">measured near the dip, LSB")
    return Table("Largest error of the activation: proved and measured", columns, tuple(rows))


def dip_table(report: Report) -> Table:
    """Return what each curve does at the dip, the activation itself first."""
    rows = []
    for curve in report.curves:
        lowest = min(curve.exact)
        place = curve.x[curve.exact.index(lowest)]
        rows.append(
            (
                f"{curve.activation}, {curve.scope}, {curve.bits} bits",
                f"{lowest:.4f} at {place:.2f}",
                f"{curve.minimum:.4f}",
                f"{curve.minimum_from:.2f} to {curve.minimum_to:.2f}",
                f"{curve.max_error:.4f}",
                f"{curve.lsb:.4f}",
                str(curve.codes_below_zero),
            )
        )
    columns = (
        "curve",
        ">float minimum",
        ">minimum",
        ">for x from",
        ">largest error",
        ">one LSB",
        ">codes below 0",
    )
    return Table("At the dip", columns, tuple(rows))


def baseline_lines(report: Report) -> tuple[str, ...]:
    """Return what exactly was run for each baseline."""
    return tuple(f"{candidate.label}: {candidate.executed}" for candidate in report.baselines)


def headline(report: Report) -> str:
    """Return the recommendation in a few words."""
    first = report.recommendations[0]
    if first.bits is None:
        return "No measured width keeps the tolerance"
    return f"{first.bits} bits, scope {first.scope}"


def facts(report: Report) -> tuple[tuple[str, str], ...]:
    """Return what was measured, by name."""
    data = report.data
    blocks = sum(site.scope == "ffn" for site in report.model.sites)
    variants = sorted({site.activation for site in report.model.sites})
    executed = next((one.executed for one in report.of_scope("ffn")), None)
    lines = [
        ("Model", f"{report.model.name}, {size(report.model.bytes)}, opset {report.model.opset}"),
        ("Sites", f"{len(report.model.sites)} ({', '.join(variants)}), {blocks} of them whole FFNs"),
        ("Calibration", f"{data.calibration_samples} samples: {data.calibration}"),
        ("Test", f"{data.test_samples} samples: {data.test}" + (" (the same data)" if data.same else "")),
    ]
    if data.mask is not None:
        lines.append(("Mask", data.mask))
    lines.append(
        ("Judged by", f"{METRIC_NAMES[report.metric]}; tolerance {describe_loss(report.tolerance, report.metric)}")
    )
    if executed is not None:
        lines.append(("Scope ffn", executed))
    if report.simulated:
        lines.append(("Scope ffn beyond 8 bits", report.simulated[0].executed))
    if report.of_scope("activation"):
        lines.append(("Scope activation", report.of_scope("activation")[0].executed))
    lines.append(("Made with", ", ".join(f"{name} {version}" for name, version in report.versions.items())))
    return tuple(lines)


def all_tables(report: Report) -> tuple[Table, ...]:
    """Return every table, in the order of the report."""
    sites = (site_table(report, "ffn"), site_table(report, "activation"))
    tables = (accuracy_table(report), dip_table(report), certificate_table(report), *sites)
    return tuple(table for table in tables if table is not None and table.rows)
