"""The ops' function bodies on stock ONNX Runtime and in onnx.reference against the Numba kernels: bit for bit."""

import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from qgelu import AccumulatorParams, QParams, make_plan, narrow
from qgelu.activations import ACTIVATIONS
from qgelu.errors import QGeluError
from qgelu.graph.plan_nodes import plan_model
from qgelu.polynomial import family_of, family_slope, tail_polynomial
from qgelu.polynomial_plan import make_polynomial_plan

INT32 = np.iinfo(np.int32)


def run_everywhere(plan, codes, bias=None, opset=17, reference=True):
    """Return the kernel's codes after checking that every ONNX executor gives the same."""
    model = plan_model(plan, bias, opset, codes.ndim)
    onnx.checker.check_model(model, full_check=True)
    expected = plan(codes, bias)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    answers = [session.run(None, {"codes": codes})[0]]
    if reference:
        answers.append(ReferenceEvaluator(model).run(None, {"codes": codes})[0])
    for answer in answers:
        assert answer.dtype == expected.dtype
        assert answer.shape == expected.shape
        np.testing.assert_array_equal(answer, expected)
    return expected


def every_code(params):
    info = np.iinfo(params.dtype)
    return np.arange(info.min, info.max + 1).astype(params.dtype)


def accumulators(plan, rng, rows):
    """Boundaries, powers of two +-2 and random accumulators in every channel."""
    powers = [sign * (1 << k) + d for k in range(31) for d in range(-2, 3) for sign in (1, -1)]
    fixed = np.array([INT32.min, INT32.min + 1, INT32.max - 1, INT32.max, 0, *powers])
    scale = np.atleast_1d(plan.input.scale)
    random = rng.normal(size=(rows, scale.size)) * 2.5 / scale
    fixed = np.broadcast_to(fixed[:, None], (fixed.size, scale.size))
    return np.clip(np.concatenate([fixed, random]), INT32.min, INT32.max).astype(np.int32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bits", [2, 5, 8, 11, 16])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("end", ["low", "high"])
def test_every_code_through_a_table(activation, bits, signed, end):
    steps = 1 << bits
    source = QParams(9.0 / steps, 0 if signed else steps // 2, bits, signed)
    target = QParams(5.0 / steps, 0, bits, signed)
    target = QParams(5.0 / steps, target.qmin if end == "low" else target.qmax, bits, signed)
    plan = make_plan(source, target, activation)
    run_everywhere(plan, every_code(source))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 5), (2, 0), (1, 3, 5, 7)])
def test_table_on_every_shape(shape):
    plan = make_plan(QParams(0.05, 120), QParams(0.03, 6))
    run_everywhere(plan, np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8))


@pytest.mark.parametrize("opset", [14, 17, 20, 21])
def test_opsets(opset):
    plan = make_plan(AccumulatorParams(3e-5), QParams(0.02, 9))
    run_everywhere(plan, np.arange(-300000, 300000, 997, dtype=np.int32).reshape(-1, 2)[:200], opset=opset)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("output", ["uint8", "int8", "uint6", "fine uint8", "int16", "uint12"])
def test_accumulators_per_channel(activation, output):
    rng = np.random.default_rng(5)
    channels = 19
    source = AccumulatorParams(10.0 ** rng.uniform(-7, 0, channels))
    bits = int(output.split("int")[1])
    signed = not output.split("int")[0].endswith("u")
    scales = {8: (0.009, 0.1), 6: (0.02, 0.3), 16: (1e-4, 1e-3), 12: (2e-3, 4e-3)}[bits]
    if output.startswith("fine"):
        scales = (1e-4, 2e-4)
    empty = QParams(1.0, 0, bits, signed)
    zero = rng.integers(empty.qmin, empty.qmax + 1, channels)
    zero[:2] = empty.qmin, empty.qmax
    plan = make_plan(source, QParams(rng.uniform(*scales, channels), zero, bits, signed), activation)
    assert plan.lanes == (16 if bits <= 8 and not output.startswith("fine") else 32)
    bias = rng.integers(-20000, 20000, channels).astype(np.int32)
    bias[:2] = INT32.min, INT32.max
    codes = accumulators(plan, rng, 300)
    expected = run_everywhere(plan, codes, bias)
    assert len(np.unique(expected)) > min(1 << (bits - 2), 1000)
    run_everywhere(plan, codes[:0], bias)
    even = codes[: len(codes) // 2 * 2]
    run_everywhere(plan, even.reshape(2, -1, channels), bias, reference=False)


def test_accumulators_per_tensor_and_alpha():
    plan = make_plan(AccumulatorParams(2e-4), QParams(0.02, 10), "quick_gelu", alpha=0.9)
    rng = np.random.default_rng(2)
    run_everywhere(plan, accumulators(plan, rng, 2000))


def short_plan(rng, activation, bits, signed, channels=41):
    """Return a plan with short multipliers: channels at the finest scales and the longest shifts first."""
    tail, slope = tail_polynomial(family_of(activation), 16), family_slope(activation, 1.702)
    step = tail.step / slope
    output = 2 * narrow.smallest_output_scale(tail, slope) * np.exp(rng.uniform(0, 5, channels))
    finest = np.maximum(step, output * 1.016 / 128) / 64
    source = finest * np.where(np.arange(channels) < 15, 1.0, np.exp(rng.uniform(0, 9, channels)))
    source = narrow.short_at_least(source / step) * step
    output = 128 * source / narrow.short_at_most(128 * source / output)
    empty = QParams(1.0, 0, bits, signed)
    zero = rng.integers(empty.qmin, empty.qmax + 1, channels)
    zero[:2] = empty.qmin, empty.qmax
    target = QParams(output, zero, bits, signed)
    return make_polynomial_plan(AccumulatorParams(source), target, activation, 1.702, 0.75, short=True)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("bits", "signed"), [(8, False), (8, True), (5, False), (2, True)])
