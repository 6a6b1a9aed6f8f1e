"""Parameters of the 16-bit-lane arithmetic: from scales to integers, and the bound of the error.

Symbols and numbers are those of docs/arithmetic.md.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qgelu.certificate import Intermediate
from qgelu.polynomial import TailPolynomial, tail_error

FRACTION_BITS: Final = 7
"""The result is formed in units of 2**-7 LSB before its one rounding."""

_MAX_SHIFT: Final = 30
# |v'| plus half of the largest shift stays below 2**31.
V_LIMIT: Final = (1 << 31) - 1 - (1 << (_MAX_SHIFT - 1))
_U16: Final = 65535

SHORT_RATIO_BITS: Final = 8
"""Significant bits of 1 + m_1 / 2**15 and 1 + m_2 / 2**15 where multipliers are short: 16 + 8 are float32's 24."""

SHORT_TAIL_BITS: Final = 9
"""Significant bits of a short m_3: with the 15 of p, 24."""

SHORT_SHIFT: Final = 6
"""Largest net right shift where multipliers are short: a branch saturates at 16 bits, so 22 bits decide a code."""

SHORT_BIAS: Final = 1 << 23
"""Largest bias where multipliers are short: a sum that float32 rounds, above 2**24 - 2**23, has saturated."""

CHANNEL_FIELDS: Final = (
    "limit",
    "left_shift",
    "linear_shift",
    "linear_multiplier",
    "argument_shift",
    "argument_multiplier",
    "tail_multiplier",
    "offset",
)


@dataclass(frozen=True, eq=False)
class NarrowParameters:
    """Integers of the 16-bit-lane arithmetic; arrays are int32 of shape [channels] (1 if per tensor).

    Attributes
    ----------
    limit : accumulator plus bias is clamped to [-limit, limit].
    left_shift : v' = v << left_shift.
    linear_shift, linear_multiplier : max(v', 0) to units of output LSB / 128: shift, then times 1 + m / 2**15.
    argument_shift, argument_multiplier : |v'| to steps of u: shift, then times 1 + m / 2**15.
    tail_multiplier : p to units of output LSB / 128: times m / 2**16.
    offset : (zero point counted from the smallest code) * 128 + 64.
    coefficients : int32 array of shape [16, 4]
    """

    limit: NDArray[np.int32]
    left_shift: NDArray[np.int32]
    linear_shift: NDArray[np.int32]
    linear_multiplier: NDArray[np.int32]
    argument_shift: NDArray[np.int32]
    argument_multiplier: NDArray[np.int32]
    tail_multiplier: NDArray[np.int32]
    offset: NDArray[np.int32]
    coefficients: NDArray[np.int32]

    def channel_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the per-channel arrays by name."""
        return {name: getattr(self, name) for name in CHANNEL_FIELDS}


def _normalising_shift(ratio: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return e such that ratio * 2**e is in [1, 2)."""
    return 1 - np.frexp(ratio)[1].astype(np.int64)


def _significant(values: NDArray[np.float64], bits: int, rounding: np.ufunc) -> NDArray[np.float64]:
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(rounding(np.ldexp(mantissa, bits)), exponent - bits))


