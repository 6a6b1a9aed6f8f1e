"""What a report holds."""

from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, Final, Literal

from qgelu.accuracy_metric import Metric
from qgelu.output_comparison import OutputErrors

FORMAT: Final = "qgelu.report"
VERSION: Final = 1

Scope = Literal["ffn", "activation"]


@dataclass(frozen=True)
class SiteSummary:
    """One site of the float model, as :func:`qgelu.inspect` finds it."""

    name: str
    activation: str
    alpha: float
    scope: str
    reason: str


@dataclass(frozen=True)
class ModelSummary:
    """The float model.

    Attributes
    ----------
    name : str
        File name, or the graph's name for a model in memory.
    opset : int
    bytes : int
    digest : str
    sites : tuple of SiteSummary
    """

    name: str
    opset: int
    bytes: int
    digest: str
    sites: tuple[SiteSummary, ...]


@dataclass(frozen=True)
class DataSummary:
    """The data.

    Attributes
    ----------
    calibration, test : str
        Where they came from.
    calibration_samples, test_samples : int
    same : bool
        Whether ranges were picked on the very data that accuracy is measured on.
    mask : str or None
    labelled : bool
    """

    calibration: str
    test: str
    calibration_samples: int
    test_samples: int
    same: bool
    mask: str | None
    labelled: bool


@dataclass(frozen=True)
class SiteQuality:
    """One site in one candidate.

    Attributes
    ----------
    name : str
    scope : str
        What it got, which may be less than what was asked for.
    note : str
        Why it is less; empty if it is not.
    plan : str
    sqnr_db : float or None
        Of the activation's output: f(x) against the plan's answer, over values of x recorded in the float
        model on the test data.
    certificate_lsb : float
        Largest error that is proved, in output LSB.
    dip_error_lsb : float
        Largest error measured near the dip.
    """

    name: str
    scope: str
    note: str
    plan: str
    sqnr_db: float | None
    certificate_lsb: float
    dip_error_lsb: float


@dataclass(frozen=True)
class Candidate:
    """One way to run the model, measured.

    Attributes
    ----------
    label : str
    kind : str
        "qgelu", "baseline", or "simulated": no executor takes these bits, and all of it ran in float.
    scope : str or None
        None for baselines.
    bits : int
        Of the activations' codes.
    executed : str
        What ran in integers, or what was simulated.
    bytes : int
        Size of the model.
    outputs : tuple of OutputErrors
        Against the float model on the test data.
    failures : tuple of str
        Outputs that could not be compared.
    loss : float or None
        In the report's metric; None if it could not be measured.
    sites : tuple of SiteQuality
        Empty for baselines and simulated candidates.
    """

    label: str
    kind: Literal["qgelu", "baseline", "simulated"]
    scope: Scope | None
    bits: int
    executed: str
    bytes: int
    outputs: tuple[OutputErrors, ...]
    failures: tuple[str, ...]
    loss: float | None
    sites: tuple[SiteQuality, ...]


@dataclass(frozen=True)
class Curve:
    """What the integers make of the activation, around the dip.

    Attributes
    ----------
    activation, alpha
    scope, bits
    site : str
    channel : int or None
        Of a plan per channel: the one with the median output scale.
    x : tuple of float
    exact, answer : tuple of float
        The activation, and the dequantized code, at each x.
    lsb : float
        Real width of an output code.
    max_error : float
        Largest |answer - exact| for x in ``interval``; the rounding of x to an input code is part of it.
    interval : tuple of float
    minimum, minimum_from, minimum_to : float
        Lowest answer, and the x that it spans.
    codes_below_zero : int
        Output codes that stand for numbers below 0.
    """

    activation: str
    alpha: float
    scope: Scope
    bits: int
    site: str
    channel: int | None
    x: tuple[float, ...]
    exact: tuple[float, ...]
    answer: tuple[float, ...]
    lsb: float
    max_error: float
    interval: tuple[float, float]
    minimum: float
    minimum_from: float
    minimum_to: float
    codes_below_zero: int


@dataclass(frozen=True)
class Recommendation:
    """The fewest bits of a scope that keep the tolerance.

    Attributes
    ----------
    scope : str
    bits : int or None
        None if no measured width does.
    loss : float or None
        At those bits.
    reason : str
        One sentence.
    """

    scope: Scope
    bits: int | None
    loss: float | None
    reason: str


@dataclass(frozen=True)
class Report:
    """Accuracy against bits of one model.

    Attributes
    ----------
    model, data
    metric : str
        What ``loss`` and the recommendation are about: "accuracy" (float's less the candidate's),
        "top1_agreement" or "cosine_mean" (1 less it), "relative_error".
    tolerance : float
        Largest loss that is accepted.
    candidates : tuple of Candidate
    curves : tuple of Curve
    recommendations : tuple of Recommendation
        The first is the one to follow.
    notes : tuple of str
        What the reader must know beside the numbers.
    versions : dict of str to str
    """

    model: ModelSummary
    data: DataSummary
    metric: Metric
    tolerance: float
    candidates: tuple[Candidate, ...]
    curves: tuple[Curve, ...]
    recommendations: tuple[Recommendation, ...]
    notes: tuple[str, ...]
    versions: dict[str, str]

    def of_scope(self, scope: str) -> tuple[Candidate, ...]:
        """Return the candidates of a scope that ran in integers, by bits."""
        return tuple(one for one in self.candidates if one.scope == scope and one.kind == "qgelu")

    @property
    def simulated(self) -> tuple[Candidate, ...]:
        """The candidates of scope ffn that no executor takes, by bits."""
        return tuple(candidate for candidate in self.candidates if candidate.kind == "simulated")

    @property
    def baselines(self) -> tuple[Candidate, ...]:
        """The candidates that are not this package's."""
        return tuple(candidate for candidate in self.candidates if candidate.kind == "baseline")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values (format ``qgelu.report``)."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    def to_markdown(self) -> str:
        """Return the report as Markdown, without plots."""
        from qgelu.reporting.markdown import to_markdown

        return to_markdown(self)

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page with plots."""
        from qgelu.reporting.html_page import to_html

        return to_html(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a .html, .md or .json file, whole or not at all.

        Raises
        ------
        QGeluError
            If the suffix is another, or the file cannot be written.
        """
        from qgelu.reporting.files import save_report

        save_report(self, path)
