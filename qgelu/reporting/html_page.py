"""A report as one HTML page: no network, no script."""

from qgelu.reporting.content import Report
from qgelu.reporting.plots import make_plots
from qgelu.reporting.rows import all_tables, baseline_lines, facts, headline


def to_html(report: Report) -> str:
    """Return the page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("qgelu.reporting", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        headline=headline(report),
        facts=facts(report),
        baselines=baseline_lines(report),
        plots=make_plots(report),
        tables=all_tables(report),
    )
