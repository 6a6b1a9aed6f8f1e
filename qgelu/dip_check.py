"""A plan near the activation's dip: largest error, and where the integers put the minimum."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qgelu.activations import dip, evaluate
from qgelu.plan import Plan
from qgelu.qparams import AccumulatorParams

DIP_INTERVAL: Final = (-1.5, -0.25)
"""x around the dip of the GELUs; wider where another activation's dip needs it."""

_ROWS: Final = 1024
"""Accumulators that are tried in each channel, at most."""

_BLOCK: Final = 256
"""Channels worked on at once."""


@dataclass(frozen=True)
class DipErrors:
    """What a plan's codes do for x in ``interval``.

    Attributes
    ----------
    interval : tuple of float
    inputs : int
        Codes or accumulators tried, over all channels; 0 if none lies in the interval.
    max_error_lsb : float
        Largest distance of a code from the real answer (saturated to the codes), in output LSB.
    channel, value : int or None
        Where that is: channel and code, or channel and accumulator plus bias.
    certificate_lsb : float
        What the plan's certificate allows.
    float_minimum, float_minimum_at : float
        The dip itself.
    minimum : float or None
        The lowest output that the integers give in the interval, as a real number. Per channel: of the channel
        where it is furthest from the dip, among those whose codes reach the dip.
    minimum_from, minimum_to : float or None
        Smallest and largest x that give it.
    minimum_channel : int or None
    channels_above_dip : int
        Channels whose output codes end above the dip, because calibration saw nothing lower there.
    """

    interval: tuple[float, float]
    inputs: int
    max_error_lsb: float
    channel: int | None
    value: int | None
    certificate_lsb: float
    float_minimum: float
    float_minimum_at: float
    minimum: float | None
    minimum_from: float | None
    minimum_to: float | None
    minimum_channel: int | None
    channels_above_dip: int


@dataclass(frozen=True)
class _Samples:
    """Inputs and answers of some channels, each of shape [rows, channels]."""

    values: NDArray[np.int64]
    x: NDArray[np.float64]
    codes: NDArray[np.int64]
    exact: NDArray[np.float64]
    inside: NDArray[np.bool_]


def dip_interval(plan: Plan) -> tuple[float, float]:
    """Return :data:`DIP_INTERVAL`, widened so that it surrounds the dip of the plan's activation."""
    place = dip(plan.activation, plan.alpha).x
    return min(DIP_INTERVAL[0], 1.5 * place), max(DIP_INTERVAL[1], place / 3.0)


def channel_array(value: Any, channels: int) -> NDArray[np.float64]:
    """Return a scale or zero point as float64 of shape [channels]."""
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (channels,))


def _values_between(plan: Plan, interval: tuple[float, float], channels: int) -> NDArray[np.int64]:
    """Return the inputs [rows, channels] over the interval: every code, or a choice of accumulators."""
    scale = channel_array(plan.input.scale, channels)
    if isinstance(plan.input, AccumulatorParams):
        with np.errstate(over="ignore"):
            first = np.clip(np.ceil(interval[0] / scale), -(2.0**31), 0.0)
            last = np.clip(np.floor(interval[1] / scale), -(2.0**31), 0.0)
        rows = int(min(_ROWS, max(1.0, float((last - first).max()) + 1.0)))
        return np.rint(np.linspace(first, np.maximum(first, last), rows)).astype(np.int64)
    codes = np.arange(plan.input.qmin, plan.input.qmax + 1, dtype=np.int64)
    return np.repeat(codes[:, None], channels, axis=1)


def _sample(plan: Plan, interval: tuple[float, float], channels: int) -> _Samples:
    values = _values_between(plan, interval, channels)
    zero = 0.0 if isinstance(plan.input, AccumulatorParams) else channel_array(plan.input.zero_point, channels)
    x = channel_array(plan.input.scale, channels) * (values - zero)
    answers = plan(values.astype(plan.input_dtype)).astype(np.int64)
    exact = np.empty(x.shape)
    output_scale = channel_array(plan.output.scale, channels)
    for start in range(0, channels, _BLOCK):
        part = np.s_[:, start : start + _BLOCK]
        exact[part] = evaluate(x[part], plan.activation, plan.alpha) / output_scale[start : start + _BLOCK]
    exact = np.clip(exact + channel_array(plan.output.zero_point, channels), plan.output.qmin, plan.output.qmax)
    return _Samples(values, x, answers, exact, (x >= interval[0]) & (x <= interval[1]))


def check_dip(plan: Plan) -> DipErrors:
    """Try a plan's inputs near the dip: every code, or up to 1,024 accumulators in each channel."""
    interval, bottom = dip_interval(plan), dip(plan.activation, plan.alpha)
    channels = plan.channels or 1
    samples = _sample(plan, interval, channels)
    error = np.where(samples.inside, np.abs(samples.codes - samples.exact), -1.0)
    row, channel = np.unravel_index(int(np.argmax(error)), error.shape)
    tried = bool(samples.inside.any())
    scale = channel_array(plan.output.scale, channels)
    zero = channel_array(plan.output.zero_point, channels)
    above = (plan.output.qmin - zero) * scale > bottom.y + 0.5 * scale
    minimum, at = _minimum(samples, scale, zero, above, bottom.y)
    return DipErrors(
        interval=interval,
        inputs=_distinct(samples),
        max_error_lsb=max(0.0, float(error[row, channel])),
        channel=int(channel) if tried else None,
        value=int(samples.values[row, channel]) if tried else None,
        certificate_lsb=plan.certificate.max_error_lsb,
        float_minimum=bottom.y,
        float_minimum_at=bottom.x,
        minimum=minimum if tried else None,
        minimum_from=float(at[0].min()) if tried else None,
        minimum_to=float(at[0].max()) if tried else None,
        minimum_channel=at[1] if tried else None,
        channels_above_dip=int(np.count_nonzero(above)),
    )


def _distinct(samples: _Samples) -> int:
    first = samples.inside[:1].sum()
    steps = (np.diff(samples.values, axis=0) != 0) & samples.inside[1:]
    return int(first + steps.sum())


def _minimum(
    samples: _Samples,
    scale: NDArray[np.float64],
    zero: NDArray[np.float64],
    above: NDArray[np.bool_],
    lowest: float,
) -> tuple[float, tuple[NDArray[np.float64], int]]:
    """Return the lowest output furthest from the dip, the x that give it, and its channel."""
    codes = np.where(samples.inside, samples.codes, np.iinfo(np.int64).max)
    least = codes.min(axis=0)
    usable = samples.inside.any(axis=0)
    reaching = usable & ~above
    candidates = np.flatnonzero(reaching if reaching.any() else usable)
    if candidates.size == 0:
        return math.nan, (np.empty(0), -1)
    real = scale[candidates] * (least[candidates] - zero[candidates])
    at = int(np.argmax(np.abs(real - lowest)))
    channel = int(candidates[at])
    return float(real[at]), (samples.x[codes[:, channel] == least[channel], channel], channel)
