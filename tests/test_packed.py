"""4-bit codes, two to a byte."""

import numpy as np
import onnx
import pytest
from onnx import helper

from qgelu import AccumulatorParams, QGeluError, QParams, make_plan, pack_int4, run_packed, unpack_int4

U4, S4 = QParams(0.5, 3, 4), QParams(0.5, -2, 4, True)
SHAPES = [(), (0,), (1,), (2,), (3,), (5, 7), (2, 3, 4), (0, 3), (129,), (3, 1025)]


def random_codes(params, shape, seed=3):
    rng = np.random.default_rng(seed)
    return rng.integers(params.qmin, params.qmax, shape, endpoint=True).astype(params.dtype)


def onnx_bytes(codes, signed):
    """Return the bytes that ONNX stores, by its own packing."""
    kind = onnx.TensorProto.INT4 if signed else onnx.TensorProto.UINT4
    stored = helper.make_tensor("t", kind, codes.shape, codes.ravel())
    return np.array(list(stored.int32_data), np.int32).astype(np.uint8)


@pytest.mark.parametrize("params", [U4, S4, QParams(0.5, 1, 3), QParams(0.5, 0, 2, True)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packing_is_that_of_onnx_and_comes_back(params, shape):
    codes = random_codes(params, shape)
    packed = pack_int4(codes, params)
    assert np.array_equal(packed, onnx_bytes(codes, params.signed))
    back = unpack_int4(packed, shape, params)
    assert back.dtype == params.dtype
    assert back.shape == shape
    assert np.array_equal(back, codes)


@pytest.mark.parametrize("input", [U4, S4], ids=["uint4", "int4"])
@pytest.mark.parametrize("output", [U4, S4], ids=["uint4", "int4"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "quick_gelu", "silu"])
def test_every_pair_of_codes(input, output, activation):
    plan = make_plan(input, output, activation)
    packed = np.arange(256, dtype=np.uint8)
    expected = pack_int4(plan(unpack_int4(packed, (512,), input)), output)
    assert np.array_equal(run_packed(plan, packed, (512,)), expected)
    assert np.array_equal(run_packed(plan, packed, (2, 256), threads=2), expected)


PLANS = {
    "4 to 4": make_plan(U4, S4),
    "4 to 8": make_plan(S4, QParams(0.02, 9)),
    "8 to 4": make_plan(QParams(0.05, 128), S4),
    "4 to 16": make_plan(U4, QParams(1e-4, 9, 16)),
    "16 to 3": make_plan(QParams(1e-3, 0, 16, True), QParams(0.7, 1, 3)),
    "int32 to 4": make_plan(AccumulatorParams(1e-3), U4),
    "4 to 4, by a polynomial": make_plan(U4, S4, method="polynomial"),
}


def plain(plan, q, bias=None):
    codes = plan(q, bias=bias)
    return pack_int4(codes, plan.output) if plan.output.bits <= 4 else codes


def source_of(plan, shape):
    if plan.input_dtype == np.int32:
        return np.random.default_rng(5).integers(-9000, 9000, shape).astype(np.int32)
    return random_codes(plan.input, shape)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packed_and_plain_agree(plan, shape):
    q = source_of(plan, shape)
    takes_packed = plan.input_dtype != np.int32 and plan.input.bits <= 4
    given = pack_int4(q, plan.input) if takes_packed else q
    expected = plain(plan, q)
    result = run_packed(plan, given, shape)
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected)
    out = np.full(expected.shape, 77, expected.dtype)
    assert run_packed(plan, given, shape, out=out) is out
    assert np.array_equal(out, expected)
    strided = np.full((*expected.shape, 2), 77, expected.dtype)
    run_packed(plan, given, shape, out=strided[..., 0])
    assert np.array_equal(strided[..., 0], expected)
    assert (strided[..., 1] == 77).all()


def test_channels_and_bias():
    plan = make_plan(AccumulatorParams([1e-3, 2e-3, 5e-4]), QParams([0.1, 0.2, 0.4], [1, 2, 3], 4))
    sums, bias = source_of(plan, (11, 3)), np.array([500, -300, 20], np.int32)
    assert np.array_equal(run_packed(plan, sums, (11, 3), bias=bias), plain(plan, sums, bias))


def test_in_place_and_read_only_and_strided_input():
    plan = PLANS["4 to 4"]
    packed = np.arange(256, dtype=np.uint8)
    expected = run_packed(plan, packed, (511,))
    assert expected[-1] < 16
    again = packed.copy()
    run_packed(plan, again, (511,), out=again)
    assert np.array_equal(again, expected)
    packed.setflags(write=False)
    assert np.array_equal(run_packed(plan, packed, (511,)), expected)
    assert np.array_equal(run_packed(plan, np.repeat(packed, 2)[::2], (511,)), expected)
    overlapping = np.concatenate([packed, packed[:1]])
    run_packed(plan, overlapping[:-1], (511,), out=overlapping[1:])
    assert np.array_equal(overlapping[1:], expected)


def test_large_tensors_on_two_threads():
    plan = PLANS["4 to 4"]
    packed = np.random.default_rng(9).integers(0, 256, 1_500_000).astype(np.uint8)
    assert np.array_equal(run_packed(plan, packed, (2_999_999,), threads=2), run_packed(plan, packed, (2_999_999,)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pack_int4(np.zeros(3, np.uint8), QParams(1.0, 0)), "8 bits"),
        (lambda: unpack_int4(np.zeros(3, np.uint8), (6,), QParams(1.0, 0)), "8 bits"),
        (lambda: pack_int4(np.array([16], np.uint8), U4), "leave 0 to 15"),
        (lambda: pack_int4(np.array([-9], np.int8), S4), "leave -8 to 7"),
        (lambda: pack_int4(np.zeros(3, np.int8), U4), "int8"),
        (lambda: unpack_int4(np.zeros(3, np.uint8), (7,), U4), r"uint8 \(4,\)"),
        (lambda: unpack_int4(np.zeros(3, np.int8), (6,), U4), "int8"),
        (lambda: unpack_int4(np.zeros(3, np.uint8), (2, -3), U4), "negative"),
        (lambda: unpack_int4(np.zeros(3, np.uint8), 6, U4), "sequence"),
        (lambda: unpack_int4(np.zeros(3, np.uint8), (6.0,), U4), "whole numbers"),
        (lambda: run_packed(PLANS["4 to 4"], np.zeros(3, np.uint8), (3, 3)), r"uint8 \(5,\)"),
        (lambda: run_packed(PLANS["4 to 4"], np.zeros(3, np.uint8), (6,), out=np.zeros(6, np.uint8)), "out is"),
        (lambda: run_packed(PLANS["8 to 4"], np.zeros(6, np.uint8), (6,), out=np.zeros(6, np.uint8)), "out is"),
        (lambda: run_packed(PLANS["8 to 4"], np.zeros(6, np.uint8), (2, 3)), "not"),
        (lambda: run_packed(PLANS["4 to 4"], np.zeros(3, np.uint8), (6,), bias=np.zeros(1, np.int32)), "bias"),
        (lambda: run_packed(PLANS["4 to 4"], np.zeros(3, np.uint8), (6,), threads=0), "threads"),
        (lambda: run_packed(make_plan(QParams(1.0, 0), QParams(1.0, 0)), np.zeros(3, np.uint8), (3,)), "neither side"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(QGeluError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
