"""How good a quantized model must be, as a user says it, and whether it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qgelu.accuracy_metric import METRIC_NAMES, Metric, choose_metric, loss_of
from qgelu.errors import QGeluError
from qgelu.output_comparison import OutputErrors

TARGET_METRICS: Final = {
    "cosine": "cosine_mean",
    "worst-cosine": "cosine_worst",
    "sqnr": "sqnr_db",
    "top1": "top1_agreement",
    "accuracy": "accuracy",
    "relative-error": "relative_error",
}
"""What a target can be about: its name, and the attribute of :class:`OutputErrors`."""

_DECIBELS: Final = "sqnr"
_AT_MOST: Final = "relative-error"
"""The one metric that is better when it is less."""

_ROUNDING: Final = 1e-12
"""Of float64: 593 right answers of 600 instead of 596 are a drop of 0.005, and not of a little more."""


@dataclass(frozen=True)
class AccuracyGoal:
    """A limit that the outputs of a quantized model must keep.

    Attributes
    ----------
    metric : str or None
        One of :data:`TARGET_METRICS`; None for a largest drop.
    limit : float
        Least value of the metric (largest, of the relative error); or the largest drop.
    drop_metric : Metric or None
        What the drop is in, once it is known which of them the outputs have.
    """

    metric: str | None
    limit: float
    drop_metric: Metric | None = None

    def settled(self, outputs: Sequence[OutputErrors]) -> "AccuracyGoal":
        """Return the goal with the metric of its drop chosen: the first that the outputs have, as in a report."""
        if self.metric is not None:
            return self
        return AccuracyGoal(None, self.limit, choose_metric(outputs))

    def value(self, outputs: Sequence[OutputErrors]) -> float | None:
        """Return the metric, or the drop, of the worst output that has it; None if none has.

        Of outputs without any error the SQNR is infinite.
        """
        if self.metric is None:
            assert self.drop_metric is not None
            return loss_of(outputs, self.drop_metric)
        attribute = TARGET_METRICS[self.metric]
        found = [getattr(output, attribute) for output in outputs]
        if self.metric == _DECIBELS:
            found = [math.inf if output.relative_error == 0.0 else output.sqnr_db for output in outputs]
        known = [value for value in found if value is not None]
        if not known:
            return None
        return float(max(known) if self.metric == _AT_MOST else min(known))

    def is_met(self, value: float) -> bool:
        """Return whether a value of :meth:`value` keeps the limit."""
        excess = value - self.limit if self.metric in {None, _AT_MOST} else self.limit - value
        return excess <= _ROUNDING

    @property
    def counts_answers(self) -> bool:
        """Whether the metric is a share of samples, which needs many of them to show small errors."""
        return (self.metric or self.drop_metric) in {"top1", "accuracy", "top1_agreement"}

    @property
    def name(self) -> str:
        """The metric in words."""
        if self.metric is not None:
            return self.metric
        return f"drop in {METRIC_NAMES[self.drop_metric]}" if self.drop_metric else "drop"

    def __str__(self) -> str:
        sign = "<=" if self.metric in {None, _AT_MOST} else ">="
        return f"{self.name} {sign} {self.limit:.10g}"


def read_goal(target_metric: str | None, max_drop: float | None) -> AccuracyGoal | None:
    """Return the goal that a target or a largest drop says; None if neither is given.

    Parameters
    ----------
    target_metric : str, optional
        ``NAME=VALUE`` with a name of :data:`TARGET_METRICS`, for example ``cosine=0.995``.
    max_drop : float, optional
        0 to 1.

    Raises
    ------
    QGeluError
        If both are given, or one is not valid.
    """
    if target_metric is not None and max_drop is not None:
        raise QGeluError("give a target metric or a largest drop, not both")
    if max_drop is not None:
        if not 0.0 <= max_drop <= 1.0:
            raise QGeluError(f"the largest drop must be from 0 to 1, not {max_drop}")
        return AccuracyGoal(None, float(max_drop))
    if target_metric is None:
        return None
    name, equals, text = str(target_metric).partition("=")
    if name.strip() not in TARGET_METRICS or not equals:
        raise QGeluError(
            f"target metric {target_metric!r} is not NAME=VALUE with a name of {', '.join(TARGET_METRICS)}: "
            "for example cosine=0.995"
        )
    name = name.strip()
    try:
        limit = float(text)
    except ValueError:
        raise QGeluError(f"target metric {target_metric!r}: {text!r} is not a number") from None
    bounded = name != _DECIBELS
    if not math.isfinite(limit) or (bounded and not 0.0 <= limit <= 1.0):
        allowed = "a number from 0 to 1" if bounded else "a finite number of dB"
        raise QGeluError(f"target metric {target_metric!r}: {name} must be {allowed}")
    return AccuracyGoal(name, limit)
