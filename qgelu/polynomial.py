"""Integer polynomials for the tail g, and what is proved about them.

One polynomial serves a *family* of activations and one width of arithmetic. The sigmoid family serves every
slope a > 0, since t * sigmoid(-a t) = g_silu(a t) / a.

The coefficients are committed in :mod:`qgelu.tail_coefficients` (a script under ``bench/`` fits them); here they
become a :class:`TailPolynomial`, whose error is found by evaluating it at every argument.
"""

import functools
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from qgelu.activations import Activation, derivative, dip, sigmoid_slope, tail
from qgelu.tail_coefficients import COEFFICIENTS

Family = Literal["gelu", "gelu_tanh", "sigmoid"]
Lanes = Literal[16, 32]

_REPRESENTATIVE: Final[dict[Family, Activation]] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "sigmoid": "silu",
}

_FLOOR_UNITS: Final = 3
"""Arguments on either side over which a bound on |g'| is taken; rounding moves u by less than this."""


@dataclass(frozen=True)
class TailFormat:
    """The integer format of a tail polynomial's argument and fraction.

    Attributes
    ----------
    argument_bits : int
        u covers [0, cutoff) with ``2**argument_bits`` steps.
    segment_bits : int
        Leading bits of u that choose the segment.
    fraction_bits : int
        Bits of the signed fraction within the segment; every Horner step shifts right by as many.
    centre : float
        The real argument of u is (u + centre) steps: 0.5 where u comes from a floor.
    inner_limit : int
        Largest magnitude of whatever is multiplied by the fraction, so that the product fits.
    growth : float
        What rounding the argument's multiplier may add to u, in steps, at the cut-off (in proportion below it).
    """

    argument_bits: int
    segment_bits: int
    fraction_bits: int
    centre: float
    inner_limit: int
    growth: float


FORMATS: Final[dict[Lanes, TailFormat]] = {
    # int16 coefficients: 16-bit lanes.
    16: TailFormat(argument_bits=16, segment_bits=4, fraction_bits=16, centre=0.5, inner_limit=32767, growth=1.0),
    # 131071 * 2**14 < 2**31: 32-bit lanes.
    32: TailFormat(argument_bits=20, segment_bits=5, fraction_bits=15, centre=0.0, inner_limit=131071, growth=2.0**-10),
}


def horner(
    coefficients: NDArray[np.int64], fraction: NDArray[np.int64], fraction_bits: int
) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Evaluate one segment's polynomial with a floor after every product.

    Parameters
    ----------
    coefficients : int64 array of shape [..., degree + 1]
    fraction : int64 array, broadcast against the leading axes of ``coefficients``
    fraction_bits : int

    Returns
    -------
    values : int64 array
        Before the clamp at 0.
    ranges : list of (int, int)
        Smallest and largest sum after each Horner step.
    """
    degree = coefficients.shape[-1] - 1
    p = np.broadcast_to(coefficients[..., degree], fraction.shape)
    ranges = []
    for k in range(degree - 1, -1, -1):
        p = coefficients[..., k] + ((p * fraction) >> fraction_bits)
        ranges.append((int(p.min()), int(p.max())))
    return p, ranges


@dataclass(frozen=True, eq=False)
class TailPolynomial:
    """g as an integer polynomial by segments: g(t) = p(u) / gain / slope, u = t * slope / step.

    Attributes
    ----------
    family : str
    lanes : int
        16 or 32; see :data:`FORMATS`.
    cutoff : float
        T: u covers [0, T) of the family's own argument.
    gain : float
        p counts units of 1 / gain.
    coefficients : int32 array of shape [segments, degree + 1]
    """

    family: Family
    lanes: Lanes
    cutoff: float
    gain: float
    coefficients: NDArray[np.int32]

    @property
    def format(self) -> TailFormat:
        """The integer format."""
        return FORMATS[self.lanes]

    @property
    def step(self) -> float:
        """Width of one step of u in the family's argument."""
        return self.cutoff / float(1 << self.format.argument_bits)

    @functools.cached_property
    def proof(self) -> "TailProof":
        """What evaluating every argument shows."""
        return prove(self)


