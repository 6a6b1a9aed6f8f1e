"""Weights to integers per output channel, each rounding error made up for by the weights that are rounded after it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibration.covariance import channel_groups, ordered_factor, shrunk_covariance

WEIGHT_LIMITS: Final = {8: 127, 7: 63, 4: 7}
"""Largest code by weight bits. Weights are symmetric. 7 bits: on x86 CPUs without VNNI, two products of u8 and s8 are
summed in int16 (vpmaddubsw), which saturates; 2 * 255 * 63 = 32130 stays below 32768, and 2 * 255 * 127 does not."""

_DAMPING: Final = 0.1
"""Times the mean variance, added to each: the best of 0.01 to 0.3 on rows apart from those of the covariance."""
_BLOCK: Final = 128
_PARTS: Final = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6)
"""Parts of a column's largest weight that the codes may cover."""


@dataclass(frozen=True, eq=False)
class RoundedWeight:
    """codes * scale stands for a weight.

    Parameters
    ----------
    codes : int8 array of shape [K, N]
    scale : float64 array of shape [N]
    """

    codes: NDArray[np.int8]
    scale: NDArray[np.float64]


def weight_scales(weight: NDArray[np.float64], variance: NDArray[np.float64], limit: int) -> NDArray[np.float64]:
    """Return the scale [N] of each column of a weight [K, N] for codes up to ``limit``.

    The part of the column's largest weight that is covered is the one of the least error of nearest rounding, each row
    weighted by its input's variance [K]. A column of zeros gets scale 1.
    """
    largest = np.abs(weight).max(axis=0)
    largest = np.where(largest > 0.0, largest, float(limit))
    best, least = largest / limit, np.full(weight.shape[1], np.inf)
    for part in _PARTS:
        scale = part * largest / limit
        rest = weight - np.clip(np.rint(weight / scale), -limit, limit) * scale
        error = variance @ np.square(rest)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    return best


def compensated_codes(weight: NDArray[np.float64], covariance: NDArray[np.float64], limit: int) -> NDArray[np.int8]:
    """Return codes up to ``limit`` of a weight [K, N], in units of its codes, for inputs of that covariance [K, K].

    Rows are rounded one after the other. With C = A A^T as in :func:`calibration.covariance.ordered_factor`, the
    error that rows j < k have left is made up for in row k:

        row k <- row k + sum over j < k of (A[j, k] / A[k, k]) * (row j - rounded row j)

    then to the nearest integer. This is GPTQ (Frantar et al. 2023) in the form of LDLQ (Chee et al. 2023, QuIP,
    equation 2; theorem 6 there: both give the same integers), which needs no inverse.
    """
    mean = float(covariance.diagonal().mean())
    order, factor = ordered_factor(covariance, np.full(len(covariance), _DAMPING * mean if mean > 0.0 else 1.0))
    feedback = factor / factor.diagonal()
    ordered = weight[order]
    codes, rest = np.empty_like(ordered), np.empty_like(ordered)
    for start in range(0, len(order), _BLOCK):
        stop = min(start + _BLOCK, len(order))
        wanted = ordered[start:stop] + feedback[:start, start:stop].T @ rest[:start]
        for k in range(start, stop):
            row = wanted[k - start] + feedback[start:k, k] @ rest[start:k]
            codes[k] = np.clip(np.rint(row), -limit, limit)
            rest[k] = ordered[k] - codes[k]
    result = np.empty(weight.shape, np.int8)
    result[order] = codes.astype(np.int8)
    return result


def round_weight(
    weight: NDArray[np.float64],
    rows: NDArray[Any],
    bits: int,
    allowed: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> RoundedWeight:
    """Return the integers of a weight [K, N] that keep x @ weight, up to a constant, for rows x like these, [n, K].

    Channels further apart than :func:`calibration.covariance.channel_groups` do not make up for each other.
    ``allowed`` gives the scales [N] to use instead of some, none of them finer.
    """
    limit = WEIGHT_LIMITS[bits]
    scale = weight_scales(weight, np.var(rows, axis=0, dtype=np.float64), limit)
    scale = scale if allowed is None else allowed(scale)
    codes = np.empty(weight.shape, np.int8)
    for group in channel_groups(len(weight)):
        codes[group] = compensated_codes(weight[group] / scale, shrunk_covariance(rows[:, group]), limit)
    return RoundedWeight(codes, scale)
