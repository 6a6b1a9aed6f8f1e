"""The report's plots as SVG that follows the page's colours."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from qgelu.accuracy_metric import METRIC_NAMES
from qgelu.reporting.content import Candidate, Curve, Report
from qgelu.reporting.rows import main_output

_INK: Final = "#123456"
"""Stands for the page's text colour until the SVG is in the page."""

_STYLES: Final[tuple[dict[str, Any], ...]] = (
    {"color": "#2a7fc9", "marker": "o", "linestyle": "-"},
    {"color": "#e0702a", "marker": "s", "linestyle": "--"},
    {"color": "#2f9e6e", "marker": "^", "linestyle": "-."},
)
"""Told apart by marker and dash as well as by colour; each has contrast on white and on black."""

_BASELINE_DASHES: Final = ((0, (1, 1.5)), (0, (5, 2, 1, 2)))
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "qgelu",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
    "grid.color": _INK,
}
_SIZE: Final = (5.6, 3.7)


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes
    ----------
    svg : str
        Inline SVG; its ink is ``currentColor``.
    caption : str
    alternative : str
        What it shows, in words and numbers.
    """

    svg: str
    caption: str
    alternative: str


def _render(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    # The page sets the size: the viewBox keeps the proportions.
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL).replace("<svg", '<svg aria-hidden="true"', 1)


def _value(candidate: Candidate, report: Report, what: str) -> float | None:
    output = main_output(candidate)
    if output is None:
        return None
    if what == "sqnr":
        return output.sqnr_db
    value: float | None = getattr(output, report.metric)
    return value if value is None or report.metric in {"cosine_mean", "relative_error"} else 100.0 * value


def _against_bits(report: Report, what: str, label: str, caption: str) -> Plot:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    words = []
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.add_subplot()
        for scope, style in zip(("ffn", "activation"), _STYLES, strict=False):
            points = [(one.bits, _value(one, report, what)) for one in report.of_scope(scope)]
            known = [(bits, value) for bits, value in points if value is not None]
            if known:
                axes.plot(*zip(*known, strict=True), label=f"scope {scope}", **style)
                words.append(f"scope {scope}: " + ", ".join(f"{bits} bits {value:.4g}" for bits, value in known))
        points = [(one.bits, _value(one, report, what)) for one in report.simulated]
        known = [(bits, value) for bits, value in points if value is not None]
        if known:
            axes.plot(*zip(*known, strict=True), label="scope ffn, simulated", **{**_STYLES[0], "linestyle": ":"})
            words.append("scope ffn, simulated: " + ", ".join(f"{bits} bits {value:.4g}" for bits, value in known))
        for index, baseline in enumerate(report.baselines):
            value = _value(baseline, report, what)
            if value is not None:
                dashes = _BASELINE_DASHES[index % len(_BASELINE_DASHES)]
                axes.axhline(value, color=_INK, linewidth=1.1, linestyle=dashes, label=baseline.label)
                words.append(f"{baseline.label}: {value:.4g}")
        output = main_output(report.candidates[0])
        if what == "metric" and report.metric == "accuracy" and output is not None and output.float_accuracy:
            axes.axhline(100.0 * output.float_accuracy, color=_INK, linewidth=0.8, label="float")
            words.append(f"float: {100.0 * output.float_accuracy:.4g}")
        axes.set_xlabel("bits of the activation's codes")
        axes.set_ylabel(label)
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
        axes.legend(frameon=False, loc="best", fontsize=10)
        return Plot(_render(figure), caption, f"{caption} {'; '.join(words)}.")


def _curve_name(curves: Sequence[Curve]) -> str:
    first = curves[0]
    alpha = f" (alpha {first.alpha:.4g})" if first.activation == "quick_gelu" else ""
    channel = "" if first.channel is None else f", channel {first.channel}"
    return f"{first.activation}{alpha}, scope {first.scope}, site {first.site}{channel}"


def _dip(curves: Sequence[Curve]) -> Plot:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    first = curves[0]
    lowest = min(first.exact)
    words = [f"Float: minimum {lowest:.4f} at {first.x[first.exact.index(lowest)]:.2f}."]
    with mpl.rc_context(_SETTINGS):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.add_subplot()
        axes.axvspan(*first.interval, color=_INK, alpha=0.06, linewidth=0)
        axes.axhline(0.0, color=_INK, linewidth=0.6)
        axes.plot(first.x, first.exact, color=_INK, linewidth=2.0, label="float")
        for curve, style in zip(curves, reversed(_STYLES[: len(curves)]), strict=True):
            axes.plot(
                curve.x,
                curve.answer,
                color=style["color"],
                linestyle=style["linestyle"],
                linewidth=1.3,
                label=f"{curve.bits} bits",
            )
            words.append(
                f"{curve.bits} bits: minimum {curve.minimum:.4f} for x from {curve.minimum_from:.2f} to "
                f"{curve.minimum_to:.2f}, largest error {curve.max_error:.4f}, {curve.codes_below_zero} codes below 0."
            )
        deepest = min(lowest, *(curve.minimum for curve in curves))
        axes.set_ylim(1.25 * deepest, -0.6 * deepest)
        axes.set_xlim(first.x[0], min(first.x[-1], -0.6 * first.x[first.exact.index(lowest)]))
        axes.set_xlabel("x")
        axes.set_ylabel("f(x)")
        axes.legend(frameon=False, loc="upper left", fontsize=10, ncols=2)
        caption = f"{_curve_name(curves)}. Shaded: x from {first.interval[0]:g} to {first.interval[1]:g}."
        return Plot(_render(figure), caption, f"{caption} {' '.join(words)}")


def make_plots(report: Report) -> tuple[Plot, ...]:
    """Return the plots: the metric and the SQNR against bits, then the dip of each variant and scope."""
    import matplotlib.ticker  # noqa: F401  (mpl.ticker)

    unit = " (%)" if report.metric in {"accuracy", "top1_agreement"} else ""
    name = METRIC_NAMES[report.metric]
    title = name[0].upper() + name[1:]
    plots = [_against_bits(report, "metric", f"{title}{unit}", f"{title} against bits.")]
    plots.append(
        _against_bits(report, "sqnr", "SQNR (dB)", "SQNR of the model's output to the float model's, against bits.")
    )
    groups: dict[tuple[str, float, str], list[Curve]] = {}
    for curve in report.curves:
        groups.setdefault((curve.activation, curve.alpha, curve.scope), []).append(curve)
    return (*plots, *(_dip(sorted(curves, key=lambda curve: curve.bits)) for curves in groups.values()))
