"""Every path of every kernel: against the plain loops, against exact integers, at every length and alignment."""

import importlib
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import llvmlite.binding
import numba
import numpy as np
import pytest
from llvmlite import ir
from oracle import narrow_steps, wide_steps
from random_plans import INT32, hard_sums

from qgelu import AccumulatorParams, QGeluError, QParams, make_plan
from qgelu.kernels import narrow as plain_narrow
from qgelu.kernels import narrow_ir, table_ir
from qgelu.kernels import wide as plain_wide
from qgelu.kernels.binding import BoundNarrow, BoundTable, BoundWide
from qgelu.kernels.cpu import PATHS, allowed, offered, target
from qgelu.kernels.layout import LARGEST_WASTE, repetitions
from qgelu.kernels.registry import IMPLEMENTATIONS, choose, selected
from qgelu.kernels.version import VERSION
from qgelu.kernels.wide_blocks import pack_wide_blocks
from qgelu.kernels.wide_vector import block_layout
from qgelu.kernels.workers import run_pieces
from qgelu.narrow import V_LIMIT

ROOT = Path(__file__).resolve().parent.parent
FEATURES = target()[2]
LENGTHS = [*range(131), 255, 256, 257, 1000, 4099]


def implementations(kernel):
    """Return a parameter per path of a kernel; paths that this CPU has not got are skipped by name."""
    return [
        pytest.param(
            item,
            id=item.path,
            marks=pytest.mark.skipif(not item.features <= FEATURES, reason=f"CPU without {', '.join(item.features)}"),
        )
        for item in IMPLEMENTATIONS
        if item.kernel == kernel
    ]


# Tables


def table_of(seed, dtype, size=256):
    info = np.iinfo(dtype)
    table = np.random.default_rng(seed).integers(info.min, info.max, size, endpoint=True).astype(dtype)
    table.setflags(write=False)
    return table


def check_lookup(kernel, codes, table, start):
    """Run at a chosen alignment between guards, into another array and in place."""
    unsigned = codes.view(f"u{codes.itemsize}")
    expected = [int(table[int(code)]) for code in unsigned]
    guarded = np.full(codes.size + start + 1, 77, table.dtype)
    source = np.empty(codes.size + start, codes.dtype)[start:]
    source[:] = codes
    kernel(None, source, guarded[start:-1])
    assert guarded[start:-1].tolist() == expected
    assert guarded[-1] == 77
    assert np.all(guarded[:start] == 77)
    assert np.array_equal(source, codes)
    if table.itemsize == codes.itemsize:
        kernel(None, source, source.view(table.dtype))
        assert source.view(table.dtype).tolist() == expected


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("implementation", implementations("table_8"))
def test_byte_table(implementation, dtype):
    table = table_of(1, dtype)
    kernel = BoundTable(implementation, table)
    rng = np.random.default_rng(2)
    for length in LENGTHS:
        codes = rng.integers(0, 256, length).astype(np.uint8).view(dtype)
        for start in {0, 1, 13, length % 64}:
            check_lookup(kernel, codes, table, start)


@pytest.mark.parametrize("implementation", implementations("table_8"))
def test_byte_table_at_every_code_and_lane(implementation):
    codes = np.arange(256, dtype=np.uint8)
    for seed in range(4):
        table = table_of(seed, np.uint8)
        kernel = BoundTable(implementation, table)
        for shift in range(0, 64):
            check_lookup(kernel, np.roll(codes, shift), table, shift)


