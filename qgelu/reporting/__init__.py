"""Accuracy against bits, on a user's model and data, as JSON, Markdown and HTML."""

from qgelu.reporting.baselines import BASELINES
from qgelu.reporting.builder import report
from qgelu.reporting.content import Report
from qgelu.reporting.files import check_report_path

__all__ = ["BASELINES", "Report", "check_report_path", "report"]
