"""A report in the terminal."""

from typing import TYPE_CHECKING

from qgelu.reporting.content import Report
from qgelu.reporting.rows import Table, accuracy_table, baseline_lines, dip_table, headline, site_table
from qgelu.terminal import print_table

if TYPE_CHECKING:
    from rich.console import Console


def _print_table(console: "Console", table: Table | None) -> None:
    if table is not None and table.rows:
        print_table(console, table.title, table.columns, table.rows)


def print_report(console: "Console", report: Report) -> None:
    """Show accuracy, sites and the dip, and what is recommended."""
    _print_table(console, accuracy_table(report))
    for scope in ("ffn", "activation"):
        _print_table(console, site_table(report, scope))
    _print_table(console, dip_table(report))
    for line in (*baseline_lines(report), *report.notes):
        console.print(line, markup=False)
    console.print(f"Recommended: {headline(report)}", style="bold", markup=False)
    for recommendation in report.recommendations:
        console.print(f"  {recommendation.reason}", markup=False)