@pytest.mark.parametrize("source", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("result", [np.int8, np.uint8, np.uint16, np.int16])
@pytest.mark.parametrize("implementation", implementations("table_16"))
def test_wide_table(implementation, source, result):
    size = 256 if np.dtype(source).itemsize == 1 else 65536
    if np.dtype(source).itemsize == np.dtype(result).itemsize == 1:
        pytest.skip("this is the byte table")
    table = table_of(3, result, size)
    kernel = BoundTable(implementation, table)
    rng = np.random.default_rng(4)
    for length in [*range(0, 70), 131]:
        codes = rng.integers(0, size, length).astype(f"u{np.dtype(source).itemsize}").view(source)
        check_lookup(kernel, codes, table, length % 5)
    check_lookup(kernel, np.arange(size).astype(f"u{np.dtype(source).itemsize}").view(source), table, 1)


# The narrow kernel


def bind_narrow(plan, implementation, channels):
    arrays = {name: np.broadcast_to(array, (channels,)) for name, array in plan.integers.channel_arrays().items()}
    code_range = plan.output.qmax - plan.output.qmin
    return BoundNarrow(implementation, arrays, plan.integers.coefficients, code_range, plan.output.qmin)


def plain_codes(plan, accumulator, bias):
    """Return what the plain loops make of rows of channels."""
    channels = bias.size
    plain = plain_narrow if plan.lanes == 16 else plain_wide
    clamped_bias = plan.clamped_bias(channels, bias)
    arrays = plan.integers.channel_arrays()
    out = np.empty((accumulator.size // channels, channels), plan.output.dtype)
    plain.requantize(
        accumulator.reshape(-1, channels),
        *clamped_bias,
        *(np.broadcast_to(array, (channels,)).copy() for name, array in arrays.items() if name != "limit"),
        plan.integers.coefficients,
        plan.output.qmax - plan.output.qmin,
        plan.output.qmin,
        out,
    )
    return out.reshape(-1)


def channel_plan(channels, seed, activation="gelu", bits=8, signed=False, input_scale=(1e-5, 1e-4)):
    rng = np.random.default_rng(seed)
    low = -(1 << (bits - 1)) if signed else 0
    output = QParams(
        np.exp(rng.uniform(np.log(0.02), np.log(0.2), channels)),
        rng.integers(low, low + (1 << bits), channels),
        bits,
        signed,
    )
    plan = make_plan(AccumulatorParams(np.exp(rng.uniform(*np.log(input_scale), channels))), output, activation)
    assert plan.lanes == 16
    return plan


def accumulators(rng, count, scale=5e-5):
    values = rng.normal(0, 3 / scale, count)
    wild = rng.random(count) < 0.05
    values[wild] = rng.integers(INT32.min, INT32.max, int(wild.sum()), endpoint=True)
    return np.clip(np.rint(values), INT32.min, INT32.max).astype(np.int32)


def run_guarded(kernel, bias, source, dtype, start=0):
    """Run on a read-only source at a chosen alignment, between guards."""
    out = np.full(source.size + start + 1, 77, dtype)
    shifted = np.empty(source.size + start, np.int32)[start:]
    shifted[:] = source
    shifted.setflags(write=False)
    kernel(bias, shifted, out[start:-1])
    assert out[-1] == 77
    assert np.all(out[:start] == 77)
    return out[start:-1]


@pytest.mark.parametrize("implementation", implementations("narrow"))
@pytest.mark.parametrize("channels", [*range(1, 71), 127, 128, 129, 130, 700, 3072])
def test_narrow_with_any_channels(implementation, channels):
    plan = channel_plan(channels, channels)
    kernel = bind_narrow(plan, implementation, channels)
    rng = np.random.default_rng(channels)
    bias = rng.integers(-(10**5), 10**5, channels).astype(np.int32)
    for rows in (1, 2, 3, 13):
        source = accumulators(rng, rows * channels)
        for given in (None, bias):
            expected = plain_codes(plan, source, np.zeros(channels, np.int32) if given is None else given)
            assert np.array_equal(run_guarded(kernel, given, source, np.uint8, rows), expected)


@pytest.mark.parametrize("implementation", implementations("narrow"))
@pytest.mark.parametrize("signed", [False, True])
def test_narrow_at_any_length(implementation, signed):
    plan = make_plan(AccumulatorParams(5e-5), QParams(0.03, -7 if signed else 9, 8, signed))
    kernel = bind_narrow(plan, implementation, 1)
    rng = np.random.default_rng(5)
    bias = np.array([12345], np.int32)
    for length in LENGTHS:
        source = accumulators(rng, length)
        expected = plain_codes(plan, source, bias)
        assert np.array_equal(run_guarded(kernel, bias, source, plan.output.dtype, length % 67), expected)


@pytest.mark.parametrize("implementation", implementations("narrow"))
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "quick_gelu", "silu"])
@pytest.mark.parametrize(("bits", "signed"), [(8, False), (8, True), (4, False), (3, True)])
def test_narrow_against_exact_integers(implementation, activation, bits, signed):
    channels = 5
    plan = channel_plan(channels, bits, activation, bits, signed)
    kernel = bind_narrow(plan, implementation, channels)
    rng = np.random.default_rng(6)
    for channel in range(channels):
        sums = hard_sums(plan, channel, rng)
        source = np.zeros((sums.size, channels), np.int32)
        source[:, channel] = sums
        codes = run_guarded(kernel, None, source.reshape(-1), plan.output.dtype).reshape(-1, channels)
        assert codes[:, channel].tolist() == [narrow_steps(plan, total, channel)[1] for total in sums]


@pytest.mark.parametrize("implementation", implementations("narrow"))
def test_narrow_at_every_argument(implementation):
    """An argument shift and multiplier of 0: v runs through every u, on both sides."""
    plan = make_plan(AccumulatorParams(4.5 / 65536), QParams(0.05, 5))
    assert plan.integers.argument_multiplier[0] == 0
    assert plan.integers.argument_shift[0] == plan.integers.left_shift[0]
    sums = np.arange(-65536, 65537, dtype=np.int32)
    codes = run_guarded(bind_narrow(plan, implementation, 1), None, sums, np.uint8)
    assert codes.tolist() == [narrow_steps(plan, total, 0)[1] for total in sums]


@pytest.mark.parametrize("implementation", implementations("narrow"))
def test_narrow_shifted_left(implementation):
    """Coarse accumulators are shifted left, in some channels only."""
    plan = channel_plan(77, 7, input_scale=(1e-4, 0.5))
    shifts = plan.integers.left_shift
    assert shifts.min() == 0 < shifts.max()
    kernel = bind_narrow(plan, implementation, 77)
    rng = np.random.default_rng(8)
    for bias in (None, rng.integers(-50, 50, 77).astype(np.int32), np.full(77, INT32.min, np.int32)):
        source = accumulators(rng, 77 * 9, 0.05)
        expected = plain_codes(plan, source, np.zeros(77, np.int32) if bias is None else bias)
        assert np.array_equal(run_guarded(kernel, bias, source, np.uint8), expected)


@pytest.mark.parametrize("implementation", implementations("narrow"))
def test_narrow_with_the_largest_sums(implementation):
    """Bias and accumulator at int32's ends: no sum may overflow, whichever way clamping is done."""
    plan = channel_plan(64, 9)
    kernel = bind_narrow(plan, implementation, 64)
    ends = np.array([INT32.min, INT32.min + 1, -1, 0, 1, INT32.max - 1, INT32.max], np.int32)
    for size in (narrow_ir.SUM_EDGE - 1, narrow_ir.SUM_EDGE, narrow_ir.SUM_EDGE + 1, V_LIMIT, INT32.max):
        for bias in (np.full(64, size, np.int32), np.full(64, -size, np.int32), np.full(64, INT32.min, np.int32)):
            near = np.clip(-bias[0].astype(np.int64) + np.arange(-(2**20), 2**20, 4001), INT32.min, INT32.max)
            source = np.repeat(np.concatenate([ends, near.astype(np.int32)]), 64)
            assert np.array_equal(run_guarded(kernel, bias, source, np.uint8), plain_codes(plan, source, bias))


@pytest.mark.parametrize("bits", [5, 8])
@pytest.mark.parametrize("implementation", implementations("narrow"))
def test_narrow_with_one_sum_that_wraps(implementation, bits):
    """Sums are clamped only where one is found that might overflow: whichever lane, block, row or rest it is in."""
    plan = channel_plan(40, 9, bits=bits)
    kernel = bind_narrow(plan, implementation, 40)
    rng = np.random.default_rng(8)
    bias = np.where(np.arange(40) % 2, narrow_ir.SUM_EDGE - 1, 1 - narrow_ir.SUM_EDGE).astype(np.int32)
    quiet = np.tile(-bias, 7) + rng.integers(-200000, 200000, 280).astype(np.int32)
    for place in range(quiet.size):
        source = quiet.copy()
        source[place] = INT32.max if bias[place % 40] > 0 else INT32.min
        assert np.array_equal(run_guarded(kernel, bias, source, np.uint8), plain_codes(plan, source, bias))


@pytest.mark.parametrize("implementation", implementations("narrow"))
def test_narrow_where_the_limit_is_cut(implementation):
    """At the finest accumulator scales v is clamped before both branches saturate, and that must be kept."""
    plan = make_plan(AccumulatorParams(3e-9), QParams(0.05, 3))
    assert int(plan.integers.limit[0]) == V_LIMIT
    kernel = bind_narrow(plan, implementation, 1)
    source = np.array([INT32.min, -V_LIMIT - 1, -V_LIMIT, V_LIMIT, V_LIMIT + 1, INT32.max] * 20, np.int32)
    for value in (0, 10**6, INT32.max, INT32.min):
        bias = np.array([value], np.int32)
        assert np.array_equal(run_guarded(kernel, bias, source, np.uint8), plain_codes(plan, source, bias))


@pytest.mark.parametrize("implementation", implementations("narrow"))
def test_narrow_with_arbitrary_parameters(implementation):
    """Whatever fits the widths, whether a plan would have it or not: tails below 0, limits below saturation."""
    rng = np.random.default_rng(13)
    channels = 100
    for left_shifts in (1, 12):
        left = rng.integers(0, left_shifts, channels)
        arrays = {
            "limit": rng.integers(1, V_LIMIT >> left, channels),
            "left_shift": left,
            "linear_shift": rng.integers(0, 15, channels),
            "linear_multiplier": rng.integers(0, 32768, channels),
            "argument_shift": rng.integers(0, 15, channels),
            "argument_multiplier": rng.integers(0, 32768, channels),
            "tail_multiplier": rng.integers(0, 65536, channels),
            "offset": rng.integers(0, 32768, channels),
        }
        arrays = {name: array.astype(np.int32) for name, array in arrays.items()}
        coefficients = rng.integers(-10000, 10000, (16, 4)).astype(np.int32)
        source = (rng.choice([-1, 1], 50 * channels) * np.exp2(rng.uniform(0, 31, 50 * channels))).astype(np.int32)
        expected = np.empty((50, channels), np.uint8)
        limit, *others = arrays.values()
        zero = np.zeros(channels, np.int32)
        plain_narrow.requantize(
            source.reshape(50, channels), zero, -limit, limit, *others, coefficients, 200, 0, expected
        )
        kernel = BoundNarrow(implementation, arrays, coefficients, 200, 0)
        assert np.array_equal(run_guarded(kernel, None, source, np.uint8), expected.reshape(-1))


# The wide kernel


def bind_wide(plan, implementation, channels):
    arrays = {name: np.broadcast_to(array, (channels,)) for name, array in plan.integers.channel_arrays().items()}
    code_range = plan.output.qmax - plan.output.qmin
    return BoundWide(implementation, arrays, plan.integers.coefficients, code_range, plan.output.qmin)


def wide_plan(channels, seed, activation="gelu", bits=16, signed=True, input_scale=(1e-6, 1e-4)):
    rng = np.random.default_rng(seed)
    low = -(1 << (bits - 1)) if signed else 0
    output = QParams(
        np.exp(rng.uniform(np.log(3e-5), np.log(1e-3), channels)),
        rng.integers(low, low + (1 << bits), channels),
        bits,
        signed,
    )
    plan = make_plan(AccumulatorParams(np.exp(rng.uniform(*np.log(input_scale), channels))), output, activation)
    assert plan.lanes == 32
    return plan


@pytest.mark.parametrize("implementation", implementations("wide"))
@pytest.mark.parametrize("channels", [*range(1, 71), 127, 128, 129, 130, 700, 3072])
def test_wide_with_any_channels(implementation, channels):
    plan = wide_plan(channels, channels)
    kernel = bind_wide(plan, implementation, channels)
    rng = np.random.default_rng(channels)
    bias = rng.integers(-(10**5), 10**5, channels).astype(np.int32)
    for rows in (1, 2, 3, 13):
        source = accumulators(rng, rows * channels, 1e-5)
        for given in (None, bias):
            expected = plain_codes(plan, source, np.zeros(channels, np.int32) if given is None else given)
            assert np.array_equal(run_guarded(kernel, given, source, np.int16, rows), expected)


@pytest.mark.parametrize("implementation", implementations("wide"))
@pytest.mark.parametrize(("bits", "signed"), [(16, False), (16, True), (8, False), (8, True)])
def test_wide_at_any_length(implementation, bits, signed):
    plan = make_plan(AccumulatorParams(1e-6), QParams(1e-4, -7 if signed else 9, bits, signed), "silu")
    assert plan.lanes == 32
    kernel = bind_wide(plan, implementation, 1)
    rng = np.random.default_rng(5)
    bias = np.array([12345], np.int32)
    for length in LENGTHS:
        source = accumulators(rng, length, 1e-6)
        expected = plain_codes(plan, source, bias)
        assert np.array_equal(run_guarded(kernel, bias, source, plan.output.dtype, length % 67), expected)


@pytest.mark.parametrize("implementation", implementations("wide"))
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "quick_gelu", "silu"])
@pytest.mark.parametrize(("bits", "signed"), [(16, False), (16, True), (11, False), (8, True)])
def test_wide_against_exact_integers(implementation, activation, bits, signed):
    channels = 5
    plan = wide_plan(channels, bits, activation, bits, signed)
    kernel = bind_wide(plan, implementation, channels)
    rng = np.random.default_rng(6)
    for channel in range(channels):
        sums = hard_sums(plan, channel, rng)
        source = np.zeros((sums.size, channels), np.int32)
        source[:, channel] = sums
        codes = run_guarded(kernel, None, source.reshape(-1), plan.output.dtype).reshape(-1, channels)
        assert codes[:, channel].tolist() == [wide_steps(plan, total, channel)[1] for total in sums]


