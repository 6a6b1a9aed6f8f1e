"""Running a quantized model over data and comparing its outputs with the float model's."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgelu.errors import QGeluError
from qgelu.output_comparison import OutputComparison, OutputErrors
from qgelu.sessions import ModelRunner

Feed = Mapping[str, NDArray[Any]]
ReferenceBatch = tuple[Feed, Mapping[str, Any]]
"""One batch: what is fed, and the float model's outputs."""


@dataclass(frozen=True)
class Evaluation:
    """Errors of every output, and what could not be compared.

    Attributes
    ----------
    outputs : tuple of OutputErrors
        Without those that failed.
    failures : tuple of str
        One line each: outputs that are missing, not finite, or of another shape or type; or why the model did
        not run.
    batches : int
    """

    outputs: tuple[OutputErrors, ...]
    failures: tuple[str, ...]
    batches: int


def reference_batches(runner: ModelRunner, batches: Iterable[Feed]) -> Iterator[ReferenceBatch]:
    """Yield every batch with the float model's outputs."""
    for feed in batches:
        yield feed, runner.run(feed)


def evaluate_model(
    reference: Iterable[ReferenceBatch],
    quantized: ModelRunner,
    *,
    mask: str | None = None,
    labels: NDArray[np.int64] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Compare a quantized model with the float model, one batch at a time.

    Parameters
    ----------
    reference : iterable of ReferenceBatch
    quantized : ModelRunner
    mask : str, optional
        Input that is 0 where a position of outputs [samples, positions, ...] is padding.
    labels : int array of shape [samples], optional
        Right classes, for outputs [samples, classes].
    progress : callable, optional
        Called with the number of batches done.

    Raises
    ------
    QGeluError
        If the float model cannot run, or the labels are not as many as the samples.
    """
    comparisons: dict[str, OutputComparison] = {}
    batches = 0
    for feed, expected in reference:
        try:
            actual = quantized.run(feed, [name for name in expected if name in quantized.outputs])
        except QGeluError as error:
            return Evaluation((), (f"batch {batches + 1}: {error}",), batches)
        for name, value in expected.items():
            comparison = comparisons.setdefault(name, OutputComparison(name, labels))
            if name in actual:
                comparison.update(value, actual[name], None if mask is None else feed[mask])
            else:
                comparison.failure = "is missing in the quantized model"
        batches += 1
        if progress is not None:
            progress(batches)
    errors = tuple(comparison.errors() for comparison in comparisons.values() if comparison.failure is None)
    failures = tuple(
        f"output {name!r} {comparison.failure}"
        for name, comparison in comparisons.items()
        if comparison.failure is not None
    )
    for output in errors:
        if labels is not None and output.top1_agreement is not None and output.samples != labels.size:
            raise QGeluError(f"labels: {labels.size} labels for {output.samples} samples: give one for each")
    return Evaluation(errors, failures, batches)


def check_mask(mask: str | None, inputs: Iterable[str]) -> None:
    """Raise QGeluError unless the mask is one of the model's inputs."""
    names = list(inputs)
    if mask is not None and mask not in names:
        raise QGeluError(f"mask {mask!r} is not an input of the model: it takes {', '.join(names)}")


def kept_rows(values: NDArray[Any], mask: NDArray[Any] | None) -> NDArray[Any]:
    """Return a tensor as rows [positions, channels] without those that the mask leaves out."""
    rows = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
    if mask is None or mask.size != len(rows):
        return rows
    return np.asarray(rows[mask.reshape(-1) != 0])
