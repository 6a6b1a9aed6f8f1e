"""What the tests hold the product to: nothing here imports its arithmetic.

* The right answer, by ball arithmetic (Arb) whose precision rises until the rounding is decided.
* The integer arithmetic of every plan, in Python's unbounded integers, from the published description of the steps.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

import flint
import numpy as np
from flint import arb, fmpq

ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "silu")

# Where each activation is least, with alpha = 1 for quick_gelu (it scales by 1 / alpha); test_activations.py proves it.
DIP = {
    "gelu": -0.7517915246935644,
    "gelu_tanh": -0.7524614220710163,
    "quick_gelu": -1.2784645427610738,
    "silu": -1.2784645427610738,
}


def rational(value):
    """Return an int, float or Fraction as an exact fmpq."""
    fraction = Fraction(value)
    return fmpq(fraction.numerator, fraction.denominator)


def tail_ball(t, activation, alpha):
    """Return a ball that holds g(t) = t * s(-t), t > 0 a ball, in the current precision."""
    if activation == "gelu":
        return t * (t / arb(2).sqrt()).erfc() / 2
    if activation == "gelu_tanh":
        z = 2 * (2 / arb.pi()).sqrt() * (t + arb(0.044715) * t * t * t)
    else:
        z = arb(1.0 if activation == "silu" else float(alpha)) * t
    return t / (1 + z.exp())


def value_ball(x, activation, alpha):
    """Return a ball that holds f(x), x an exact rational, in the current precision."""
    t = arb(abs(x))
    g = tail_ball(t, activation, alpha) if x != 0 else arb(0)
    return arb(max(x, fmpq(0))) - g


def value(x, activation, alpha, precision=200):
    """Return f(x) as the nearest float64, and with x a float."""
    with flint.ctx.workprec(precision):
        return float(value_ball(rational(x), activation, alpha))


class Rounder:
    """nearest(f(input_scale * k) / output_scale) for whole k, decided beyond doubt.

    f(x) = max(x, 0) - g(|x|). The linear part is an exact rational. Where it is a tie and g is too small for any
    precision to see (g > 0 always), the answer is the whole number below the tie.
    """

    def __init__(self, input_scale, output_scale, activation, alpha):
        self.activation, self.alpha = activation, alpha
        self.input_scale, self.output_scale = rational(input_scale), rational(output_scale)
        self.ratio = self.input_scale / self.output_scale

    def _decide(self, k, precision):
        with flint.ctx.workprec(precision):
            g = tail_ball(arb(self.input_scale * abs(k)), self.activation, self.alpha)
            y = arb(self.ratio * max(k, 0)) - g / arb(self.output_scale)
            return (y + arb(0.5)).floor().unique_fmpz()

    def __call__(self, k):
        k = int(k)
        if k == 0:
            return 0
        found = self._decide(k, 96)
        if found is not None:
            return int(found)
        doubled = self.ratio * (2 * k)
        if k > 0 and doubled.q == 1 and int(doubled.p) % 2 == 1:
            with flint.ctx.workprec(96):
                g = tail_ball(arb(self.input_scale * k), self.activation, self.alpha)
                if g / arb(self.output_scale) < 1:
                    return (int(doubled.p) - 1) // 2
        for precision in (400, 3_000, 30_000):
            found = self._decide(k, precision)
            if found is not None:
                return int(found)
        raise AssertionError(f"undecided: {k}, {self.input_scale}, {self.output_scale}, {self.activation}")


def rounded_codes(ks: Iterable[int], input_scale, output, activation, alpha, channel=0):
    """Return the correctly rounded codes of whole multiples ``ks`` of the input scale, one by one."""
    scale, zero = output_channel(output, channel)
    rounder = Rounder(input_scale, scale, activation, alpha)
    return np.array([min(max(rounder(k) + zero, output.qmin), output.qmax) for k in ks], dtype=np.int64)


def of_channel(values, channel):
    """Return one channel's value of a number or an array of shape [C] or [1]."""
    array = np.atleast_1d(values)
    return array[channel if array.size > 1 else 0]


def output_channel(output, channel):
    """Return (scale, zero point) of one channel of an output's parameters."""
    return float(of_channel(output.scale, channel)), int(of_channel(output.zero_point, channel))


def wrong_codes(ks, codes, input_scale, output, activation, alpha, channel=0):
    """Return those of the consecutive ``ks`` whose code is not the correctly rounded one.

    f falls up to its dip and rises after it, so rounding and saturation are monotonic on either side: a run of
    one code whose two ends are right is right throughout. Next to the dip every k is tried.
    """
    ks, codes = np.asarray(ks, dtype=np.int64), np.asarray(codes, dtype=np.int64)
    assert np.array_equal(np.diff(ks), np.ones(ks.size - 1))
    scale, zero = output_channel(output, channel)
    place = DIP[activation] / (alpha if activation == "quick_gelu" else 1.0) / float(input_scale)
    dip_low, dip_high = math.floor(place * (1 + 1e-9)) - 1, math.ceil(place * (1 - 1e-9)) + 1
    ends = np.ones(ks.size, np.bool_)
    ends[1:-1] = (codes[1:-1] != codes[:-2]) | (codes[1:-1] != codes[2:])
    ends |= (ks >= dip_low) & (ks <= dip_high)
    rounder = Rounder(input_scale, scale, activation, alpha)
    return [
        int(k)
        for k, code in zip(ks[ends], codes[ends], strict=True)
        if min(max(rounder(k) + zero, output.qmin), output.qmax) != code
    ]


