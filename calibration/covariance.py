"""The covariance of a matmul's input, estimated from a sample of its rows."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_DAMPING: Final = 0.01
_SMALLEST_PART: Final = 1e-12
_GROUP: Final = 4096
"""A covariance of that many channels takes 128 MB."""


def shrunk_covariance(rows: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the covariance of rows [n, K], shrunk toward its diagonal.

    Covariances of few rows show relations that are chance. The correlations are multiplied by 1 - r, with r the
    intensity of least expected squared error, r = sum var(c_ij) / sum c_ij**2 over i != j (Ledoit and Wolf 2003;
    in this form, with a diagonal target, Schaefer and Strimmer 2005, table 2, target D), within 0 to 1.
    """
    centred = rows.astype(np.float64)
    centred -= centred.mean(axis=0)
    count = len(rows)
    deviation = np.sqrt(np.mean(np.square(centred), axis=0))
    centred /= np.where(deviation > 0.0, deviation, 1.0)
    correlation = centred.T @ centred / count
    np.square(centred, out=centred)
    spread = centred.T @ centred / count - np.square(correlation)
    np.fill_diagonal(spread, 0.0)
    related = float(np.square(correlation).sum() - np.square(correlation.diagonal()).sum())
    intensity = 1.0 if related == 0.0 else min(1.0, float(spread.sum()) / max(count - 1, 1) / related)
    diagonal = correlation.diagonal().copy()
    correlation *= 1.0 - intensity
    np.fill_diagonal(correlation, diagonal)
    return np.asarray(correlation * deviation[:, None] * deviation)


def ordered_factor(
    covariance: NDArray[np.float64], added: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return an order of the channels and the factor A of their covariance C in that order, C = A A^T.

    A is upper triangular: A[k, k]**2 is the variance of channel k given all channels after it. Channels of large
    variance come first. ``added`` [K], above 0, is added to the variances.
    """
    order = np.argsort(-covariance.diagonal(), kind="stable")
    backward = order[::-1]
    lower = np.linalg.cholesky(covariance[np.ix_(backward, backward)] + np.diag(added[backward]))
    return order, np.asarray(lower[::-1, ::-1], dtype=np.float64)


def channel_groups(channels: int) -> Iterator[slice]:
    """Yield groups of at most 4096 neighbouring channels: covariances between groups are not estimated."""
    for start in range(0, channels, _GROUP):
        yield slice(start, min(start + _GROUP, channels))


def remaining_variances(rows: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return, for each channel [K], its variance given the channels of its group that come after it, larger ones first.

    Rows are of shape [n, K].
    """
    result = np.empty(rows.shape[1])
    for group in channel_groups(rows.shape[1]):
        covariance = shrunk_covariance(rows[:, group])
        # Of its own variance: what is added to a channel that hardly varies must stay small in its fine codes.
        added = _DAMPING * covariance.diagonal() + (_SMALLEST_PART * covariance.diagonal().max() or 1.0)
        order, factor = ordered_factor(covariance, added)
        result[group.start + order] = np.square(factor.diagonal())
    return result
