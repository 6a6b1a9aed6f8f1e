"""Random and adversarial inputs of plans, reproducible from a seed."""

import numpy as np
from oracle import DIP, of_channel, output_channel

from qgelu import AccumulatorParams, QParams
from qgelu.activations import evaluate

INT32 = np.iinfo(np.int32)


def random_params(rng, smallest_scale, largest_scale, lowest_bits, highest_bits):
    """Return QParams with a log-uniform scale and a zero point that is often at an end."""
    bits, signed = int(rng.integers(lowest_bits, highest_bits + 1)), bool(rng.integers(2))
    low = -(1 << (bits - 1)) if signed else 0
    high = low + (1 << bits) - 1
    zero_point = int(rng.choice([low, high, rng.integers(low, high + 1), rng.integers(low, high + 1)]))
    return QParams(log_uniform(rng, smallest_scale, largest_scale), zero_point, bits, signed)


def log_uniform(rng, low, high):
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def random_accumulators(rng):
    return AccumulatorParams(log_uniform(rng, 1e-9, 10.0))


def hard_sums(plan, channel, rng, per_kind=40):
    """Return int32 sums (accumulator plus bias) where a plan is most likely to be wrong."""
    scale = float(of_channel(plan.input.scale, channel))
    output_scale, zero_point = output_channel(plan.output, channel)
    limit = int(of_channel(plan.integers.limit, channel))
    powers = [1 << k for k in range(32)]
    anchors = [0, INT32.min, INT32.max, limit, -limit, *powers, *(-power for power in powers)]
    slope = plan.alpha if plan.activation == "quick_gelu" else 1.0
    dip = DIP[plan.activation] / slope
    anchors.append(dip / scale)
    # Where the real answer is half-way between two codes, on either side of the dip.
    codes = rng.integers(plan.output.qmin - 1, plan.output.qmax + 1, per_kind)
    targets = (codes + 0.5 - zero_point) * output_scale
    anchors += (_solve(targets, dip, max(4.0 * float(np.abs(targets).max()), 40.0 / slope), plan) / scale).tolist()
    shallow = targets[(targets < 0) & (targets > evaluate(dip, plan.activation, plan.alpha))]
    anchors += (_solve(shallow, dip, -40.0 / slope, plan) / scale).tolist()
    # Where the tail's segments meet.
    edges = np.arange(1, plan.tail.coefficients.shape[0] + 1) / plan.tail.coefficients.shape[0]
    anchors += (edges * plan.tail.cutoff / slope / scale).tolist()
    anchors += (-edges * plan.tail.cutoff / slope / scale).tolist()
    anchors += rng.integers(INT32.min, INT32.max, per_kind).tolist()
    anchors += rng.integers(-limit, limit + 1, per_kind).tolist()
    anchors += (rng.choice([-1, 1], per_kind) * np.exp(rng.uniform(0, np.log(limit + 2.0), per_kind))).tolist()
    if plan.certificate.worst_case is not None and plan.certificate.worst_case.channel == channel:
        anchors.append(plan.certificate.worst_case.value)
    near = np.rint(np.clip(np.array(anchors, dtype=np.float64), INT32.min, INT32.max)).astype(np.int64)
    sums = np.unique(near[:, None] + np.arange(-2, 3))
    return sums[(sums >= INT32.min) & (sums <= INT32.max)]


def _solve(targets, low, high, plan):
    """Return x between the dip ``low`` and ``high`` (either side of it) with f(x) = target, by bisection."""
    low, high = np.full(targets.shape, low), np.full(targets.shape, high)
    for _ in range(80):
        middle = 0.5 * (low + high)
        below = evaluate(middle, plan.activation, plan.alpha) < targets
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low
