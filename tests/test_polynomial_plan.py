import dataclasses
import itertools

import numpy as np
import pytest
from executors import EXECUTORS
from oracle import ACTIVATIONS, narrow_steps, of_channel, output_channel, plan_code, rounded_codes, wide_steps
from random_plans import INT32, hard_sums, log_uniform, random_accumulators, random_params

from qgelu import AccumulatorParams, QGeluError, QParams, make_plan
from qgelu.activations import evaluate
from qgelu.polynomial import DISTANCES, tail_error, tail_polynomial
from qgelu.polynomial_plan import polynomial_plan_from_parameters

FLOAT64_SLACK = 1e-9
"""LSB: what float64 may get wrong in a real answer (test_activations.py holds it to arbitrary precision)."""


def real_answers(plan, sums, channel):
    """Return the real answers in LSB, saturated to the codes."""
    scale = float(of_channel(plan.input.scale, channel))
    output_scale, zero_point = output_channel(plan.output, channel)
    exact = evaluate(sums * scale, plan.activation, plan.alpha) / output_scale + zero_point
    return np.clip(exact, plan.output.qmin, plan.output.qmax)


def run_sums(executor, plan, sums, channel=0):
    """Return an executor's codes of int32 sums in one channel, the others fed the same."""
    channels = plan.channels
    source = sums.astype(np.int32)
    if channels is None:
        return executor(plan, source, None).astype(np.int64)
    return executor(plan, np.repeat(source[:, None], channels, axis=1), None)[:, channel].astype(np.int64)


def attack(plan, rng, per_kind=40, channel=0):
    """Hold a plan from accumulators to the integer arithmetic, to its certificate, and to the right codes."""
    sums = hard_sums(plan, channel, rng, per_kind)
    codes = run_sums(EXECUTORS["kernel"], plan, sums, channel)
    expected = [plan_code(plan, total, channel) for total in sums]
    assert np.array_equal(codes, expected), (plan.input, plan.output, plan.activation)
    assert np.array_equal(plan.run_values(sums, channel), expected), (plan.input, plan.output, plan.activation)
    low, high = plan.certificate.admitted
    inside = (sums >= low) & (sums <= high)
    real = real_answers(plan, sums, channel)
    error = np.abs(codes - real)[inside]
    assert error.max() <= plan.certificate.max_error_lsb + FLOAT64_SLACK, (
        plan.input,
        plan.output,
        plan.activation,
        sums[inside][np.argmax(error)],
    )
    # Round half up of a real answer 1e-9 above a tie or below differs by one code; both are within one of ours then.
    assert np.abs(codes - np.floor(real + 0.5))[inside].max() <= 1
    return error.max()


def try_plan(source, output, activation, alpha=1.702):
    """Return the plan, or None if it was refused with a reason."""
    try:
        return make_plan(source, output, activation, alpha, method="polynomial")
    except QGeluError as refusal:
        reason = str(refusal)
    assert len(reason) > 20
    assert "\n" not in reason
    return None


