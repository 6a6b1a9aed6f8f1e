"""Which activation a function is, from its values on a grid."""

import functools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qgelu.activations import DEFAULT_ALPHA, Activation, evaluate

Values = NDArray[np.float64]

TOLERANCE: Final = 1e-3
"""Largest error at which a function is taken for an activation (absolute, for |x| up to 4)."""

_RELATIVE_TOLERANCE: Final = 2.0**-12
"""The same for larger |x|: constants rounded to float16 are off by as much, times x."""

_NEAR: Final = 0.1
"""Largest error at which a function is worth mentioning."""

_CORE: Final = 12.0
_DISTINCTION: Final = 1.5
"""How many times farther the second best activation must be than the best one."""


@functools.cache
def grid() -> Values:
    """Return the points of comparison: dense where the dip is, fine around 0, a few up to 1e5."""
    small = np.geomspace(1e-5, 0.5, 40)
    large = np.array([13.0, 16.0, 24.0, 40.0, 100.0, 1e3, 1e4, 1e5])
    sides = np.concatenate([small, large])
    points = np.unique(np.concatenate([-sides, np.linspace(-_CORE, _CORE, 481), sides]))
    points.flags.writeable = False
    return points


@functools.cache
def _core() -> NDArray[np.bool_]:
    return np.asarray(np.abs(grid()) <= _CORE)


@functools.cache
def _reference(activation: Activation) -> Values:
    return evaluate(grid(), activation)


@dataclass(frozen=True)
class Comparison:
    """How a function compares with the activation closest to it."""

    activation: Activation
    alpha: float
    error: float
    """Largest difference for |x| up to 12."""
    at: float
    """Where that is."""
    accepted: bool
    """Within tolerance, and no other activation comes as close."""
    rival: Activation | None
    """The activation that comes as close, if one does."""

    @property
    def near(self) -> bool:
        """Whether it is worth mentioning although it is not accepted."""
        return self.error <= _NEAR


def compare(values: Values) -> Comparison | None:
    """Compare a function's values on :func:`grid` with the four activations.

    Returns
    -------
    Comparison or None
        None if the values are not finite for |x| up to 12. For larger |x| a function may overflow:
        (exp(x) - 1) / (exp(x) + 1) does, where it stands for tanh.
    """
    if not np.all(np.isfinite(values[_core()])):
        return None
    candidates: list[tuple[Activation, float, Values]] = [
        ("gelu", DEFAULT_ALPHA, _reference("gelu")),
        ("gelu_tanh", DEFAULT_ALPHA, _reference("gelu_tanh")),
    ]
    alpha = _fit_alpha(values)
    if alpha == 1.0:
        candidates.append(("silu", DEFAULT_ALPHA, _reference("silu")))
    elif alpha is not None:
        candidates.append(("quick_gelu", alpha, evaluate(grid(), "quick_gelu", alpha)))
    shape = without_gain(values)  # a constant factor must not decide between gelu and gelu_tanh
    ranked = sorted(candidates, key=lambda candidate: _largest(shape - candidate[2])[0])
    activation, slope, reference = ranked[0]
    error, at = _largest(values - reference)
    accepted = _within_tolerance(values, reference)
    rival = None
    if accepted:
        second, _, other = ranked[1]
        if _largest(shape - other)[0] < _DISTINCTION * _largest(shape - reference)[0]:
            accepted, rival = False, second
    return Comparison(activation, slope, error, at, accepted, rival)


def is_gated(values: Values) -> bool:
    """Say whether a function has the form of c x times a gate that opens from 0 to 1 along x."""
    low, zero, middle, high = (_at(values, x) for x in (-_CORE, 0.0, 0.5 * _CORE, _CORE))
    if not (math.isfinite(low) and math.isfinite(high)) or abs(high) < 1e-3 * _CORE:
        return False
    linear = abs(middle / high - 0.5) < 0.05
    return linear and abs(zero) < 1e-6 * abs(high) and abs(low / high) < 0.01


def without_gain(values: Values) -> Values:
    """Return the values divided by f(x) / x at a large x; as they are, if that is 0 or not finite."""
    for x in (100.0, _CORE):
        gain = _at(values, x) / x
        if math.isfinite(gain) and abs(gain) > 1e-6:
            return values / gain
    return values


def _at(values: Values, x: float) -> float:
    """Return the value at a point of the grid."""
    return float(values[int(np.searchsorted(grid(), x))])


def _largest(difference: Values) -> tuple[float, float]:
    """Return the largest magnitude within the core, and where it is."""
    magnitude = np.where(_core(), np.abs(difference), 0.0)
    place = int(np.argmax(magnitude))
    return float(magnitude[place]), float(grid()[place])


def _within_tolerance(values: Values, reference: Values) -> bool:
    limit = np.maximum(TOLERANCE, _RELATIVE_TOLERANCE * np.abs(grid()))
    difference = np.abs(values - reference)
    return bool(np.all((difference <= limit) | ~np.isfinite(values)))


def _fit_alpha(values: Values) -> float | None:
    """Return the alpha for which x sigmoid(alpha x) fits best, None if there is none.

    Where s = f(x) / x is a sigmoid, log(s / (1 - s)) / x is alpha at every point.
    """
    x = grid()
    with np.errstate(all="ignore"):
        gate = values / x
        usable = _core() & (gate > 0.02) & (gate < 0.98)
        if np.count_nonzero(usable) < 3:
            return None
        slopes = np.log(gate[usable] / (1.0 - gate[usable])) / x[usable]
    slope = float(np.median(slopes))
    if not (math.isfinite(slope) and slope > 0.0):
        return None
    if abs(slope - 1.0) <= 1e-5:
        return 1.0
    # The model holds a float32: say 1.702, not 1.7020000219345093.
    return float(str(np.float32(slope)))
