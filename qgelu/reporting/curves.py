"""The activation's curve around the dip, as the integers of a model's own plans give it."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from qgelu.activations import dip, evaluate
from qgelu.dip_check import dip_interval
from qgelu.pipeline import QuantizedSite
from qgelu.reporting.content import Curve, Scope
from qgelu.reporting.site_quality import integer_answer

CURVE_BITS: Final = (4, 6, 8)

_POINTS: Final = 481
_ENDS: Final = (-4.0, 1.0)
"""In units of the dip's distance from 0: from -3 to 0.75 for gelu."""

_DIGITS: Final = 6


def _numbers(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(float(value), _DIGITS) for value in values)


def make_curve(site: QuantizedSite, scope: Scope) -> Curve:
    """Return the curve of one site's plan; per channel, of the channel with the median output scale."""
    plan = site.plan
    bottom, interval = dip(plan.activation, plan.alpha), dip_interval(plan)
    x = np.linspace(_ENDS[0] * abs(bottom.x), _ENDS[1] * abs(bottom.x), _POINTS)
    channel = None
    lsb, zero = float(np.atleast_1d(plan.output.scale)[0]), int(np.atleast_1d(plan.output.zero_point)[0])
    if plan.channels is None:
        answer = integer_answer(plan, x)
    else:
        scales = np.broadcast_to(plan.output.scale, (plan.channels,))
        channel = int(np.argsort(scales)[scales.size // 2])
        lsb = float(scales[channel])
        zero = int(np.broadcast_to(plan.output.zero_point, scales.shape)[channel])
        answer = integer_answer(plan, np.repeat(x[:, None], plan.channels, axis=1))[:, channel]
    exact = evaluate(x, plan.activation, plan.alpha)
    inside = (x >= interval[0]) & (x <= interval[1])
    lowest = float(answer.min())
    at = x[answer == lowest]
    return Curve(
        plan.activation,
        plan.alpha,
        scope,
        site.bits,
        site.name,
        channel,
        _numbers(x),
        _numbers(exact),
        _numbers(answer),
        lsb,
        float(np.abs(answer - exact)[inside].max()),
        interval,
        lowest,
        float(at.min()),
        float(at.max()),
        zero - plan.output.qmin,
    )


def model_curves(sites: tuple[QuantizedSite, ...], scope: Scope) -> tuple[Curve, ...]:
    """Return one curve for each variant of the activation among the sites that got the scope."""
    first: dict[tuple[str, float], QuantizedSite] = {}
    for site in sites:
        if site.scope == scope:
            first.setdefault((site.activation, site.alpha), site)
    return tuple(make_curve(site, scope) for site in first.values())
