"""A report as Markdown."""

from qgelu.reporting.content import Report
from qgelu.reporting.rows import Table, all_tables, baseline_lines, facts, headline


def _cell(text: str) -> str:
    for character in "\\|`*_<>[]":
        text = text.replace(character, "\\" + character)
    return text


def _table(table: Table) -> list[str]:
    head = " | ".join(_cell(column.removeprefix(">")) for column in table.columns)
    rule = " | ".join("---:" if column.startswith(">") else "---" for column in table.columns)
    rows = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in table.rows]
    return [f"## {_cell(table.title)}", "", f"| {head} |", f"| {rule} |", *rows, ""]


def to_markdown(report: Report) -> str:
    """Return the report as Markdown, without plots."""
    lines = [f"# Accuracy against bits: {_cell(report.model.name)}", "", f"**Recommended: {headline(report)}.**", ""]
    lines += [f"- {_cell(one.reason)}." for one in report.recommendations]
    lines += ["", "## What was measured", ""]
    lines += [f"- {name}: {_cell(text)}" for name, text in facts(report)]
    lines += [f"- Baseline {_cell(line)}" for line in baseline_lines(report)]
    lines += [f"- {_cell(note)}" for note in report.notes]
    lines.append("")
    for table in all_tables(report):
        lines += _table(table)
    return "\n".join(lines).rstrip() + "\n"