def test_short_multipliers_in_float32(activation, bits, signed):
    rng = np.random.default_rng(9)
    plan = short_plan(rng, activation, bits, signed)
    assert narrow.is_short(plan.integers)
    assert max(plan.integers.linear_shift.max(), plan.integers.argument_shift.max()) == narrow.SHORT_SHIFT
    bias = rng.integers(-30000, 30000, plan.channels).astype(np.int32)
    bias[:4] = np.array([-1, 1, 1, -1]) * narrow.SHORT_BIAS
    bias[15:17] = np.array([-1, 1]) * narrow.SHORT_BIAS
    # Every tie of both shifts, and every step of the argument, is among the sums near zero.
    sums = np.concatenate([np.arange(-40000, 40000), np.arange(-(1 << 22) - 64, (1 << 22) + 64, 33)])
    near = np.clip(sums[:, None] - bias.astype(np.int64), INT32.min, INT32.max).astype(np.int32)
    run_everywhere(plan, near, bias, reference=False)
    codes = np.concatenate([accumulators(plan, rng, 300), near[::500]])
    expected = run_everywhere(plan, codes, bias)
    assert len(np.unique(expected)) > (1 << bits) - 4
    for shape in [(0, plan.channels), (3, 0, plan.channels), (2, 5, plan.channels), (plan.channels,)]:
        run_everywhere(plan, codes.ravel()[: np.prod(shape)].reshape(shape), bias)
    (function,) = plan_model(plan, bias).functions
    assert "Div" not in {node.op_type for node in function.node if "accumulator" in node.input}
    assert "Round" in {node.op_type for node in function.node}


def test_short_multipliers_per_tensor_and_without_channels():
    plan = make_polynomial_plan(
        AccumulatorParams(4.5 / 65536 / 4), QParams(4.5 / 256, 9), "gelu", 1.702, narrow_tolerance=0.75, short=True
    )
    assert narrow.is_short(plan.integers)
    run_everywhere(plan, accumulators(plan, np.random.default_rng(3), 2000))
    run_everywhere(plan, np.zeros((3, 0), np.int32))


@pytest.mark.parametrize("name", ["bias", "linear_multiplier", "argument_multiplier", "tail_multiplier", "shift"])
def test_a_plan_that_float32_cannot_compute_runs_in_integers(name):
    plan = short_plan(np.random.default_rng(10), "gelu", 8, False)
    bias = np.zeros(plan.channels, np.int32)
    arrays = {key: value.copy() for key, value in plan.integers.channel_arrays().items()}
    if name == "bias":
        bias[7] = narrow.SHORT_BIAS + 1
    elif name == "shift":
        for key in ("linear_shift", "argument_shift"):
            arrays[key][:15] += 1
        arrays["limit"][:15] *= 2
    else:
        arrays[name][20] = 1025 if name == "tail_multiplier" else arrays[name][20] + 1
    integers = narrow.NarrowParameters(**arrays, coefficients=plan.integers.coefficients)
    changed = dataclasses.replace(plan, integers=integers)
    (function,) = plan_model(changed, bias).functions
    assert "Round" not in {node.op_type for node in function.node}
    run_everywhere(changed, accumulators(changed, np.random.default_rng(11), 50), bias)


def test_one_session_runs_at_every_size():
    plan = make_plan(AccumulatorParams(2e-4), QParams(0.02, 10))
    session = onnxruntime.InferenceSession(plan_model(plan).SerializeToString())
    for shape in [(1, 1), (0, 4), (3, 7), (64, 33)]:
        codes = np.random.default_rng(1).integers(-40000, 40000, shape).astype(np.int32)
        np.testing.assert_array_equal(session.run(None, {"codes": codes})[0], plan(codes))


def test_plans_without_an_op_are_refused():
    plan = make_plan(QParams(1e-4, 0, 16, True), QParams(0.02, 10), method="polynomial")
    with pytest.raises(QGeluError, match="make a table plan"):
        plan_model(plan)
