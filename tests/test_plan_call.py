import gc
import itertools
import threading

import numpy as np
import pytest
from oracle import plan_code
from random_plans import INT32

from qgelu import AccumulatorParams, QGeluError, QParams, make_plan

TABLE = make_plan(QParams(0.05, 128), QParams(0.02, 10))
TABLE_SIGNED = make_plan(QParams(0.05, -3, 8, True), QParams(0.02, -100, 8, True))
TABLE_16 = make_plan(QParams(1e-3, 100, 16, True), QParams(1e-3, 200, 16, False))
TABLE_16_TO_8 = make_plan(QParams(1e-3, 100, 16, True), QParams(0.02, 10))
NARROW = make_plan(AccumulatorParams(1e-3), QParams(0.02, 10))
WIDE = make_plan(AccumulatorParams(1e-3), QParams(1e-3, -100, 16, True))
IBERT = make_plan(AccumulatorParams(1e-2), QParams(0.02, 10), method="ibert")
FROM_CODES = make_plan(QParams(1e-3, 100, 16, True), QParams(1e-3, 200, 16, False), method="polynomial")
CHANNELS = make_plan(AccumulatorParams([1e-3, 1e-4, 1e-2]), QParams([0.02, 0.01, 0.1], [1, 2, 3]))
CODE_CHANNELS = make_plan(QParams([0.05, 0.1, 0.02], [3, 200, 128]), QParams([0.02, 0.05, 0.01], 7), "silu")

PER_TENSOR = {
    "table": TABLE,
    "signed table": TABLE_SIGNED,
    "16-bit table": TABLE_16,
    "16 to 8 bits": TABLE_16_TO_8,
    "narrow": NARROW,
    "wide": WIDE,
    "i-gelu": IBERT,
    "polynomial from codes": FROM_CODES,
}
PLANS = {**PER_TENSOR, "channels": CHANNELS, "channels from codes": CODE_CHANNELS}


def sample(plan, shape, seed=41):
    rng = np.random.default_rng(seed)
    if plan.input_dtype == np.int32:
        return np.rint(rng.normal(0, 3e3, shape)).astype(np.int32)
    info = np.iinfo(plan.input_dtype)
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(plan.input_dtype)


def one_by_one(plan, codes):
    """Return the answers of a per-tensor plan, each from a call of its own."""
    answers = {code: plan(np.array([code], plan.input_dtype))[0] for code in np.unique(codes)}
    return np.array([answers[code] for code in codes.ravel()], plan.output.dtype).reshape(codes.shape)


@pytest.mark.parametrize("plan", PER_TENSOR.values(), ids=PER_TENSOR)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4, 5), (1023,), (1024,), (1025,), (5000,), (1, 1)])
def test_any_shape(plan, shape):
    codes = sample(plan, shape)
    result = plan(codes)
    assert isinstance(result, np.ndarray)
    assert result.shape == shape
    assert result.dtype == plan.output.dtype
    assert np.array_equal(result, one_by_one(plan, codes))


@pytest.mark.parametrize("plan", PER_TENSOR.values(), ids=PER_TENSOR)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 5)])
def test_zero_size(plan, shape):
    result = plan(np.empty(shape, plan.input_dtype))
    assert result.shape == shape
    assert result.dtype == plan.output.dtype
    out = np.empty(shape, plan.output.dtype)
    assert plan(np.empty(shape, plan.input_dtype), out=out) is out


@pytest.mark.parametrize("plan", [CHANNELS, CODE_CHANNELS])
def test_zero_rows_per_channel(plan):
    assert plan(np.empty((0, 3), plan.input_dtype)).shape == (0, 3)
    with pytest.raises(QGeluError, match="3 channels"):
        plan(np.empty((3, 0), plan.input_dtype))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::2],
        lambda a: a[::-1],
        lambda a: a.swapaxes(0, 1),
        np.asfortranarray,
        lambda a: np.broadcast_to(a[:1], a.shape),
        lambda a: a.reshape(-1, 3)[1:-1],
    ],
)
def test_non_contiguous_views(plan, view):
    codes = view(sample(plan, (6, 8, 3)))
    assert np.array_equal(plan(codes), plan(np.array(codes, order="C")))
    out = view(np.zeros((6, 8, 3), plan.output.dtype)).copy(order="K")
    spread = np.zeros((*codes.shape, 2), plan.output.dtype)
    assert plan(codes, out=spread[..., 0]).base is spread
    assert np.array_equal(spread[..., 0], plan(codes, out=out))
    assert not spread[..., 1].any()


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_input_is_left_alone_and_may_be_read_only(plan):
    codes = sample(plan, (50, 3))
    kept = codes.copy()
    expected = plan(codes)
    assert np.array_equal(codes, kept)
    codes.setflags(write=False)
    assert np.array_equal(plan(codes), expected)
    assert not np.shares_memory(plan(codes), codes)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_out_receives_the_codes(plan):
    codes = sample(plan, (50, 3))
    expected = plan(codes)
    out = np.zeros((50, 3), plan.output.dtype)
    assert plan(codes, out=out) is out
    assert np.array_equal(out, expected)
    fortran = np.zeros((50, 3), plan.output.dtype, order="F")
    assert plan(codes, out=fortran) is fortran
    assert np.array_equal(fortran, expected)