# The integer arithmetic, step by step. Each function returns every intermediate by the name that certificates give it.


def _clamp(value, low, high):
    return min(max(value, low), high)


def _round_shift(value, shift):
    """Return value / 2**shift rounded half up."""
    return value if shift == 0 else (value + (1 << (shift - 1))) >> shift


def _horner(row, fraction, bits, steps, label):
    total = row[-1]
    for number, coefficient in enumerate(reversed(row[:-1])):
        steps.setdefault("Horner product", []).append(total * fraction)
        total = coefficient + (total * fraction >> bits)
        steps[f"{label} {number + 1}"] = total
    return total


def narrow_steps(plan, total, channel):
    """Return the intermediates and the code of an accumulator plus bias (or code less zero point) in 16-bit lanes."""
    p = {name: int(array[channel]) for name, array in plan.integers.channel_arrays().items()}
    steps = {}
    total = _clamp(int(total), -p["limit"], p["limit"])
    steps["accumulator + bias, clamped"] = total
    v = total * 2 ** p["left_shift"]
    steps["shifted left"] = v
    largest_shift = max(p["linear_shift"], p["argument_shift"])
    steps["magnitude plus half"] = abs(v) + (2**largest_shift >> 1)

    def scaled(magnitude, shift, multiplier, name):
        high = min(_round_shift(magnitude, shift), 65535)
        steps[name] = high
        steps[f"{name} times multiplier"] = high * multiplier
        return min(high + (high * multiplier >> 15), 65535)

    linear = scaled(max(v, 0), p["linear_shift"], p["linear_multiplier"], "linear branch")
    u = scaled(abs(v), p["argument_shift"], p["argument_multiplier"], "argument")
    row = [int(c) for c in plan.tail.coefficients[u // 4096]]
    fraction = 16 * (u % 4096) - 32768
    tail = max(_horner(row, fraction, 16, steps, "tail, Horner step"), 0)
    steps.pop("Horner product")
    steps["tail"] = tail
    steps["tail times multiplier"] = tail * p["tail_multiplier"]
    result = min(linear + p["offset"], 65535) - (tail * p["tail_multiplier"] >> 16)
    steps["result before the last shift"] = max(result, 0)
    code_range = plan.output.qmax - plan.output.qmin
    return steps, min(max(result, 0) >> 7, code_range) + plan.output.qmin


def wide_steps(plan, total, channel):
    """Return the intermediates and the code of the wide arithmetic."""
    p = {name: int(array[channel]) for name, array in plan.integers.channel_arrays().items()}
    steps = {}
    total = _clamp(int(total), -p["limit"], p["limit"])
    steps["accumulator + bias, clamped"] = total
    v = total * 2 ** p["left_shift"]
    steps["shifted left"] = v
    product = abs(v) * p["argument_multiplier"] + 2 ** (p["argument_shift"] - 1)
    steps["magnitude times argument multiplier"] = product
    u = min(product >> p["argument_shift"], 2**20 - 1)
    steps["argument"] = u
    row = [int(c) for c in plan.tail.coefficients[u // 32768]]
    total_tail = _horner(row, u % 32768 - 16384, 15, steps, "_step")
    steps["tail before its clamp at 0"] = total_tail
    tail = max(total_tail, 0)
    steps["tail"] = tail
    result = max(v, 0) * p["linear_multiplier"] - tail * p["tail_multiplier"] + p["offset"]
    steps["result before the last shift"] = result
    code_range = plan.output.qmax - plan.output.qmin
    return steps, _clamp(result >> p["output_shift"], 0, code_range) + plan.output.qmin


def ibert_value(q, scale):
    """Return i-GELU's integer output and its scale, as the authors' IntGELU module computes them."""
    erf_scale = scale / 1.4142
    b, c = math.floor(-1.769 / erf_scale), math.floor((1 / -0.2888) / erf_scale**2)
    sign = (q > 0) - (q < 0)
    erf = sign * ((min(abs(q), -b) + b) ** 2 + c) // 2**14
    scale_of_erf = erf_scale**2 * -0.2888 * 2**14
    return q * (erf + math.floor(1 / scale_of_erf)), scale * scale_of_erf / 2


def ibert_code(plan, total):
    """Return the code of i-GELU: the published value, one requantization, saturation."""
    p = plan.integers
    integer, _ = ibert_value(_clamp(int(total), -p.limit, p.limit), float(plan.input.scale))
    code = _round_shift(integer * p.multiplier, p.shift) + int(plan.output.zero_point)
    return _clamp(code, plan.output.qmin, plan.output.qmax)


def plan_code(plan, total, channel=0):
    """Return a polynomial plan's code of one accumulator plus bias (or code less zero point)."""
    return (narrow_steps if plan.lanes == 16 else wide_steps)(plan, total, channel)[1]