@dataclass(frozen=True, eq=False)
class TailProof:
    """Facts about a tail polynomial, found by evaluating it at every argument.

    Attributes
    ----------
    values : int32 array of shape [2**argument_bits]
        p(u) for every u.
    max_error : float
        Largest |p / gain - g| at the centre of every step, in real units of the family.
    error_at : tuple of float
        Upper bounds of |p / gain - g(t)| in real units when t is up to 0.5, 1.0 and 1.5 steps (plus, for the
        multiplier's rounding, up to growth * u / 2**argument_bits of a step) from the centre of step u, over all u.
    horner_ranges : tuple of (int, int)
        Smallest and largest sum after each Horner step.
    """

    values: NDArray[np.int32]
    max_error: float
    error_at: tuple[float, float, float]
    horner_ranges: tuple[tuple[int, int], ...]


DISTANCES: Final = (0.5, 1.0, 1.5)


def prove(polynomial: TailPolynomial) -> TailProof:
    """Evaluate a tail polynomial at every argument and return what that proves."""
    form = polynomial.format
    count = 1 << form.argument_bits
    offset_bits = form.argument_bits - form.segment_bits
    position = np.arange(1 << offset_bits, dtype=np.int64)
    fraction = (position << (form.fraction_bits - offset_bits)) - (1 << (form.fraction_bits - 1))
    rows = [horner(segment, fraction, form.fraction_bits) for segment in polynomial.coefficients.astype(np.int64)]
    values = np.maximum(np.concatenate([row[0] for row in rows]), 0)
    ranges = tuple(
        (min(row[1][k][0] for row in rows), max(row[1][k][1] for row in rows)) for k in range(len(rows[0][1]))
    )
    activation = _REPRESENTATIVE[polynomial.family]
    argument = (np.arange(count) + form.centre) * polynomial.step
    error = np.abs(values / polynomial.gain - tail(argument, activation))
    # g' = 1 - f' by equation (1); its largest magnitude nearby bounds what a wrong argument costs.
    slope = np.abs(1.0 - derivative(argument, activation))
    nearby = slope.copy()
    for shift in range(1, _FLOOR_UNITS + 1):
        nearby[shift:] = np.maximum(nearby[shift:], slope[:-shift])
        nearby[:-shift] = np.maximum(nearby[:-shift], slope[shift:])
    nearby[:_FLOOR_UNITS] = np.maximum(nearby[:_FLOOR_UNITS], 0.5)  # |g'(0)| = 1/2, the supremum there
    growing = form.growth * np.arange(count) / count
    # Past the cut-off u stays at its last value while g falls to 0 from g(T), or from its peak if that is further.
    edge = float(tail(max(argument[-1] - 2 * _FLOOR_UNITS * polynomial.step, -dip(activation).x), activation))
    last = float(values[-1]) / polynomial.gain
    beyond = max(last, abs(edge - last))
    at = [max(float(np.max(nearby * (distance + growing) * polynomial.step + error)), beyond) for distance in DISTANCES]
    return TailProof(values.astype(np.int32), float(error.max()), (at[0], at[1], at[2]), ranges)


def tail_error(polynomial: TailPolynomial, distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a bound on the tail's error when the argument is ``distance`` steps off.

    The true bound is convex in the distance (a maximum of linear functions), so linear interpolation between
    :data:`DISTANCES` is an upper bound too. Beyond them, |g'| <= 1/2 everywhere.
    """
    further = 0.5 * np.maximum(distance - DISTANCES[-1], 0.0) * polynomial.step
    return np.interp(distance, DISTANCES, polynomial.proof.error_at) + further


def family_of(activation: Activation) -> Family:
    """Return the family whose polynomial serves an activation."""
    if activation == "gelu":
        return "gelu"
    return "gelu_tanh" if activation == "gelu_tanh" else "sigmoid"


def family_slope(activation: Activation, alpha: float) -> float:
    """Return a in g(t) = g_family(a t) / a."""
    return sigmoid_slope(activation, alpha) if family_of(activation) == "sigmoid" else 1.0


@functools.cache
def tail_polynomial(family: Family, lanes: Lanes) -> TailPolynomial:
    """Return the committed polynomial of a family in 16- or 32-bit lanes."""
    entry: dict[str, Any] = COEFFICIENTS[family, lanes]
    coefficients = np.array(entry["coefficients"], dtype=np.int32)
    coefficients.setflags(write=False)
    return TailPolynomial(family, lanes, entry["cutoff"], entry["gain"], coefficients)