@pytest.mark.parametrize(
    "plan", [TABLE, TABLE_SIGNED, FROM_CODES, CODE_CHANNELS], ids=["table", "signed", "polynomial", "channels"]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_in_place(plan, threads):
    source = sample(plan, (300_000, 3))
    expected = plan(source)
    if plan.output.dtype != source.dtype:
        source = source.view(plan.output.dtype)
        inplace = source.view(plan.input_dtype)
    else:
        inplace = source
    assert plan(inplace, out=source, threads=threads) is source
    assert np.array_equal(source, expected)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 64, 3000])
@pytest.mark.parametrize("threads", [1, 2])
def test_overlapping_input_and_output(plan, offset, threads):
    """Whatever bytes the two share, the answer is that of separate arrays."""
    rows = 100_000
    for back in (False, True):
        memory = np.zeros(rows * 3 * 4 + 24_576, np.uint8)
        in_size, out_size = plan.input_dtype.itemsize, plan.output.dtype.itemsize
        in_start, out_start = (offset * 8, 0) if back else (0, offset * 8)
        source = memory[in_start : in_start + rows * 3 * in_size].view(plan.input_dtype).reshape(rows, 3)
        target = memory[out_start : out_start + rows * 3 * out_size].view(plan.output.dtype).reshape(rows, 3)
        source[...] = sample(plan, (rows, 3))
        expected = plan(source.copy())
        plan(source, out=target, threads=threads)
        assert np.array_equal(target, expected)


def test_overlapping_strided_views():
    memory = sample(TABLE, (4000,))
    expected = TABLE(memory[::-1].copy())
    TABLE(memory[::-1], out=memory)
    assert np.array_equal(memory, expected)
    memory = sample(TABLE, (4000,))
    expected = TABLE(memory[:2000].copy())
    TABLE(memory[:2000], out=memory[::2])
    assert np.array_equal(memory[::2], expected)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("threads", [1, 2, 3, 64, np.int64(2)])
def test_threads_change_nothing(plan, threads):
    codes = sample(plan, (200_001, 3))
    bias = np.array([5, -7, 1000]) if plan.input_dtype == np.int32 else None
    assert np.array_equal(plan(codes, bias=bias, threads=threads), plan(codes, bias=bias))


def test_plans_may_be_called_from_several_threads():
    codes = sample(CHANNELS, (20_000, 3))
    expected = CHANNELS(codes)
    results = [None] * 4

    def work(index):
        results[index] = CHANNELS(codes, threads=2)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(np.array_equal(result, expected) for result in results)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True + 0.5])
def test_bad_threads(threads):
    with pytest.raises(QGeluError, match="threads"):
        TABLE(sample(TABLE, (4,)), threads=threads)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_wrong_dtypes_are_refused(plan):
    for dtype in (np.float32, np.float64, np.int64, np.uint32, np.bool_, ">i4", "S1", object):
        if np.dtype(dtype) != plan.input_dtype:
            with pytest.raises(QGeluError, match="cast them first"):
                plan(np.zeros((2, 3)).astype(dtype))
    with pytest.raises(QGeluError, match="ragged"):
        plan([[1], [1, 2]])


@pytest.mark.parametrize("plan", [CHANNELS, CODE_CHANNELS])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 1), (3, 2)])
def test_wrong_channels_are_refused(plan, shape):
    with pytest.raises(QGeluError, match="3 channels"):
        plan(np.zeros(shape, plan.input_dtype))


@pytest.mark.parametrize("plan", [CHANNELS, CODE_CHANNELS])
def test_channels_are_the_last_axis(plan):
    codes = sample(plan, (2, 4, 5, 3))
    result = plan(codes)
    zero = np.zeros(3, np.int64) if plan is CHANNELS else plan.input.zero_point
    for index in itertools.product(range(2), range(4), range(5), range(3)):
        channel = index[-1]
        assert result[index] == plan_code(plan, int(codes[index]) - int(zero[channel]), channel)
    assert np.array_equal(plan(codes[0, 0, 0]), result[0, 0, 0])


def test_bad_out_is_refused():
    codes = sample(NARROW, (4, 3))
    bad = [
        np.zeros((4, 3), np.int8),
        np.zeros((4, 3), np.int32),
        np.zeros((3, 4), np.uint8),
        np.zeros((12,), np.uint8),
        np.zeros((1, 4, 3), np.uint8),
        codes,
        [0] * 12,
        "out",
    ]
    for out in bad:
        with pytest.raises(QGeluError, match="out"):
            NARROW(codes, out=out)
    locked = np.zeros((4, 3), np.uint8)
    locked.setflags(write=False)
    with pytest.raises(QGeluError, match="read-only"):
        NARROW(codes, out=locked)


