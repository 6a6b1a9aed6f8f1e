"""A quantized model's outputs against the float model's, batch by batch, in fixed memory."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_UNIT_LENGTH_TOLERANCE: Final = 1e-3


@dataclass(frozen=True)
class OutputErrors:
    """Errors of one model output over a set of data.

    Attributes
    ----------
    name : str
    samples : int
        Length of the first axis over all batches; 1 a batch for scalars.
    max_abs_error : float
    relative_error : float or None
        ||quantized - float|| / ||float|| over everything; None if the float output is all zero and differs.
    sqnr_db : float or None
        -20 log10(relative_error); None if the two are equal, or relative_error is None.
    cosine_mean, cosine_worst : float or None
        Cosine of each sample's values, taken as one vector; None for outputs of one value a sample.
    cosine_worst_sample : int or None
        Index of the worst sample, from 0.
    top1_agreement : float or None
        Share of samples whose largest class is the same; None unless the output is [samples, classes > 1].
        Without labels, samples that all have length 1 and negative values are embeddings, not classes.
    accuracy, float_accuracy : float or None
        Share of samples whose largest class is the label; None without labels.
    """

    name: str
    samples: int
    max_abs_error: float
    relative_error: float | None
    sqnr_db: float | None
    cosine_mean: float | None
    cosine_worst: float | None
    cosine_worst_sample: int | None
    top1_agreement: float | None
    accuracy: float | None = None
    float_accuracy: float | None = None


def decibels(signal: float, noise: float) -> float | None:
    """Return 10 log10(signal / noise) of two sums of squares; None if either is 0."""
    return 10.0 * math.log10(signal / noise) if signal > 0.0 and noise > 0.0 else None


def kept_positions(mask: NDArray[Any] | None, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    """Return which positions [samples, positions] of an output of rank 3 the mask keeps; None for all."""
    if mask is None or len(shape) != 3 or mask.shape != shape[:2]:
        return None
    return np.asarray(mask != 0)


class OutputComparison:
    """Gathers the errors of one output.

    Parameters
    ----------
    name : str
        The output's name.
    labels : int array of shape [samples], optional
        The right class of each sample, in the order of the data.
    """

    def __init__(self, name: str, labels: NDArray[np.int64] | None = None) -> None:
        self.name = name
        self.failure: str | None = None
        """Why the outputs could not be compared; None if they could."""
        self._labels = labels
        self._samples = 0
        self._max = self._noise = self._signal = 0.0
        self._cosine_sum, self._cosine_count = 0.0, 0
        self._worst, self._worst_sample = math.inf, -1
        self._unit_length, self._negative = True, False
        self._agree = self._classed = self._right = self._float_right = 0

    def update(self, reference: Any, quantized: Any, mask: NDArray[Any] | None = None) -> None:
        """Add one batch: the float model's output, the quantized model's, and the mask's input if any."""
        if self.failure is not None:
            return
        self.failure = self._mismatch(reference, quantized)
        if self.failure is not None:
            return
        expected = np.asarray(reference, dtype=np.float64)
        actual = np.asarray(quantized, dtype=np.float64)
        kept = kept_positions(mask, expected.shape)
        if kept is not None:
            # Zeros add nothing to any sum, and leave the cosine to the other positions.
            expected, actual = np.where(kept[..., None], expected, 0.0), np.where(kept[..., None], actual, 0.0)
        if not np.array_equal(np.isfinite(expected), np.isfinite(actual)):
            count = int(np.count_nonzero(~np.isfinite(actual)))
            self.failure = f"{count} of {actual.size} values are NaN or infinite where the float model's are not"
            return
        finite = np.isfinite(expected)
        if not finite.all():
            expected, actual = np.where(finite, expected, 0.0), np.where(finite, actual, 0.0)
        self._add_errors(expected, actual)
        if expected.ndim >= 2 and expected[0].size > 1:
            self._add_cosines(expected.reshape(len(expected), -1), actual.reshape(len(actual), -1))
        if expected.ndim == 2 and expected.shape[1] > 1:
            self._add_classes(expected.argmax(axis=1), actual.argmax(axis=1))
            lengths = np.linalg.norm(expected, axis=1)
            self._unit_length &= bool((np.abs(lengths - 1.0) < _UNIT_LENGTH_TOLERANCE).all())
            self._negative |= bool((expected < 0.0).any())
        self._samples += len(expected) if expected.ndim else 1

    def _mismatch(self, reference: Any, quantized: Any) -> str | None:
        if not (isinstance(reference, np.ndarray) and isinstance(quantized, np.ndarray)):
            return "is not a tensor: only tensors can be compared"
        if reference.dtype.kind not in "biuf":
            return f"is of dtype {reference.dtype}: only numbers can be compared"
        if reference.dtype != quantized.dtype:
            return f"is {quantized.dtype} instead of {reference.dtype}"
        if reference.shape != quantized.shape:
            return f"has shape {list(quantized.shape)} instead of {list(reference.shape)}"
        return None

    def _add_errors(self, expected: NDArray[np.float64], actual: NDArray[np.float64]) -> None:
        if expected.size == 0:
            return
        difference = actual - expected
        self._max = max(self._max, float(np.abs(difference).max()))
        self._noise += float(np.square(difference).sum())
        self._signal += float(np.square(expected).sum())

    def _add_cosines(self, expected: NDArray[np.float64], actual: NDArray[np.float64]) -> None:
        lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(actual, axis=1)
        equal = (expected == actual).all(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            cosine = np.where(lengths > 0.0, (expected * actual).sum(axis=1) / lengths, 0.0)
        cosine = np.where(equal, 1.0, np.clip(cosine, -1.0, 1.0))
        self._cosine_sum += float(cosine.sum())
        self._cosine_count += cosine.size
        at = int(np.argmin(cosine))
        if cosine[at] < self._worst:
            self._worst, self._worst_sample = float(cosine[at]), self._samples + at

    def _add_classes(self, expected: NDArray[np.int64], actual: NDArray[np.int64]) -> None:
        self._agree += int(np.count_nonzero(expected == actual))
        self._classed += expected.size
        if self._labels is not None:
            labels = self._labels[self._samples : self._samples + expected.size]
            self._right += int(np.count_nonzero(actual[: labels.size] == labels))
            self._float_right += int(np.count_nonzero(expected[: labels.size] == labels))

    def errors(self) -> OutputErrors:
        """Return what was gathered."""
        relative = 0.0 if self._noise == 0.0 else None
        if self._signal > 0.0:
            relative = math.sqrt(self._noise / self._signal)
        embedding = self._unit_length and self._negative and self._labels is None
        classed = None if embedding else self._classed or None
        with_labels = classed if self._labels is not None else None
        return OutputErrors(
            self.name,
            self._samples,
            self._max,
            relative,
            decibels(self._signal, self._noise),
            self._cosine_sum / self._cosine_count if self._cosine_count else None,
            self._worst if self._cosine_count else None,
            self._worst_sample if self._cosine_count else None,
            self._agree / classed if classed else None,
            self._right / with_labels if with_labels else None,
            self._float_right / with_labels if with_labels else None,
        )
