"""What has been proved about a plan."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from qgelu.activations import Activation, evaluate
from qgelu.correct_rounding import nearest
from qgelu.qparams import QParams

ENUMERATION_LIMIT: Final = 1 << 20
"""Largest number of inputs, over all channels, that a certificate enumerates; beyond it the bound is analytic."""

_CHUNK: Final = 1 << 18


@dataclass(frozen=True)
class Intermediate:
    """Range of one intermediate against the width that holds it.

    Attributes
    ----------
    name : str
    minimum, maximum : int
        Reached or, where the proof is analytic, never left.
    bits : int
        Declared width.
    signed : bool
    """

    name: str
    minimum: int
    maximum: int
    bits: int
    signed: bool

    @property
    def fits(self) -> bool:
        """Whether the range lies within the declared width."""
        low = -(1 << (self.bits - 1)) if self.signed else 0
        high = (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1
        return low <= self.minimum and self.maximum <= high


@dataclass(frozen=True)
class WorstCase:
    """An input at which the largest error occurs.

    Attributes
    ----------
    channel : int
        0 for plans per tensor.
    value : int
        The input code, or the accumulator plus bias.
    code : int
        What the plan answers.
    exact : float
        The real answer in LSB, zero point added and saturated to the codes.
    """

    channel: int
    value: int
    code: int
    exact: float


@dataclass(frozen=True)
class Certificate:
    """What has been proved about a plan.

    Attributes
    ----------
    max_error_lsb : float
        No input's code is further than this from the real answer, in output LSB (0.5 is correct rounding). Real
        answers beyond the codes count as the nearest code.
    proof : str
        "enumerated": every input was tried and the error is reached; "bounded": the sum of the largest errors of
        every step, which is not necessarily reached.
    misrounded : int or None
        Enumerated inputs, over all channels, whose code is not the correctly rounded one; None if not enumerated.
    inputs : int or None
        How many inputs were enumerated: every code, or every sum that is not clamped.
    worst_case : WorstCase or None
        None if not enumerated.
    admitted : tuple of (int, int)
        Smallest and largest input (code, or accumulator plus bias) that the error holds for. Accumulators
        beyond it are clamped to it.
    intermediates : tuple of Intermediate
    """

    max_error_lsb: float
    proof: Literal["enumerated", "bounded"]
    misrounded: int | None
    inputs: int | None
    worst_case: WorstCase | None
    admitted: tuple[int, int]
    intermediates: tuple[Intermediate, ...]


@dataclass(frozen=True)
class Enumeration:
    """Result of trying every input of a plan."""

    max_error_lsb: float
    misrounded: int
    inputs: int
    worst_case: WorstCase


def exact_answer(
    x: NDArray[np.float64], output: QParams, channel: int, activation: Activation, alpha: float
) -> NDArray[np.float64]:
    """Return f(x) / scale + zero_point of one channel, saturated to the codes, in float64 LSB."""
    scale = float(np.atleast_1d(output.scale)[channel if output.per_channel else 0])
    zero_point = int(np.atleast_1d(output.zero_point)[channel if output.per_channel else 0])
    return np.clip(evaluate(x, activation, alpha) / scale + zero_point, output.qmin, output.qmax)


def _chunks(low: int, high: int) -> Iterator[NDArray[np.int64]]:
    for start in range(low, high + 1, _CHUNK):
        yield np.arange(start, min(start + _CHUNK, high + 1), dtype=np.int64)


def enumerate_inputs(
    run: Callable[[NDArray[np.int64], int], NDArray[Any]],
    ranges: list[tuple[int, int]],
    scales: NDArray[np.float64],
    output: QParams,
    activation: Activation,
    alpha: float,
    ends: tuple[int, ...] = (),
) -> Enumeration:
    """Try every input of every channel.

    Parameters
    ----------
    run : callable
        Given values (int64, the codes less zero point or the accumulators plus bias) and a channel: the codes.
    ranges : list of (int, int)
        Smallest and largest value of each channel.
    scales : float64 array of shape [channels]
        Input scale of each channel.
    ends : tuple of int
        Values beyond the ranges, where the code stays what it is at the range's end while f goes on to its
        limit: tried for the error too. f is monotonic beyond the ranges, so nothing between them is worse.
    """
    zero_points = np.broadcast_to(np.asarray(output.zero_point, dtype=np.int64), scales.shape)
    output_scales = np.broadcast_to(np.asarray(output.scale, dtype=np.float64), scales.shape)
    worst, worst_case, misrounded, count = -1.0, WorstCase(0, 0, 0, 0.0), 0, 0
    for channel, (low, high) in enumerate(ranges):
        zero_point, output_scale = int(zero_points[channel]), float(output_scales[channel])
        for values in (*_chunks(low, high), np.array(ends, dtype=np.int64)):
            if values.size == 0:
                continue
            codes = run(values, channel)
            exact = exact_answer(values * scales[channel], output, channel, activation, alpha)
            error = np.abs(codes - exact)
            inside = (values >= low) & (values <= high)
            count += int(np.count_nonzero(inside))
            rounded = nearest(
                values,
                float(scales[channel]),
                output_scale,
                output.qmin - zero_point,
                output.qmax - zero_point,
                activation,
                alpha,
            )
            misrounded += int(np.count_nonzero((codes != rounded + zero_point) & inside))
            at = int(np.argmax(error))
            if error[at] > worst:
                worst = float(error[at])
                worst_case = WorstCase(channel, int(values[at]), int(codes[at]), float(exact[at]))
    return Enumeration(worst, misrounded, count, worst_case)
