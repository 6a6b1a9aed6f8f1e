"""The native kernels in ONNX Runtime against the portable Numba loops: bit for bit, on every path of this CPU."""

import numpy as np
import onnxruntime
import pytest
from executors import plain_loop
from random_plans import INT32

import qgelu
from qgelu import AccumulatorParams, QParams, make_plan
from qgelu.activations import ACTIVATIONS
from qgelu.graph.plan_nodes import plan_model
from qgelu.kernels.cpu import VARIABLE, offered, target

PATHS = offered(target()[2])


@pytest.fixture(params=PATHS)
def path(request, monkeypatch, native_library):
    monkeypatch.setenv(VARIABLE, request.param)
    return request.param


def native_session(model, threads=1):
    """Return a session on the native kernels; the model's functions are gone, so that nothing else can run it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    qgelu.register(options)
    del model.functions[:]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_native(plan, codes, bias=None, threads=1):
    session = native_session(plan_model(plan, bias, rank=codes.ndim), threads)
    return session.run(None, {"codes": codes})[0]


def assert_same(plan, codes, bias=None):
    actual = run_native(plan, codes, bias)
    expected = plain_loop(plan, codes, bias) if plan.kind == "polynomial" else plan(codes)
    assert actual.dtype == plan.output.dtype
    assert actual.shape == codes.shape
    np.testing.assert_array_equal(actual, expected)
    return actual


def every_code(params):
    info = np.iinfo(params.dtype)
    return np.arange(info.min, info.max + 1).astype(params.dtype)


def output_params(rng, kind, channels):
    """Return an output of random scales and zero points, both ends among them."""
    bits, low, high = {"8": (8, 0.009, 0.1), "fine 8": (8, 1e-4, 2e-4), "16": (16, 1e-4, 1e-3), "5": (5, 0.05, 0.4)}[
        kind.split(" ", 1)[1]
    ]
    empty = QParams(1.0, 0, bits, kind.startswith("signed"))
    zero = rng.integers(empty.qmin, empty.qmax + 1, channels)
    zero[:2] = [empty.qmin, empty.qmax][:channels]
    return QParams(rng.uniform(low, high, channels), zero, bits, empty.signed)


def accumulators(plan, rng, rows, channels):
    """Ends of int32, powers of two +-2 and random accumulators in every channel."""
    powers = [sign * (1 << k) + d for k in range(31) for d in range(-2, 3) for sign in (1, -1)]
    fixed = np.array([INT32.min, INT32.min + 1, INT32.max - 1, INT32.max, 0, *powers])
    random = rng.normal(size=(rows, channels)) * 2.5 / np.atleast_1d(plan.input.scale)
    anywhere = rng.integers(INT32.min, INT32.max, (rows // 4, channels), endpoint=True)
    fixed = np.broadcast_to(fixed[:, None], (fixed.size, channels))
    return np.clip(np.concatenate([fixed, random, anywhere]), INT32.min, INT32.max).astype(np.int32)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("source", [QParams(0.04, 200), QParams(0.03, -7, 8, True), QParams(2e-4, 0, 16, True)])
@pytest.mark.parametrize("goal", ["unsigned 8", "signed 8", "unsigned 16", "signed 16"])
def test_every_code_through_a_table(path, activation, source, goal):
    bits, signed = int(goal.split()[1]), goal.startswith("signed")
    output = QParams(6.0 / (1 << bits), 3, bits, signed)
    assert_same(make_plan(source, output, activation), every_code(source))


def test_unsigned_16_bit_codes(path):
    source = QParams(2e-4, 30000, 16)
    assert_same(make_plan(source, QParams(0.03, 6)), every_code(source).reshape(256, 4, 64))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("goal", ["unsigned 8", "signed 8", "unsigned 5", "unsigned fine 8", "signed 16"])
def test_accumulators_per_channel(path, activation, goal):
    rng = np.random.default_rng(5)
    channels = 19
    plan = make_plan(
        AccumulatorParams(10.0 ** rng.uniform(-7, 0, channels)), output_params(rng, goal, channels), activation
    )
    bias = rng.integers(-20000, 20000, channels).astype(np.int32)
    bias[:2] = INT32.min, INT32.max
    found = assert_same(plan, accumulators(plan, rng, 300, channels), bias)
    assert len(np.unique(found)) > 20


@pytest.mark.parametrize("channels", [1, 2, 3, 31, 33, 63, 64, 65, 96, 127, 128, 129, 200, 515, 1024, 1031])
@pytest.mark.parametrize("goal", ["unsigned 8", "signed 16"])
def test_channel_counts(path, channels, goal):
    rng = np.random.default_rng(channels)
    plan = make_plan(AccumulatorParams(rng.uniform(1e-5, 1e-3, channels)), output_params(rng, goal, channels))
    bias = rng.integers(-2000, 2000, channels).astype(np.int32)
    source = (rng.normal(size=(3, 5, channels)) * 3.0 / np.atleast_1d(plan.input.scale)).astype(np.int32)
    actual = run_native(plan, source, bias)
    np.testing.assert_array_equal(actual, plain_loop(plan, source.reshape(15, channels), bias).reshape(source.shape))


def test_simple_and_general_parameters(path):
    """Without large shifts and biases one bound serves all channels; with them each channel is clamped by itself."""
    rng = np.random.default_rng(1)
    for scale, size in ((3e-5, 1000), (3e-5, 1 << 29), (3e-5, INT32.max), (0.5, 1000), (1e-9, 1000)):
        plan = make_plan(AccumulatorParams(np.full(70, scale)), output_params(rng, "unsigned 8", 70))
        bias = rng.integers(-size, size, 70).astype(np.int32)
        assert_same(plan, accumulators(plan, rng, 100, 70), bias)


def test_every_length(path):
    table = make_plan(QParams(0.05, 120), QParams(0.03, 6))
    per_tensor = make_plan(AccumulatorParams(2e-4), QParams(0.02, 10))
    wide = make_plan(AccumulatorParams(2e-4), QParams(2e-4, 10, 16))
    rng = np.random.default_rng(2)
    for plan in (table, per_tensor, wide):
        session = native_session(plan_model(plan, rank=1))
        for size in [*range(131), 255, 256, 257, 300, 1000]:
            source = rng.integers(0, 256, size).astype(np.uint8)
            if plan is not table:
                source = rng.integers(-30000, 30000, size).astype(np.int32)
            np.testing.assert_array_equal(session.run(None, {"codes": source})[0], plan(source))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 19), (2, 0, 19), (1, 1, 1, 19)])
def test_shapes(path, shape):
    rng = np.random.default_rng(3)
    per_channel = make_plan(AccumulatorParams(rng.uniform(1e-5, 1e-3, 19)), output_params(rng, "unsigned 8", 19))
    per_tensor = make_plan(AccumulatorParams(2e-4), QParams(0.02, 10))
    source = rng.integers(-30000, 30000, shape).astype(np.int32)
    np.testing.assert_array_equal(run_native(per_tensor, source), per_tensor(source))
    if shape[-1] == 19:
        np.testing.assert_array_equal(run_native(per_channel, source), per_channel(source))
    table = make_plan(QParams(0.05, 120), QParams(0.03, 6))
    codes = source.astype(np.uint8)
    np.testing.assert_array_equal(run_native(table, codes), table(codes))


def test_a_single_code(path):
    table = make_plan(QParams(0.05, 120), QParams(0.03, 6))
    codes = np.array(77, np.uint8)
    np.testing.assert_array_equal(run_native(table, codes), table(codes))


@pytest.mark.parametrize("rows", [1, 40, 400])
def test_threads(path, rows):
    rng = np.random.default_rng(4)
    plan = make_plan(AccumulatorParams(rng.uniform(1e-5, 1e-4, 1031)), output_params(rng, "unsigned 8", 1031))
    source = rng.integers(-60000, 60000, (rows, 1031)).astype(np.int32)
    np.testing.assert_array_equal(run_native(plan, source, threads=2), plan(source))
    table = make_plan(QParams(0.05, 120), QParams(0.03, 6))
    codes = source.astype(np.uint8)
    np.testing.assert_array_equal(run_native(table, codes, threads=2), table(codes))
