r"""Float64 reference of the four activations: value, derivative, dip and tail.

Every activation has the form f(x) = x * s(x) with s(x) + s(-x) = 1, hence

    f(x) = max(x, 0) - g(|x|),    g(t) = t * s(-t)  for t >= 0.                        (1)

g is the *tail*: bounded, smooth, and negligible for large t.

=============  =========================================================================
name           s(x)
=============  =========================================================================
``gelu``       Phi(x) = erfc(-x / sqrt 2) / 2               (Hendrycks & Gimpel 2016)
``gelu_tanh``  (1 + tanh(z)) / 2 = sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3)
``quick_gelu`` sigmoid(alpha x), alpha = 1.702 unless said
``silu``       sigmoid(x)
=============  =========================================================================
"""

import functools
import math
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qgelu.errors import QGeluError

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
ACTIVATIONS: Final[tuple[Activation, ...]] = get_args(Activation)

DEFAULT_ALPHA: Final = 1.702
"""QuickGELU's usual alpha (Hendrycks & Gimpel 2016, section 2)."""

TANH_CUBIC: Final = 0.044715
"""Coefficient of x^3 in the tanh form (Hendrycks & Gimpel 2016, section 2)."""

_FLOAT32_SMALLEST: Final = float(np.finfo(np.float32).tiny)
_FLOAT32_LARGEST: Final = float(np.finfo(np.float32).max)
_SQRT_HALF: Final = math.sqrt(0.5)
_TWO_SQRT_2_OVER_PI: Final = 2.0 * math.sqrt(2.0 / math.pi)

# Frameworks' names for the same four functions.
_FRAMEWORK_NAMES: Final[dict[str, Activation]] = {
    "none": "gelu",
    "tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "swish": "silu",
}


@dataclass(frozen=True)
class Dip:
    """The minimum of an activation: its place ``x`` and its value ``y``."""

    x: float
    y: float


def canonical_name(name: str) -> Activation:
    """Return the package's name for an activation, given that name or a framework's.

    Raises
    ------
    QGeluError
        If the name is not known, or is that of a function of two steps (``gelu_10``: gelu, then a clip).
    """
    if not isinstance(name, str):
        raise QGeluError(f"activation must be a name, not {name!r}: use one of {', '.join(ACTIVATIONS)}")
    key = name.lower()
    if key == "gelu_10":
        raise QGeluError(
            "activation 'gelu_10' is gelu, then a clip to [-10, 10]: use 'gelu', with an output whose largest code "
            "stands for at most 10"
        )
    if key in ACTIVATIONS:
        return key
    if key in _FRAMEWORK_NAMES:
        return _FRAMEWORK_NAMES[key]
    raise QGeluError(f"activation {name!r} is not known: use one of {', '.join(ACTIVATIONS)}")


def check_alpha(alpha: float) -> float:
    """Return ``alpha`` as a float, or raise QGeluError unless it is a normal float32 above 0."""
    try:
        value = float(alpha)
    except (TypeError, ValueError, OverflowError):
        raise QGeluError(f"alpha must be a number, not {alpha!r}") from None
    if not _FLOAT32_SMALLEST <= value <= _FLOAT32_LARGEST:
        raise QGeluError(f"alpha must be from {_FLOAT32_SMALLEST:.3g} to {_FLOAT32_LARGEST:.3g}, not {alpha}")
    return value


def sigmoid_slope(activation: Activation, alpha: float) -> float:
    """Return a of s(x) = sigmoid(a x): ``alpha`` for quick_gelu, 1 for silu."""
    return 1.0 if activation == "silu" else alpha


def _one_minus_s(t: NDArray[np.float64], activation: Activation, alpha: float) -> NDArray[np.float64]:
    """Return s(-t) for any real t, with full relative accuracy where t > 0."""
    if activation == "gelu":
        from qgelu._erfc import erfc

        return np.asarray(0.5 * erfc(t * _SQRT_HALF), dtype=np.float64)
    z = (
        _TWO_SQRT_2_OVER_PI * (t + TANH_CUBIC * t * t * t)
        if activation == "gelu_tanh"
        else sigmoid_slope(activation, alpha) * t
    )
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(z)), dtype=np.float64)


def evaluate(x: ArrayLike, activation: Activation = "gelu", alpha: float = DEFAULT_ALPHA) -> NDArray[np.float64]:
    """Return f(x) in float64, element by element.

    Parameters
    ----------
    x : array_like
        Real numbers, any shape. Infinities give the limits (0 and +inf); NaN gives NaN.
    activation : str
        One of :data:`ACTIVATIONS`.
    alpha : float
        Slope of ``quick_gelu``; ignored by the others.
    """
    values = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        result = np.asarray(values * _one_minus_s(-values, activation, alpha))
    return np.where(np.isneginf(values), 0.0, result)


def derivative(x: ArrayLike, activation: Activation = "gelu", alpha: float = DEFAULT_ALPHA) -> NDArray[np.float64]:
    """Return f'(x) = s(x) + x s'(x) in float64. Parameters as for :func:`evaluate`."""
    values = np.asarray(x, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        s = _one_minus_s(-values, activation, alpha)
        if activation == "gelu":
            density = np.exp(-0.5 * values * values) / math.sqrt(2.0 * math.pi)
            result = s + values * density
        else:
            slope = (
                _TWO_SQRT_2_OVER_PI * (1.0 + 3.0 * TANH_CUBIC * values * values)
                if activation == "gelu_tanh"
                else sigmoid_slope(activation, alpha)
            )
            falling = _one_minus_s(values, activation, alpha)
            # Where s or 1 - s underflows, so does the whole product, however steep z is.
            steepness = np.where((s == 0.0) | (falling == 0.0), 0.0, values * s * falling * slope)
            result = s + steepness
    return np.where(np.isposinf(values), 1.0, np.where(np.isneginf(values), 0.0, result))


def tail(t: ArrayLike, activation: Activation = "gelu", alpha: float = DEFAULT_ALPHA) -> NDArray[np.float64]:
    """Return g(t) = t * s(-t) of equation (1), for t >= 0, in float64."""
    values = np.asarray(t, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        result = np.asarray(values * _one_minus_s(values, activation, alpha))
    return np.where(np.isposinf(values), 0.0, result)


@functools.lru_cache(maxsize=256)
def dip(activation: Activation = "gelu", alpha: float = DEFAULT_ALPHA) -> Dip:
    """Return the minimum of the activation, to float64 accuracy (gelu: x = -0.75179, y = -0.16997)."""
    scale = 1.0 / check_alpha(alpha) if activation == "quick_gelu" else 1.0
    low, high = -3.0 * scale, -0.1 * scale
    for _ in range(200):  # bisection: f' has one sign change there
        middle = 0.5 * (low + high)
        if float(derivative(middle, activation, alpha)) > 0.0:
            high = middle
        else:
            low = middle
    x = 0.5 * (low + high)
    return Dip(x, float(evaluate(x, activation, alpha)))