@pytest.mark.parametrize("implementation", implementations("wide"))
def test_wide_with_the_largest_sums(implementation):
    plan = wide_plan(64, 9)
    kernel = bind_wide(plan, implementation, 64)
    ends = np.array([INT32.min, INT32.min + 1, -1, 0, 1, INT32.max - 1, INT32.max], np.int32)
    for value in (0, 1, 2**30, INT32.max, INT32.min, -(2**30)):
        bias = np.full(64, value, np.int32)
        near = np.clip(-int(value) + np.arange(-(2**20), 2**20, 4001), INT32.min, INT32.max)
        source = np.repeat(np.concatenate([ends, near.astype(np.int32)]), 64)
        assert np.array_equal(run_guarded(kernel, bias, source, np.int16), plain_codes(plan, source, bias))


@pytest.mark.parametrize("implementation", implementations("wide"))
@pytest.mark.parametrize("degree", [1, 2, 3, 4, 7])
def test_wide_with_arbitrary_parameters(implementation, degree):
    """Whatever fits the widths, whether a plan would have it or not; both forms of the kernel."""
    rng = np.random.default_rng(degree)
    channels, forms = 100, set()
    for finest in (0, 20):
        left = rng.integers(0, 4, channels)
        output_shift = rng.integers(max(finest, 1), 45, channels)
        arrays = {
            "limit": rng.integers(1, (2**31 - 1) >> left, channels),
            "left_shift": left,
            "argument_multiplier": rng.integers(1, 2**31, channels),
            "argument_shift": rng.integers(41, 54, channels) if finest else rng.integers(1, 63, channels),
            "linear_multiplier": rng.integers(0, 2 ** (31 - finest), channels),
            "tail_multiplier": rng.integers(0, 2 ** (31 - finest), channels),
            "offset": (rng.integers(0, 65536, channels) << output_shift) + (1 << output_shift >> 1),
            "output_shift": output_shift,
        }
        coefficients = rng.integers(-(2**17) // (degree + 2), 2**17 // (degree + 2), (32, degree + 1)).astype(np.int32)
        if finest:
            coefficients[:, -2:] = rng.integers(-21844, 21845, (32, 2))
        source = (rng.choice([-1, 1], 50 * channels) * np.exp2(rng.uniform(0, 31, 50 * channels))).astype(np.int32)
        expected = np.empty((50, channels), np.uint16)
        wide = {name: array if name == "offset" else array.astype(np.int32) for name, array in arrays.items()}
        limit, *others = wide.values()
        zero = np.zeros(channels, np.int32)
        plain_wide.requantize(
            source.reshape(50, channels), zero, -limit, limit, *others, coefficients, 60000, 0, expected
        )
        kernel = BoundWide(implementation, wide, coefficients, 60000, 0)
        forms.add(pack_wide_blocks(wide, coefficients, *block_layout(implementation.path)).general)
        assert np.array_equal(run_guarded(kernel, None, source, np.uint16), expected.reshape(-1))
    assert forms == ({False, True} if degree > 2 else {True})


def test_few_channels_fill_blocks():
    for block in (16, 32, 64):
        for channels in range(1, 300):
            width = channels * repetitions(channels, block)
            assert width >= block
            assert -(-width // block) * block <= LARGEST_WASTE * width


# Use from other compiled code


@pytest.mark.parametrize("parallel", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["table", "narrow", "wide"])
def test_from_compiled_code(kind, parallel):
    rng = np.random.default_rng(10)
    if kind == "table":
        plan = make_plan(QParams(0.05, 128), QParams(0.02, 10))
        source = rng.integers(0, 256, (8, 96)).astype(np.uint8)
    else:
        plan = channel_plan(96, 11) if kind == "narrow" else wide_plan(96, 11)
        source = accumulators(rng, 8 * 96).reshape(8, 96)
    kernel = plan.kernel(96)
    function = kernel.function

    def run(source, out, arguments):
        for row in numba.prange(source.shape[0]):
            function(source[row], out[row], *arguments)

    out = np.empty(source.shape, plan.output.dtype)
    numba.njit(parallel=parallel)(run)(source, out, kernel.arguments())
    assert np.array_equal(out, plan(source))


def test_plans_in_use_can_be_pickled():
    for plan, source in (
        (make_plan(QParams(0.05, 128), QParams(0.02, 10)), np.arange(256, dtype=np.uint8)),
        (channel_plan(4, 12), np.arange(256, dtype=np.int32).reshape(64, 4)),
    ):
        expected = plan(source)
        assert np.array_equal(pickle.loads(pickle.dumps(plan))(source), expected)


# AArch64: compiled, and read


def aarch64_assembly(emit, *arguments):
    llvmlite.binding.initialize_all_targets()
    llvmlite.binding.initialize_all_asmprinters()
    module = ir.Module()
    emit(module, "kernel", *arguments).linkage = ""
    parsed = llvmlite.binding.parse_assembly(str(module))
    parsed.verify()
    try:
        llvm_target = llvmlite.binding.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this llvmlite has no AArch64 target")
    machine = llvm_target.create_target_machine(cpu="generic", features="+neon", opt=3)
    options = llvmlite.binding.create_pipeline_tuning_options(speed_level=3)
    builder = llvmlite.binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    return machine.emit_assembly(parsed)


def test_neon_table_is_looked_up_in_registers():
    lines = [line.split() for line in aarch64_assembly(table_ir.emit, table_ir.Neon).splitlines()]
    names = [words[0] for words in lines if words]
    # Per vector one TBL and three TBX; 4 vectors in the main loop, 1 in the short one, 1 for the end.
    assert names.count("tbl") == 6
    assert names.count("tbx") == 18
    assert not [words for words in lines if words and words[0].startswith(("ldrb", "strb"))]


def test_portable_narrow_kernel_is_vector_code_on_aarch64():
    text = aarch64_assembly(narrow_ir.emit, narrow_ir.Portable, narrow_ir.FORMS[narrow_ir.FULL])
    for instruction in ("uqadd", "uqsub", "smull", "umull"):
        assert instruction in text


# The choice of paths

GENERIC = frozenset({"sse2", "sse4.2"})
HASWELL = GENERIC | {"avx2"}
SKYLAKE = HASWELL | {"avx512f", "avx512bw", "avx512vl"}
ICE_LAKE = SKYLAKE | {"avx512vbmi"}
NEON = frozenset({"neon"})


@pytest.mark.parametrize(
    ("features", "wish", "paths"),
    [
        (GENERIC, None, ("portable", "portable")),
        (HASWELL, None, ("avx2", "avx2")),
        (HASWELL, "portable", ("portable", "portable")),
        (SKYLAKE, None, ("avx2", "avx512")),
        (SKYLAKE, "avx512", ("avx2", "avx512")),
        (ICE_LAKE, None, ("avx512", "avx512")),
        (ICE_LAKE, "avx2", ("avx2", "avx2")),
        (ICE_LAKE, "", ("avx512", "avx512")),
        (NEON, None, ("neon", "portable")),
    ],
)
def test_choice(features, wish, paths):
    names = allowed(features, wish)
    assert tuple(choose(kernel, names, features).path for kernel in ("table_8", "narrow")) == paths


@pytest.mark.parametrize(
    ("wish", "problem"), [("avx512", "not offered"), ("neon", "not offered"), ("sse", "not a path")]
)
def test_impossible_wish(wish, problem):
    with pytest.raises(QGeluError, match=f"QGELU_KERNELS={wish} is {problem}.*: use portable, avx2,"):
        allowed(HASWELL, wish)


def run_python(code, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


CODES = """
import json, sys, numpy as np, qgelu
table = qgelu.make_plan(qgelu.QParams(0.05, 128), qgelu.QParams(0.02, 10))
narrow = qgelu.make_plan(qgelu.AccumulatorParams(5e-5), qgelu.QParams(0.03, 9))
wide = qgelu.make_plan(qgelu.AccumulatorParams(5e-5), qgelu.QParams(1e-4, 0, 16, True))
sums = np.arange(-(9**5), 9**5, 99, dtype=np.int32)
codes = [*table(np.arange(256, dtype=np.uint8)).tolist(), *narrow(sums).tolist(), *wide(sums).tolist()]
json.dump({"config": qgelu.get_config(), "codes": codes}, sys.stdout)
"""


@pytest.mark.slow
def test_environment_chooses_the_path_and_never_the_codes():
    results = {}
    for path in offered(FEATURES):
        done = run_python(CODES, QGELU_KERNELS=path)
        assert done.returncode == 0, done.stderr
        results[path] = json.loads(done.stdout)
        assert results[path]["config"]["QGELU_KERNELS"] == path
        for kernel, chosen in results[path]["config"]["kernels"].items():
            assert chosen == choose(kernel, allowed(FEATURES, path), FEATURES).path
    assert len({tuple(result["codes"]) for result in results.values()}) == 1


@pytest.mark.slow
def test_numba_told_to_avoid_vectors_is_obeyed():
    """Code for features that Numba compiles without would abort the process."""
    done = run_python(CODES, NUMBA_CPU_NAME="x86-64", NUMBA_CPU_FEATURES="+sse2", QGELU_KERNELS="")
    if "avx2" not in FEATURES:
        pytest.skip("not an x86 CPU with AVX2")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["config"]["kernels"].values()) == {"portable"}


def test_wrong_environment_is_one_line():
    done = run_python("import qgelu; qgelu.show_config()", QGELU_KERNELS="fast")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].endswith("use " + ", ".join(offered(FEATURES)) + ", or leave it unset")


def test_show_config_prints_what_is_used(capsys):
    import qgelu

    qgelu.show_config()
    shown = json.loads(capsys.readouterr().out)
    assert shown == qgelu.get_config()
    assert shown["kernels"]["narrow"] == selected("narrow").path


# The registry


@pytest.mark.parametrize("implementation", implementations("pack_4"))
def test_packing_at_any_length(implementation):
    pack = implementation.function()
    codes = np.random.default_rng(1).integers(0, 256, 133).astype(np.uint8)
    for start in range(4):
        for length in range(130):
            part, packed = codes[start : start + length], np.full((length + 1) // 2 + 1, 77, np.uint8)
            pack(part, packed[:-1])
            even = np.append(part & 15, np.zeros(length % 2, np.uint8))
            assert np.array_equal(packed[:-1], even[::2] | (even[1::2] << 4))
            assert packed[-1] == 77


@pytest.mark.parametrize("implementation", implementations("unpack_4"))
@pytest.mark.parametrize("signed", [False, True])
def test_unpacking_at_any_length(implementation, signed):
    unpack = implementation.function()
    packed = np.random.default_rng(2).permutation(256).astype(np.uint8)
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)
    expected = np.where(signed & (nibbles > 7), nibbles.astype(np.int16) - 16, nibbles).astype(np.uint8)
    for start in range(4):
        for length in [*range(130), 512 - 2 * start]:
            codes = np.full(length + 1, 77, np.uint8)
            unpack(packed[start : start + (length + 1) // 2], codes[:-1], np.uint8(8 if signed else 0))
            assert np.array_equal(codes[:-1], expected[2 * start : 2 * start + length])
            assert codes[-1] == 77


TESTED = {
    "pack_4": {test_packing_at_any_length},
    "unpack_4": {test_unpacking_at_any_length},
    "table_8": {test_byte_table, test_byte_table_at_every_code_and_lane},
    "table_16": {test_wide_table},
    "narrow": {
        test_narrow_with_any_channels,
        test_narrow_at_any_length,
        test_narrow_against_exact_integers,
        test_narrow_shifted_left,
        test_narrow_with_one_sum_that_wraps,
    },
    "wide": {test_wide_with_any_channels, test_wide_at_any_length, test_wide_against_exact_integers},
}


def test_every_kernel_is_tested_on_all_its_paths():
    assert set(TESTED) == {item.kernel for item in IMPLEMENTATIONS}
    for kernel, tests in TESTED.items():
        paths = [item.path for item in IMPLEMENTATIONS if item.kernel == kernel]
        assert paths[0] == "portable"
        for test in tests:
            marks = [mark for mark in test.pytestmark if mark.args[:1] == ("implementation",)]
            assert [parameter.id for parameter in marks[0].args[1]] == paths, test.__name__


def test_registry_names_known_paths_once():
    keys = [(item.kernel, item.path) for item in IMPLEMENTATIONS]
    assert len(set(keys)) == len(keys)
    assert {path for _, path in keys} <= set(PATHS)


def test_cached_code_is_tied_to_all_sources():
    for item in IMPLEMENTATIONS:
        function = item.function().py_func
        if function.__closure__ is None:  # plain loops hold nothing but their own file
            assert item.path == "portable"
            continue
        assert VERSION in [cell.cell_contents for cell in function.__closure__]


def test_every_kernel_has_a_bench_row_per_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    kernel_inputs, contestants = (importlib.import_module(f"bench.{name}") for name in ("kernel_inputs", "contestants"))
    assert set(kernel_inputs.TITLES) == {item.kernel for item in IMPLEMENTATIONS}
    for kernel in kernel_inputs.TITLES:
        taking_part = list(contestants.contestants(kernel_inputs.make_job(kernel, (3, 70)), 1))
        paths = [item.path for item in IMPLEMENTATIONS if item.kernel == kernel and item.features <= FEATURES]
        assert {f"qgelu kernel, {path}" for path in paths} <= {contestant.name for contestant in taking_part}
        for contestant in taking_part:
            assert contestant.check(contestant.run()) is None, contestant.name
            # The check can fail.
            assert contestant.check(contestant.run().astype(np.float64) + 2.0) is not None, contestant.name


# Threads


def test_pieces_run_once_each_and_at_the_same_time():
    done = []
    gate = threading.Barrier(2, timeout=20)
    run_pieces(lambda number: (gate.wait(), done.append(number)), [(0,), (1,)])
    assert sorted(done) == [0, 1]
    run_pieces(done.append, [(number,) for number in range(50)])
    assert sorted(done[2:]) == list(range(50))


@pytest.mark.parametrize("bad", [0, 3])
def test_a_failing_piece_is_raised_after_all_have_ended(bad):
    done = []

    def piece(number):
        if number == bad:
            raise KeyError(number)
        done.append(number)

    with pytest.raises(KeyError):
        run_pieces(piece, [(number,) for number in range(5)])
    assert sorted(done) == [number for number in range(5) if number != bad]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_threads_after_a_fork():
    code = (
        "import os, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from qgelu.kernels.workers import run_pieces\n"
        "done = []\n"
        "run_pieces(done.append, [(1,), (2,), (3,)])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    run_pieces(done.append, [(4,), (5,)])\n"
        "    os._exit(len(done))\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 5
