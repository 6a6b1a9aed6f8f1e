"""Parameters of the wide arithmetic (20-bit argument, 64-bit products): from scales to integers, and the bound.

Symbols and numbers are those of docs/arithmetic.md.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qgelu.certificate import Intermediate
from qgelu.polynomial import TailPolynomial, tail_error

V_LIMIT: Final = (1 << 31) - 1
_MAX_OUTPUT_SHIFT: Final = 44
_MAX_RESULT_BITS: Final = 61
_MULTIPLIER_LIMIT: Final = (1 << 31) - 1
_MAX_COEFFICIENTS: Final = 8

CHANNEL_FIELDS: Final = (
    "limit",
    "left_shift",
    "argument_multiplier",
    "argument_shift",
    "linear_multiplier",
    "tail_multiplier",
    "offset",
    "output_shift",
)


@dataclass(frozen=True, eq=False)
class WideParameters:
    """Integers of the wide arithmetic; arrays of shape [channels] (1 if per tensor), int32 but for ``offset``.

    Attributes
    ----------
    limit : accumulator plus bias is clamped to [-limit, limit].
    left_shift : v' = v << left_shift.
    argument_multiplier, argument_shift : u = round(|v'| * m / 2**shift).
    linear_multiplier : max(v', 0) to units of output LSB / 2**output_shift.
    tail_multiplier : p to units of output LSB / 2**output_shift.
    offset : int64; (zero point counted from the smallest code) * 2**output_shift + 2**(output_shift - 1).
    output_shift : the last right shift.
    coefficients : int32 array of shape [32, degree + 1]
    """

    limit: NDArray[np.int32]
    left_shift: NDArray[np.int32]
    argument_multiplier: NDArray[np.int32]
    argument_shift: NDArray[np.int32]
    linear_multiplier: NDArray[np.int32]
    tail_multiplier: NDArray[np.int32]
    offset: NDArray[np.int64]
    output_shift: NDArray[np.int32]
    coefficients: NDArray[np.int32]

    def channel_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the per-channel arrays by name."""
        return {name: getattr(self, name) for name in CHANNEL_FIELDS}


def _furthest(
    output_scale: NDArray[np.float64], code_range: int, tail: TailPolynomial, slope: float
) -> NDArray[np.float64]:
    """Return |x| beyond which f is a saturated code (f(x) >= x / 2) and the tail is past its cut-off."""
    return np.maximum(2.0 * (code_range + 1) * output_scale, tail.cutoff / slope)


def _floor_log2(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.frexp(values)[1].astype(np.int64) - 1


def prepare(
    input_scale: NDArray[np.float64],
    output_scale: NDArray[np.float64],
    zero_offset: NDArray[np.int64],
    code_range: int,
    tail: TailPolynomial,
    slope: float,
) -> WideParameters | str:
    """Return the integers for these scales, or the reason why this arithmetic cannot serve them.

    Parameters are those of :func:`qgelu.narrow.prepare`, with a tail in 32-bit lanes.
    """
    needed = _furthest(output_scale, code_range, tail, slope) * 1.0001 / input_scale + 1.0
    limit = np.floor(np.minimum(needed, float(V_LIMIT)))
    left = np.maximum(30 - _floor_log2(limit), 0)
    scale = input_scale * np.exp2(-left)  # of v'
    argument_ratio = scale * slope / tail.step
    argument_shift = 30 - _floor_log2(argument_ratio)
    argument_multiplier = np.minimum(np.rint(argument_ratio * np.exp2(argument_shift)), _MULTIPLIER_LIMIT)
    linear_ratio = scale / output_scale
    tail_ratio = 1.0 / (output_scale * tail.gain * slope)
    largest_result = limit * input_scale / output_scale + code_range + 2.0
    output_shift = np.minimum.reduce(
        [
            np.full(limit.shape, _MAX_OUTPUT_SHIFT),
            30 - _floor_log2(linear_ratio),
            30 - _floor_log2(tail_ratio),
            _MAX_RESULT_BITS - 1 - _floor_log2(largest_result),
        ]
    )
    if np.any(output_shift < 1) or np.any(argument_shift < 1) or np.any(argument_shift > 62):
        return "scales too far apart"
    power = np.exp2(output_shift)
    linear_multiplier = np.minimum(np.rint(linear_ratio * power), _MULTIPLIER_LIMIT)
    tail_multiplier = np.minimum(np.rint(tail_ratio * power), _MULTIPLIER_LIMIT)
    one = np.int64(1)
    return WideParameters(
        limit=limit.astype(np.int32),
        left_shift=left.astype(np.int32),
        argument_multiplier=argument_multiplier.astype(np.int32),
        argument_shift=argument_shift.astype(np.int32),
        linear_multiplier=linear_multiplier.astype(np.int32),
        tail_multiplier=tail_multiplier.astype(np.int32),
        offset=(zero_offset << output_shift) + (one << (output_shift - 1)),
        output_shift=output_shift.astype(np.int32),
        coefficients=tail.coefficients,
    )


def check(
    parameters: WideParameters,
    input_scale: NDArray[np.float64],
    output_scale: NDArray[np.float64],
    zero_offset: NDArray[np.int64],
    code_range: int,
    tail: TailPolynomial,
    slope: float,
) -> str | None:
    """Return why given integers are unfit, or None: what :func:`error_bound` takes for granted.

    Parameters are those of :func:`qgelu.narrow.prepare`.
    """
    p = parameters
    if p.coefficients.shape[0] != 32 or not 2 <= p.coefficients.shape[1] <= _MAX_COEFFICIENTS:
        return f"coefficients are not 32 rows of 2 to {_MAX_COEFFICIENTS}"
    for name, low, high in (
        ("limit", 1, V_LIMIT),
        ("left_shift", 0, 30),
        ("argument_multiplier", 1, _MULTIPLIER_LIMIT),
        ("argument_shift", 1, 62),
        ("linear_multiplier", 0, _MULTIPLIER_LIMIT),
        ("tail_multiplier", 0, _MULTIPLIER_LIMIT),
        ("output_shift", 1, _MAX_OUTPUT_SHIFT),
    ):
        values = getattr(p, name)
        if np.any((values < low) | (values > high)):
            return f"{name} leaves {low} to {high}"
    shift = p.output_shift.astype(np.int64)
    if not np.array_equal(p.offset, (zero_offset << shift) + (np.int64(1) << (shift - 1))):
        return "offset does not belong to the zero point"
    reached = p.limit * input_scale
    if np.any((reached < _furthest(output_scale, code_range, tail, slope)) & (p.limit < V_LIMIT)):
        return "limit clamps accumulators that have not saturated"
    return None


def error_bound(
    parameters: WideParameters,
    input_scale: NDArray[np.float64],
    output_scale: NDArray[np.float64],
    code_range: int,
    tail: TailPolynomial,
    slope: float,
) -> NDArray[np.float64]:
    """Return, per channel, a bound of |code - real answer| in LSB: docs/arithmetic.md, equation (26)."""
    p = parameters
    power = np.exp2(p.output_shift.astype(np.float64))
    scale = input_scale * np.exp2(-p.left_shift.astype(np.float64))
    largest_tail = float(tail.proof.values.max())
    span = float(code_range + 1)
    largest_linear = np.minimum(2.0 * span, span + largest_tail / (tail.gain * slope) / output_scale)
    linear = np.abs(scale / output_scale * power - p.linear_multiplier) / power
    linear = linear * np.minimum(largest_linear * output_scale / scale, float(1 << 31))
    multiplier = np.abs(power / (output_scale * tail.gain * slope) - p.tail_multiplier) / power * largest_tail
    ratio = scale * slope / tail.step
    slack = np.abs(ratio * np.exp2(p.argument_shift) - p.argument_multiplier) / np.exp2(p.argument_shift) / ratio
    # The polynomial's own bound allows for the format's growth; anything beyond that widens the distance.
    steps = float(1 << tail.format.argument_bits)
    distance = 0.5 + np.maximum(slack * steps - tail.format.growth, 0.0)
    return np.asarray(0.5 + linear + multiplier + tail_error(tail, distance) / slope / output_scale + 1e-9)


def intermediates(
    parameters: WideParameters, tail: TailPolynomial, accumulator: tuple[int, int]
) -> tuple[Intermediate, ...]:
    """Return the range of every intermediate against its width."""
    p = parameters
    widest = p.limit.astype(np.int64) << p.left_shift.astype(np.int64)
    half = np.int64(1) << (p.argument_shift.astype(np.int64) - 1)
    largest = int(tail.proof.values.max())
    product = widest * p.argument_multiplier.astype(np.int64) + half
    low = p.offset - largest * p.tail_multiplier.astype(np.int64)
    high = widest * p.linear_multiplier.astype(np.int64) + p.offset
    fraction = 1 << (tail.format.fraction_bits - 1)
    multiplied = max(
        int(np.abs(tail.coefficients[:, -1]).max()),
        *(abs(value) for pair in tail.proof.horner_ranges[:-1] for value in pair),
    )
    return (
        Intermediate("accumulator + bias, clamped", accumulator[0], accumulator[1], 32, True),
        Intermediate("shifted left", int(-widest.max()), int(widest.max()), 32, True),
        Intermediate("magnitude times argument multiplier", 0, int(product.max()), 63, False),
        Intermediate("argument", 0, (1 << tail.format.argument_bits) - 1, tail.format.argument_bits, False),
        Intermediate("Horner product", -multiplied * fraction, multiplied * fraction, 32, True),
        Intermediate("tail before its clamp at 0", *tail.proof.horner_ranges[-1], 32, True),
        Intermediate("tail", 0, largest, 31, False),
        Intermediate("result before the last shift", int(low.min()), int(high.max()), 64, True),
    )