@pytest.mark.parametrize("plan", [NARROW, WIDE, IBERT, CHANNELS])
def test_every_kind_of_bias(plan):
    codes = sample(plan, (5, 3))
    each = np.array([100, -200, 300])
    expected = plan((codes + each).astype(np.int32))
    for dtype in (np.int16, np.int32, np.int64, ">i4"):
        assert np.array_equal(plan(codes, bias=each.astype(dtype)), expected)
    assert np.array_equal(plan(codes, bias=each.tolist()), expected)
    for dtype in (np.int32, np.int64):
        assert np.array_equal(plan(codes, bias=np.repeat(each.astype(dtype), 2)[::2]), expected)
        assert np.array_equal(plan(codes, bias=each.astype(dtype)[::-1].copy()[::-1]), expected)
    locked = each.astype(np.int32)
    locked.setflags(write=False)
    assert np.array_equal(plan(codes, bias=locked), expected)
    scalar = plan((codes + 77).astype(np.int32))
    for bias in (77, np.int8(77), np.uint64(77), np.array(77)):
        assert np.array_equal(plan(codes, bias=bias), scalar)
    assert np.array_equal(plan(codes, bias=0), plan(codes))
    assert np.array_equal(plan(codes[0], bias=each), expected[0])


@pytest.mark.parametrize("plan", [NARROW, WIDE, IBERT])
def test_a_strided_bias_of_many_channels(plan):
    codes = sample(plan, (4, 300))
    each = np.arange(-150, 150, dtype=np.int32) * 7
    expected = plan((codes + each).astype(np.int32))
    for bias in (np.repeat(each, 3)[::3], each[::-1].copy()[::-1], np.stack([each, each + 1], axis=1)[:, 0]):
        assert np.array_equal(plan(codes, bias=bias), expected)


@pytest.mark.parametrize("plan", [NARROW, WIDE, IBERT, CHANNELS])
@pytest.mark.parametrize(
    "bias",
    [
        0.0,
        [1.0, 2.0, 3.0],
        True,
        [True, False, True],
        "1",
        2**31,
        -(2**31) - 1,
        2**80,
        np.uint64(2**63),
        [0, 2**31, 0],
        [1, 2],
        [1, 2, 3, 4],
        [[1, 2, 3]],
        np.array([1, 2], np.int32),
        np.array([1, 2, 3, 4], np.int32),
        np.array([[1, 2, 3]], np.int32),
        np.array([1], np.int32),
        [],
        [1, [2]],
        np.nan,
    ],
)
def test_bad_bias_is_refused(plan, bias):
    with pytest.raises(QGeluError, match="bias"):
        plan(sample(plan, (5, 3)), bias=bias)


@pytest.mark.parametrize("plan", [TABLE, FROM_CODES, CODE_CHANNELS])
def test_bias_goes_with_accumulators_only(plan):
    for bias in (1, [1, 2, 3], np.array([1, 2, 3], np.int32)):
        with pytest.raises(QGeluError, match="bias goes with accumulators"):
            plan(sample(plan, (5, 3)), bias=bias)


def test_bias_of_a_scalar_input():
    assert NARROW(np.int32(5), bias=7) == NARROW(np.int32(12))
    with pytest.raises(QGeluError, match="bias"):
        NARROW(np.int32(5), bias=[7])


def test_the_bias_may_lie_in_the_output():
    memory = np.zeros(64, np.uint8)
    bias = memory[:12].view(np.int32)
    bias[:] = [100, 200, 300]
    codes = sample(NARROW, (4, 3))
    expected = NARROW(codes, bias=bias.copy())
    assert np.array_equal(NARROW(codes, bias=bias, out=memory[:12].reshape(4, 3)), expected)


@pytest.mark.parametrize("plan", [NARROW, WIDE, IBERT, CHANNELS])
def test_extreme_accumulators_do_not_overflow(plan):
    ends = np.array([[INT32.min] * 3, [INT32.max] * 3, [0] * 3], np.int32)
    for bias in (INT32.min, INT32.max, 0):
        codes = plan(ends, bias=bias).astype(np.int64)
        zero = np.broadcast_to(plan.output.zero_point, 3)
        assert np.all(codes[0] - zero <= 1) or bias == INT32.max
        assert np.array_equal(codes[1], [plan.output.qmax] * 3) or bias == INT32.min


def test_attributes():
    assert CHANNELS.channels == 3
    assert CODE_CHANNELS.channels == 3
    assert NARROW.channels is None
    assert make_plan(AccumulatorParams(1e-3), QParams([0.1, 0.2])).channels == 2
    assert TABLE_16.input_dtype == np.int16
    assert NARROW.input_dtype == np.int32


def test_results_do_not_keep_the_input_alive():
    codes = sample(TABLE, (1000,))
    result = TABLE(codes)
    del codes
    gc.collect()
    assert result.base is None or result.base.size == result.size