# The figures that certificates must reach: lowest bits, highest bits, smallest output scale, largest error.
FIGURES = {
    "8 bits": (2, 8, 0.002, 0.55),
    "16 bits": (9, 16, 1e-4, 0.75),
    "16 bits, fine": (9, 16, 1e-5, 1.25),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("count", [12, pytest.param(1500, marks=pytest.mark.exhaustive)])
def test_certificates_reach_the_figures_and_hold(activation, figure, count):
    low_bits, high_bits, smallest, largest_error = FIGURES[figure]
    rng = np.random.default_rng(21)
    for index in range(count):
        output = random_params(rng, smallest, 10.0, low_bits, high_bits)
        if index % 5 == 0:
            output = QParams(smallest, output.zero_point, output.bits, output.signed)
        plan = make_plan(random_accumulators(rng), output, activation)
        assert plan.kind == "polynomial"
        assert plan.certificate.max_error_lsb <= largest_error, (plan.input, output)
        if index % (4 if count > 1000 else 2) == 0:
            attack(plan, rng, per_kind=10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("count", [20, pytest.param(800, marks=pytest.mark.exhaustive)])
def test_any_scales_work_as_certified_or_are_refused(activation, count):
    rng = np.random.default_rng(22)
    made = 0
    for _ in range(count):
        alpha = log_uniform(rng, 1e-3, 1e3) if activation == "quick_gelu" else 1.702
        source, output = random_accumulators(rng), random_params(rng, 1e-6, 10.0, 2, 16)
        plan = try_plan(source, output, activation, alpha)
        if plan is not None:
            made += 1
            attack(plan, rng, per_kind=15)
    assert made > count // 2


CORNERS = [1e-9, 2.0**-20, 1e-4, 0.99, 10.0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bits", [2, 8, 16])
def test_corner_scales(activation, bits):
    """Every zero point at an end, every scale at an end or where one arithmetic takes over from another."""
    rng = np.random.default_rng(23)
    for input_scale in CORNERS:
        for output_scale in (1e-6, 1e-5, 7e-4, 0.002, 10.0):
            for zero_point in (0, (1 << bits) - 1):
                output = QParams(output_scale, zero_point, bits, False)
                plan = try_plan(AccumulatorParams(input_scale), output, activation)
                if plan is not None:
                    attack(plan, rng, per_kind=5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("scale", [1.2e-38, 1e-30, 1e-15, 1e3, 1e15, 1e30, 3.4e38])
def test_absurd_scales_are_no_accident(activation, scale):
    rng = np.random.default_rng(24)
    others = (1.2e-38, 1e-9, 1.0, 1e9, 3.4e38)
    pairs = [(scale, other) for other in others] + [(other, scale) for other in others]
    for input_scale, output_scale in pairs:
        for bits in (8, 16):
            output = QParams(output_scale, 3, bits, True)
            plan = try_plan(AccumulatorParams(input_scale), output, activation, min(scale, 1e37))
            if plan is not None:
                attack(plan, rng, per_kind=5)


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bits", [4, 8, 16])
def test_executors_agree_bit_for_bit_per_channel(name, activation, bits):
    rng = np.random.default_rng(25)
    for channels in (1, 3, 64, 77):
        smallest = 0.002 if bits <= 8 else 1e-4
        scales = [log_uniform(rng, 1e-9, 1e-2) for _ in range(channels)]
        output_scales = [log_uniform(rng, smallest, 1.0) for _ in range(channels)]
        zero_points = rng.integers(0, 2**bits, channels)
        plan = make_plan(AccumulatorParams(scales), QParams(output_scales, zero_points, bits, False), activation)
        assert plan.channels == channels
        source = rng.integers(INT32.min, INT32.max, (40, channels), endpoint=True).astype(np.int32)
        reach = np.minimum(plan.integers.limit.astype(np.int64), INT32.max)
        source[10:] = np.rint(rng.uniform(-1, 1, (30, channels)) * reach)
        source[20:] = np.rint(rng.uniform(-1, 1, (20, channels)) ** 5 * reach)
        source[30] = INT32.min
        source[31] = INT32.max
        bias = rng.integers(-1000, 1000, channels).astype(np.int32)
        for added in (None, bias):
            addend = np.zeros(channels, np.int64) if added is None else added.astype(np.int64)
            codes = EXECUTORS[name](plan, source, added)
            expected = [
                [plan_code(plan, int(source[row, c]) + int(addend[c]), c) for c in range(channels)] for row in range(40)
            ]
            assert np.array_equal(codes, expected)


@pytest.mark.parametrize("name", EXECUTORS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("input_scale", "output_scale", "bits"), [(1e-4, 0.02, 8), (2.0, 0.01, 8), (1e-7, 1e-4, 16)])
def test_executors_agree_bit_for_bit_at_extreme_biases(name, activation, input_scale, output_scale, bits):
    """The sum of accumulator and bias is the true one, however far it is beyond int32."""
    rng = np.random.default_rng(26)
    plan = make_plan(AccumulatorParams(input_scale), QParams(output_scale, 7, bits, False), activation)
    sums = hard_sums(plan, 0, rng, 5)
    for bias in (INT32.min, INT32.min + 1, INT32.max, INT32.max - 1, -1, 1, 0, -(1 << 30), 1 << 30, 12345):
        wanted = sums - bias
        source = np.concatenate([wanted[(wanted >= INT32.min) & (wanted <= INT32.max)], sums]).astype(np.int32)
        expected = [plan_code(plan, int(a) + int(bias)) for a in source]
        assert np.array_equal(EXECUTORS[name](plan, source, np.int64(bias)), expected)
        per_channel = EXECUTORS[name](plan, source, np.full(source.size, bias))
        assert np.array_equal(per_channel, expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [4, 8, 11, 16])
def test_plans_from_codes(activation, signed, bits):
    rng = np.random.default_rng(27)
    smallest = 0.002 if bits <= 8 else 1e-4
    for _ in range(4):
        source = random_params(rng, 1e-4, 1.0, bits, bits)
        source = QParams(source.scale, source.zero_point if signed == source.signed else 0, bits, signed)
        output = random_params(rng, smallest, 1.0, 8 if bits <= 8 else 16, 8 if bits <= 8 else 16)
        plan = make_plan(source, output, activation, method="polynomial")
        codes = np.arange(source.qmin, source.qmax + 1)
        got = plan(codes.astype(source.dtype)).astype(np.int64)
        sums = codes - source.zero_point
        some = np.unique(np.concatenate([np.arange(codes.size)[:: max(1, codes.size // 300)], [0, codes.size - 1]]))
        assert np.array_equal(got[some], [plan_code(plan, int(sums[i])) for i in some])
        error = np.abs(got - real_answers(plan, sums, 0))
        assert plan.certificate.proof == "enumerated"
        assert plan.certificate.inputs == codes.size
        assert error.max() == pytest.approx(plan.certificate.max_error_lsb, abs=FLOAT64_SLACK)
        if bits <= 8:
            right = rounded_codes(sums, source.scale, output, activation, 1.702)
            assert np.count_nonzero(got != right) == plan.certificate.misrounded
            assert np.abs(got - right).max() <= 1


def test_plans_from_codes_per_channel():
    source = QParams([0.05, 0.1, 0.02], [3, 200, 128])
    output = QParams([0.02, 0.05, 0.01], [10, 20, 30])
    plan = make_plan(source, output, "silu")
    codes = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    got = plan(codes).astype(np.int64)
    worst, wrong = 0.0, 0
    for channel, zero_point in enumerate((3, 200, 128)):
        sums = np.arange(256) - zero_point
        assert np.array_equal(got[:, channel], [plan_code(plan, int(total), channel) for total in sums])
        worst = max(worst, np.abs(got[:, channel] - real_answers(plan, sums, channel)).max())
        wrong += np.count_nonzero(
            got[:, channel] != rounded_codes(sums, source.scale[channel], output, "silu", 1.702, channel)
        )
    assert plan.certificate.inputs == 768
    assert plan.certificate.max_error_lsb == pytest.approx(worst, abs=FLOAT64_SLACK)
    assert plan.certificate.misrounded == wrong


ENUMERATED = [
    ("gelu", 1e-3, 0.0025, 8, 17),
    ("gelu_tanh", 3e-4, 0.05, 8, 0),
    ("silu", 0.01, 0.02, 8, 255),
    ("silu", 1.0, 2.0, 8, 0),
    ("quick_gelu", 0.002, 0.004, 8, 100),
    ("gelu", 1e-3, 3e-6, 16, 100),
    ("silu", 1e-3, 1e-5, 16, 30000),
    ("gelu_tanh", 2.0**-8, 2.0**-7, 16, 5),
]


@pytest.mark.parametrize(("activation", "input_scale", "output_scale", "bits", "zero_point"), ENUMERATED)
def test_enumerated_certificates_are_the_truth(activation, input_scale, output_scale, bits, zero_point):
    plan = make_plan(AccumulatorParams(input_scale), QParams(output_scale, zero_point, bits, False), activation)
    certificate = plan.certificate
    assert certificate.proof == "enumerated"
    limit = int(plan.integers.limit[0])
    sums = np.arange(-limit, limit + 1)
    codes = plan(sums.astype(np.int32)).astype(np.int64)
    assert certificate.inputs == sums.size
    real = real_answers(plan, sums, 0)
    far = np.array([INT32.min, INT32.max, -4 * limit, 4 * limit, -limit - 1, limit + 1])
    far = far[(far >= INT32.min) & (far <= INT32.max)]
    far_error = np.abs(plan(far.astype(np.int32)) - real_answers(plan, far, 0)).max()
    error = max(np.abs(codes - real).max(), far_error)
    assert error == pytest.approx(certificate.max_error_lsb, abs=FLOAT64_SLACK)
    worst = certificate.worst_case
    assert plan(np.array([worst.value], np.int32))[0] == worst.code
    assert abs(worst.code - worst.exact) == certificate.max_error_lsb
    # Exact where float64 cannot decide (ties of the linear part included).
    doubtful = np.abs(real - np.floor(real) - 0.5) < 1e-6
    right = np.floor(real + 0.5)
    right[doubtful] = rounded_codes(sums[doubtful], input_scale, plan.output, activation, 1.702)
    assert np.count_nonzero(codes != right) == certificate.misrounded


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("output_scale", "bits"), [(0.002, 8), (0.05, 8), (1e-5, 16)])
def test_bounded_certificates_over_every_accumulator(activation, output_scale, bits):
    plan = make_plan(AccumulatorParams(2.3e-6), QParams(output_scale, 1 << (bits - 3), bits, False), activation)
    assert plan.certificate.proof == "bounded"
    limit = int(plan.integers.limit[0])
    start = max(-limit, -12_000_000)
    worst = 0.0
    for low in range(start, min(limit, 12_000_000), 1 << 20):
        sums = np.arange(low, low + (1 << 20))
        error = np.abs(plan(sums.astype(np.int32)) - real_answers(plan, sums, 0))
        worst = max(worst, float(error.max()))
    assert worst <= plan.certificate.max_error_lsb
    assert worst > 0.75 * plan.certificate.max_error_lsb  # a bound several times too large would prove little


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bits", [8, 16])
def test_intermediates_stay_within_their_declared_ranges(activation, bits):
    rng = np.random.default_rng(28)
    for _ in range(12):
        output = random_params(rng, 0.002 if bits == 8 else 1e-5, 10.0, bits, bits)
        plan = make_plan(random_accumulators(rng), output, activation)
        declared = {item.name: item for item in plan.certificate.intermediates}
        trace = narrow_steps if plan.lanes == 16 else wide_steps
        seen = set()
        for total in hard_sums(plan, 0, rng, 10):
            for name, values in trace(plan, total, 0)[0].items():
                if name.startswith("_"):
                    continue
                seen.add(name)
                item = declared[name]
                assert item.fits
                for value in values if isinstance(values, list) else [values]:
                    assert item.minimum <= value <= item.maximum, (name, value, plan.input, plan.output)
        assert seen == set(declared)


def test_narrow_and_wide_serve_the_scales_they_should():
    assert make_plan(AccumulatorParams(1e-5), QParams(0.002)).lanes == 16
    assert make_plan(AccumulatorParams(1e-5), QParams(1e-4)).lanes == 32
    assert make_plan(AccumulatorParams(1e-5), QParams(0.1, 0, 9, False)).lanes == 32


def test_an_accumulator_step_wider_than_the_curve():
    """One step of the accumulator saturates everything; the clamp must still let one step through."""
    for output_scale in (7e-4, 0.002, 0.0083):
        plan = make_plan(AccumulatorParams(10.0), QParams(output_scale, 3))
        codes = plan(np.array([INT32.min, -2, -1, 0, 1, 2, INT32.max], np.int32))
        assert codes.tolist() == [3, 3, 3, 3, 255, 255, 255]
        assert plan.certificate.inputs >= 3


def test_the_certificate_covers_accumulators_beyond_the_clamp():
    """Past the cut-off the code stays, while the real answer goes on to 0."""
    plan = make_plan(AccumulatorParams(0.001), QParams(3e-6, 100, 16, False))
    far = np.array([INT32.min, -(10**6)], np.int32)
    error = np.abs(plan(far) - real_answers(plan, far.astype(np.int64), 0))
    assert error.max() > 0.9  # else this shows nothing
    assert error.max() <= plan.certificate.max_error_lsb


@pytest.mark.parametrize("lanes", [16, 32])
def test_the_tail_bound_grows_beyond_the_tabulated_distances(lanes):
    tail = tail_polynomial("gelu", lanes)
    at, beyond = tail_error(tail, np.array([DISTANCES[-1], DISTANCES[-1] + 10.0]))
    assert beyond >= at + 9.9 * 0.5 * tail.step


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_multipliers_just_below_the_next_power_of_two(activation):
    """The 16-bit multipliers cannot reach 2: the ratio's last 2**-16 is an error that the bound must hold."""
    rng = np.random.default_rng(29)
    slope = 1.702 if activation == "quick_gelu" else 1.0
    tail = make_plan(AccumulatorParams(1e-5), QParams(0.02), activation).tail
    for exponent in (0, 4, 9):
        for below in (2.0**-17, 2.0**-16, 2.0**-15, 3e-5):
            by_argument = tail.step / slope * (2.0 - below) * 2.0**-exponent
            plan = make_plan(AccumulatorParams(by_argument), QParams(0.0021, 9), activation)
            attack(plan, rng)
            by_linear = 0.0021 / 128.0 * (2.0 - below) * 2.0**-exponent
            plan = make_plan(AccumulatorParams(by_linear), QParams(0.0021, 9), activation)
            attack(plan, rng)


def test_a_bound_that_is_nearly_reached():
    """Without its part for the argument's rounding (0.013 LSB here) the bound would be broken."""
    plan = make_plan(AccumulatorParams(3.464142421684768e-06), QParams(0.0025, 60))
    assert plan.certificate.proof == "bounded"
    limit = int(plan.integers.limit[0])
    sums = np.arange(-limit, limit + 1)
    error = np.abs(plan(sums.astype(np.int32)) - real_answers(plan, sums, 0)).max()
    assert plan.certificate.max_error_lsb - 0.011 < error <= plan.certificate.max_error_lsb


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bits", [8, 16])
def test_bounds_hold_for_integers_that_are_a_little_off(activation, bits):
    """The bound is of the integers that the plan has, not of those that it should have."""
    rng = np.random.default_rng(33)
    output = QParams(0.003 if bits == 8 else 3e-5, 100, bits, False)
    plan = make_plan(AccumulatorParams(2.7e-6), output, activation)
    fields = ("linear_multiplier", "argument_multiplier", "tail_multiplier")
    made = 0
    for field, delta in itertools.product(fields, (-3000, -60, -10, -4, 4, 10, 60, 3000)):
        if bits == 16:
            delta *= 100  # noqa: PLW2901
        changed = dataclasses.replace(plan.integers, **{field: getattr(plan.integers, field) + np.int32(delta)})
        try:
            other = polynomial_plan_from_parameters(plan.input, output, activation, plan.alpha, changed, plan.tail)
        except QGeluError:
            continue
        made += 1
        assert other.certificate.max_error_lsb > plan.certificate.max_error_lsb - 0.01
        attack(other, rng)
    assert made >= 6


def test_a_scale_that_16_bit_lanes_refuse_goes_to_the_wide_arithmetic():
    """The output scale is so coarse that the tail's 16-bit multiplier would be 0."""
    rng = np.random.default_rng(34)
    for input_scale in (1e-3, 0.01, 0.1):
        plan = make_plan(AccumulatorParams(input_scale), QParams(1000.0, 3))
        assert plan.lanes == 32
        attack(plan, rng)


def test_channel_counts_must_match():
    with pytest.raises(QGeluError, match="1 channels and output 2"):
        make_plan(AccumulatorParams([0.1]), QParams([0.1, 0.2]))
    with pytest.raises(QGeluError, match="3 channels and output 2"):
        make_plan(AccumulatorParams([0.1, 0.1, 0.1]), QParams([0.1, 0.2]))


def test_refusals_name_the_reason():
    with pytest.raises(QGeluError, match="output scale 1e-06: use a larger one"):
        make_plan(AccumulatorParams(0.1), QParams(1e-6, 0, 16, False))
    with pytest.raises(QGeluError, match="too far apart"):
        make_plan(AccumulatorParams(1e30), QParams(1e-6, 0, 16, False))


def test_per_channel_is_per_tensor_channel_by_channel():
    scales, output_scales, zero_points = [1e-5, 1e-4, 3e-3], [0.01, 0.1, 0.002], [0, 128, 255]
    together = make_plan(AccumulatorParams(scales), QParams(output_scales, zero_points), "gelu_tanh")
    sums = hard_sums(together, 1, np.random.default_rng(30), 30).astype(np.int32)
    codes = together(np.repeat(sums[:, None], 3, axis=1))
    for channel in range(3):
        output = QParams(output_scales[channel], zero_points[channel])
        alone = make_plan(AccumulatorParams(scales[channel]), output, "gelu_tanh")
        assert np.array_equal(codes[:, channel], alone(sums))
        assert alone.certificate.max_error_lsb <= together.certificate.max_error_lsb