def short_at_least(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the least ratio that short multipliers hold exactly and that is not below the one given."""
    return _significant(ratio, SHORT_RATIO_BITS, np.ceil)


def short_at_most(ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest ratio that short multipliers hold exactly and that is not above the one given."""
    return _significant(ratio, SHORT_RATIO_BITS, np.floor)


def is_short(parameters: NarrowParameters) -> bool:
    """Return whether float32 computes (12) to (18) exactly up to saturation: docs/arithmetic.md, section 3."""
    p = parameters
    ratios = np.concatenate([p.linear_multiplier, p.argument_multiplier])
    shifts = np.maximum(p.linear_shift, p.argument_shift) - p.left_shift
    tail = p.tail_multiplier.astype(np.float64)
    return bool(
        np.all(ratios % (1 << (16 - SHORT_RATIO_BITS)) == 0)
        and np.all(_significant(tail, SHORT_TAIL_BITS, np.rint) == tail)
        and shifts.max() <= SHORT_SHIFT
    )


def smallest_output_scale(tail: TailPolynomial, slope: float) -> float:
    """Return an output scale from which on this arithmetic works.

    Below it the tail's multiplier leaves 16 bits, or the tail alone exceeds what the result's 16 bits leave.
    """
    unit = float(1 << FRACTION_BITS)
    by_multiplier = unit * 65536.0 / (tail.gain * slope) / _U16
    largest_tail = float(tail.proof.values.max()) / (tail.gain * slope)
    by_result = largest_tail * unit / float(_U16 - 255 * 128 - 2)
    return 1.001 * max(by_multiplier, by_result)


def prepare(
    input_scale: NDArray[np.float64],
    output_scale: NDArray[np.float64],
    zero_offset: NDArray[np.int64],
    code_range: int,
    tail: TailPolynomial,
    slope: float,
    *,
    short: bool = False,
) -> NarrowParameters | str:
    """Return the integers for these scales, or the reason why this arithmetic cannot serve them.

    Parameters
    ----------
    input_scale, output_scale : float64 arrays of one shape [channels]
    zero_offset : int64 array of shape [channels]
        Output zero point counted from the smallest code.
    code_range : int
        Largest code minus smallest code; at most 255.
    tail : TailPolynomial
        In 16-bit lanes.
    slope : float
        a of g(t) = g_family(a t) / a.
    short : bool
        Round the multipliers to short ones.
    """
    unit = float(1 << FRACTION_BITS)
    linear_ratio = unit * input_scale / output_scale
    argument_ratio = input_scale * slope / tail.step
    if short:
        linear_ratio = _significant(linear_ratio, SHORT_RATIO_BITS, np.rint)
        argument_ratio = _significant(argument_ratio, SHORT_RATIO_BITS, np.rint)
    linear_exponent = _normalising_shift(linear_ratio)
    argument_exponent = _normalising_shift(argument_ratio)
    left = np.maximum(0, np.maximum(-linear_exponent, -argument_exponent))
    linear_shift, argument_shift = linear_exponent + left, argument_exponent + left
    tail_multiplier = np.rint(unit * 65536.0 / (output_scale * tail.gain * slope))
    if short:
        tail_multiplier = np.rint(_significant(tail_multiplier, SHORT_TAIL_BITS, np.rint))
    if np.any(np.maximum(linear_shift, argument_shift) > _MAX_SHIFT):
        return "input scale too fine for the output scale"
    largest_tail = int(tail.proof.values.max())
    if np.any(tail_multiplier > _U16) or np.any(
        largest_tail * np.minimum(tail_multiplier, 1e6) / 65536.0 > _U16 - code_range * 128
    ):
        return "output scale too fine"
    if np.any(tail_multiplier < 1):
        return "output scale too coarse"
    # Beyond 65536 << shift both branches have saturated: clamping there changes nothing. One step of the
    # accumulator may be more than that; the smallest limit is still one step.
    needed = np.int64(65536) << np.maximum(linear_shift, argument_shift)
    if np.any((needed > V_LIMIT) & (left > 0)):
        return "input scale too coarse for the output scale"
    limit = np.maximum(np.minimum(needed, V_LIMIT) >> left, 1)
    as_multiplier = np.minimum(np.rint((linear_ratio * np.exp2(linear_exponent) - 1.0) * 32768.0), 32767)
    as_argument = np.minimum(np.rint((argument_ratio * np.exp2(argument_exponent) - 1.0) * 32768.0), 32767)
    return NarrowParameters(
        limit=limit.astype(np.int32),
        left_shift=left.astype(np.int32),
        linear_shift=linear_shift.astype(np.int32),
        linear_multiplier=as_multiplier.astype(np.int32),
        argument_shift=argument_shift.astype(np.int32),
        argument_multiplier=as_argument.astype(np.int32),
        tail_multiplier=tail_multiplier.astype(np.int32),
        offset=(zero_offset * 128 + 64).astype(np.int32),
        coefficients=tail.coefficients,
    )


def check(
    parameters: NarrowParameters,
    input_scale: NDArray[np.float64],
    output_scale: NDArray[np.float64],
    zero_offset: NDArray[np.int64],
    code_range: int,
    tail: TailPolynomial,
    slope: float,
) -> str | None:
    """Return why given integers are unfit, or None: what :func:`error_bound` takes for granted.

    Parameters are those of :func:`prepare`.
    """
    p = parameters
    if code_range > 255:
        return "16-bit lanes serve codes of up to 8 bits"
    if p.coefficients.shape != (16, 4) or np.any(np.abs(p.coefficients) > 32767):
        return "coefficients are not 16 rows of 4 within int16"
    for name, low, high in (
        ("limit", 1, V_LIMIT),
        ("left_shift", 0, _MAX_SHIFT),
        ("linear_shift", 0, _MAX_SHIFT),
        ("linear_multiplier", 0, 32767),
        ("argument_shift", 0, _MAX_SHIFT),
        ("argument_multiplier", 0, 32767),
        ("tail_multiplier", 1, _U16),
    ):
        values = getattr(p, name)
        if np.any((values < low) | (values > high)):
            return f"{name} leaves {low} to {high}"
    if not np.array_equal(p.offset, zero_offset * 128 + 64):
        return "offset does not belong to the zero point"
    needed = np.int64(65536) << np.maximum(p.linear_shift, p.argument_shift).astype(np.int64)
    reached = p.limit.astype(np.int64) << p.left_shift.astype(np.int64)
    if np.any((reached < needed) & ((p.limit < V_LIMIT) | (p.left_shift > 0))):
        return "limit clamps accumulators that have not saturated"
    largest = int(tail.proof.values.max()) * p.tail_multiplier.astype(np.int64)
    if np.any(largest >> 16 > _U16 - code_range * 128):
        return "tail too large for the result's 16 bits"
    return None


def error_bound(
    parameters: NarrowParameters,
    input_scale: NDArray[np.float64],
    output_scale: NDArray[np.float64],
    code_range: int,
    tail: TailPolynomial,
    slope: float,
) -> NDArray[np.float64]:
    """Return, per channel, a bound of |code - real answer| in LSB: docs/arithmetic.md, equation (19)."""
    unit = float(1 << FRACTION_BITS)
    p = parameters
    shift = (p.linear_shift - p.left_shift).astype(np.float64)
    real_linear = unit * input_scale / output_scale * np.exp2(shift)
    linear_slack = np.abs(real_linear - (1.0 + p.linear_multiplier / 32768.0))
    # f(x) >= x / 2 and f(x) >= x - max g: a linear part beyond this is a saturated code.
    largest_tail = float(tail.proof.values.max()) / (tail.gain * slope)
    span = float(code_range + 1)
    largest_linear = unit * np.minimum(2.0 * span, span + largest_tail / output_scale)
    widest_linear = real_linear + linear_slack
    linear = np.where(p.linear_shift > 0, 0.5 * widest_linear, 0.0) + linear_slack * largest_linear / real_linear
    shift = (p.argument_shift - p.left_shift).astype(np.float64)
    real_argument = input_scale * slope / tail.step * np.exp2(shift)
    argument_slack = np.abs(real_argument - (1.0 + p.argument_multiplier / 32768.0)) * 65536.0
    distance = (
        np.where(p.argument_shift > 0, 0.5 * real_argument + argument_slack / 131072.0, 0.0)
        + 0.5
        + np.maximum(argument_slack - 1.0, 0.0)
    )
    real_multiplier = unit * 65536.0 / (output_scale * tail.gain * slope)
    multiplier = np.abs(real_multiplier - p.tail_multiplier) * float(tail.proof.values.max()) / 65536.0
    floors = 1.0  # the two floors err in opposite directions by less than one unit each
    return np.asarray(
        0.5 + (linear + multiplier + floors) / unit + tail_error(tail, distance) / slope / output_scale + 1e-9
    )


def intermediates(
    parameters: NarrowParameters, tail: TailPolynomial, accumulator: tuple[int, int]
) -> tuple[Intermediate, ...]:
    """Return the range of every intermediate against its width."""
    p = parameters
    limit, left = p.limit.astype(np.int64), p.left_shift.astype(np.int64)
    widest = limit << left
    halves = (np.int64(1) << np.maximum(p.linear_shift, p.argument_shift).astype(np.int64)) >> 1
    largest = int(tail.proof.values.max())
    horner = tail.proof.horner_ranges
    return (
        Intermediate("accumulator + bias, clamped", accumulator[0], accumulator[1], 32, True),
        Intermediate("shifted left", int(-widest.max()), int(widest.max()), 32, True),
        Intermediate("magnitude plus half", 0, int((widest + halves).max()), 31, False),
        Intermediate("linear branch", 0, _U16, 16, False),
        Intermediate("linear branch times multiplier", 0, _U16 * int(p.linear_multiplier.max()), 31, False),
        Intermediate("argument", 0, _U16, 16, False),
        Intermediate("argument times multiplier", 0, _U16 * int(p.argument_multiplier.max()), 31, False),
        *(Intermediate(f"tail, Horner step {k + 1}", low, high, 16, True) for k, (low, high) in enumerate(horner)),
        Intermediate("tail", 0, largest, 15, False),
        Intermediate("tail times multiplier", 0, largest * int(p.tail_multiplier.max()), 31, False),
        Intermediate("result before the last shift", 0, _U16, 16, False),
    )
