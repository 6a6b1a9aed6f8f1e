"""The range whose quantized distribution diverges least from the tensor's (Kullback-Leibler)."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.observers import TensorStatistics

_BINS_PER_CODE: Final = 16  # TensorRT's 2,048 bins for 128 codes
_MOST_CANDIDATES: Final = 512
_SMOOTHING: Final = 1e-4  # as ONNX Runtime's and MXNet's


def entropy_range(statistics: TensorStatistics, bits: int) -> tuple[float, float]:
    """Return the range of least divergence.

    After S. Migacz, "8-bit inference with TensorRT" (GTC 2017): for each clipping threshold, P is the
    histogram within it with what is clipped added to its outer bins, Q the histogram within it, merged into
    2**bits levels and spread evenly over the bins that were not empty; the least KL(P || Q) wins, the wider
    of two equal ones. The threshold is symmetric about 0 and cut to the values' range. Where the histogram
    has no more bins than there are codes it cannot tell thresholds apart, and the whole range is returned.
    """
    levels = 1 << bits
    histogram = statistics.histogram
    while histogram.counts.size > _BINS_PER_CODE * levels:
        histogram = histogram.coarsened(histogram.exponent + 1)
    counts = histogram.counts.astype(np.float64)
    # A threshold of k bins keeps bins -k .. k-1, as far as there are values.
    widest = max(-histogram.first, histogram.last + 1)
    candidates = np.unique(np.linspace(widest, 1, min(widest, _MOST_CANDIDATES)).round().astype(np.int64))
    best, least = widest, np.inf
    for threshold in candidates[::-1].tolist():
        start = max(-threshold - histogram.first, 0)
        stop = min(threshold - histogram.first, counts.size)
        if stop - start < levels:
            break
        divergence = _divergence(counts, start, stop, levels)
        if divergence < least:
            best, least = threshold, divergence
    reach = best * histogram.width
    return max(-reach, statistics.minimum), min(reach, statistics.maximum)


def _divergence(counts: NDArray[np.float64], start: int, stop: int, levels: int) -> float:
    """Return KL(P || Q) for the bins [start, stop); infinite if they are empty."""
    inside = counts[start:stop]
    filled = inside > 0
    if not filled.any():
        return float(np.inf)
    reference = inside.copy()
    reference[0] += counts[:start].sum()
    reference[-1] += counts[stop:].sum()
    level = np.arange(inside.size) * levels // inside.size
    mass = np.bincount(level, weights=inside, minlength=levels)
    bins = np.bincount(level, weights=filled, minlength=levels)
    spread = np.where(filled, (mass / np.maximum(bins, 1.0))[level], 0.0)
    p, q = _smooth(reference), _smooth(spread)
    return float(np.sum(p * np.log(p / q)))


def _smooth(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return probabilities with none at 0: each empty bin gets a little, taken evenly from the others."""
    p = weights / weights.sum()
    empty = p == 0.0
    number = int(empty.sum())
    if number in (0, p.size):
        return np.asarray(p)
    taken = min(_SMOOTHING, 0.5 * float(p[~empty].min()) * (p.size - number) / number)
    return np.asarray(np.where(empty, taken, p - taken * number / (p.size - number)))
