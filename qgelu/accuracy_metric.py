"""What a model's outputs are judged by: a metric, and the loss in it against the float model."""

from collections.abc import Sequence
from typing import Final, Literal

from qgelu.errors import QGeluError
from qgelu.output_comparison import OutputErrors

Metric = Literal["accuracy", "top1_agreement", "cosine_mean", "relative_error"]

METRIC_NAMES: Final[dict[Metric, str]] = {
    "accuracy": "accuracy on the labels",
    "top1_agreement": "top-1 agreement with the float model",
    "cosine_mean": "mean cosine to the float model",
    "relative_error": "relative error to the float model",
}


def choose_metric(outputs: Sequence[OutputErrors], wanted: Metric | None = None) -> Metric:
    """Return the metric that is wanted, else the most telling one that the outputs have.

    Raises
    ------
    QGeluError
        If no output has the metric that is wanted.
    """
    known: list[Metric] = [
        metric for metric in METRIC_NAMES if any(getattr(output, metric) is not None for output in outputs)
    ]
    if wanted is None:
        return known[0] if known else "relative_error"
    if wanted not in known:
        raise QGeluError(f"metric {wanted!r} is not among what the outputs have: {', '.join(known)}")
    return wanted


def loss_of(outputs: Sequence[OutputErrors], metric: Metric) -> float | None:
    """Return what is lost against the float model: the worst output that has the metric; None if none has."""
    losses = []
    for output in outputs:
        if metric == "accuracy":
            if output.accuracy is not None and output.float_accuracy is not None:
                losses.append(output.float_accuracy - output.accuracy)
        elif metric == "relative_error":
            if output.relative_error is not None:
                losses.append(output.relative_error)
        else:
            value = output.top1_agreement if metric == "top1_agreement" else output.cosine_mean
            if value is not None:
                losses.append(1.0 - value)
    return max(losses) if losses else None


def describe_loss(loss: float | None, metric: Metric) -> str:
    """Return a loss with its unit."""
    if loss is None:
        return "not measured"
    if metric in {"accuracy", "top1_agreement"}:
        return f"{100.0 * loss:.2f} percentage points"
    return f"{loss:.2g}"
