"""The native ops under AddressSanitizer and UndefinedBehaviorSanitizer, fuzzed, refusing bad inputs, and on AArch64."""

import re
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_host import CONSTANT, GIVEN, LEFT_OUT, Host, compile_host
from onnx import TensorProto
from random_plans import INT32

from qgelu import AccumulatorParams, QParams, make_plan
from qgelu.activations import ACTIVATIONS
from qgelu.errors import QGeluError
from qgelu.graph.functions import NARROW_INPUTS, TABLE_INPUTS, WIDE_INPUTS
from qgelu.graph.plan_nodes import plan_node
from qgelu.kernels import narrow, wide
from qgelu.kernels.cpu import offered, target
from qgelu.native.build import find_compiler

PATHS = offered(target()[2])
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WARNINGS = ("-O2", "-Wall", "-Wextra", "-pedantic", "-Wshadow", "-Wconversion", "-Werror")
U8, S8, U16 = TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The ops under sanitizers."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("host")
    (folder / "nothing.c").write_text("int main(void) { return 0; }\n")
    found = folder / "host"
    complaints = compile_host(compiler, found, SANITIZERS)
    if "sanitize" in complaints or "libasan" in complaints:
        pytest.skip(f"no sanitizers: {complaints.splitlines()[0]}")
    assert not complaints
    return found


@pytest.fixture(scope="module")
def best_host(program):
    running = Host([str(program)], PATHS[-1])
    yield running
    running.close()


@pytest.fixture(params=PATHS, scope="module")
def host(request, program):
    running = Host([str(program)], request.param)
    yield running
    running.close()


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_warnings(compiler, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    assert compile_host([compiler], tmp_path / "host", WARNINGS) == ""


def table_plans():
    for source in (QParams(0.04, 200), QParams(0.03, -7, 8, True), QParams(2e-4, 0, 16, True), QParams(2e-4, 900, 16)):
        for output in (QParams(0.03, 6), QParams(0.03, -6, 8, True), QParams(1e-4, 6, 16), QParams(1e-4, 6, 16, True)):
            yield make_plan(source, output)


def check_tables(host):
    for plan in table_plans():
        info = np.iinfo(plan.input_dtype)
        codes = np.arange(info.min, info.max + 1).astype(plan.input_dtype)
        np.testing.assert_array_equal(host.run_plan(plan, codes), plan(codes))
    for size in range(131):
        plan = make_plan(QParams(0.04, 200), QParams(0.03, 6))
        codes = np.arange(size).astype(np.uint8)
        np.testing.assert_array_equal(host.run_plan(plan, codes), plan(codes))


def check_accumulators(host):
    rng = np.random.default_rng(1)
    powers = [sign * (1 << k) + d for k in range(31) for d in range(-2, 3) for sign in (1, -1)]
    fixed = np.array([INT32.min, INT32.min + 1, INT32.max - 1, INT32.max, 0, *powers])
    for activation in ACTIVATIONS:
        for low, high, bits in ((0.01, 0.1, 8), (1e-4, 2e-4, 8), (1e-4, 1e-3, 16)):
            for channels in (1, 19, 129):
                scale = 10.0 ** rng.uniform(-7, -2, channels)
                output = QParams(rng.uniform(low, high, channels), rng.integers(0, 1 << bits, channels), bits)
                plan = make_plan(AccumulatorParams(scale), output, activation)
                bias = rng.integers(-20000, 20000, channels).astype(np.int32)
                random = rng.normal(size=(20, channels)) * 2.5 / scale
                source = np.concatenate([np.broadcast_to(fixed[:, None], (fixed.size, channels)), random])
                source = np.clip(source, INT32.min, INT32.max).astype(np.int32)
                how = CONSTANT if channels > 1 else GIVEN
                np.testing.assert_array_equal(host.run_plan(plan, source, bias, how), plan(source, bias))


def check_lengths(host):
    rng = np.random.default_rng(2)
    for output in (QParams(0.02, 10), QParams(2e-4, 10, 16)):
        plan = make_plan(AccumulatorParams(2e-4), output)
        for size in range(131):
            source = rng.integers(-30000, 30000, size).astype(np.int32)
            np.testing.assert_array_equal(host.run_plan(plan, source), plan(source))


def test_sanitizers_on_tables(host):
    check_tables(host)


def test_sanitizers_on_accumulators(host):
    check_accumulators(host)
    check_lengths(host)


@pytest.mark.parametrize("path", ["portable", "neon"])
def test_aarch64(path, tmp_path_factory):
    """Compiled for AArch64, and run by QEMU where it is there."""
    compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("no compiler for AArch64, or no qemu-aarch64")
    program = tmp_path_factory.getbasetemp() / "host-aarch64"
    if not program.exists():
        assert compile_host([compiler], program, [*WARNINGS, "-static"]) == ""
    host = Host([emulator, str(program)], path)
    check_tables(host)
    check_accumulators(host)
    check_lengths(host)
    host.close()


def inputs_of(plan, codes, bias=None, how=CONSTANT):
    node = plan_node(plan, bias)
    names = {
        "QGelu": TABLE_INPUTS,
        "RequantizeGelu": NARROW_INPUTS if getattr(plan, "lanes", 16) == 16 else WIDE_INPUTS,
    }
    arrays = [codes, *(np.asarray(value) for value in node.parameters.values())]
    return dict(zip(names[node.op_type], ([array, how] for array in arrays), strict=True))


TABLE = make_plan(QParams(0.04, 200), QParams(0.03, 6))
NARROW = make_plan(AccumulatorParams(np.linspace(1e-4, 2e-4, 3)), QParams(np.linspace(0.02, 0.03, 3), [0, 9, 20]))
WIDE = make_plan(AccumulatorParams(1e-4), QParams(1e-4, 6, 16))


def refused(host, plan, op, changes, how=CONSTANT, to=None, output_type=None, codes=None):
    """Return the message that changed inputs lead to; a change is an array, or LEFT_OUT."""
    given = codes if codes is not None else np.zeros((2, 3), plan.input_dtype)
    inputs = inputs_of(plan, given, how=how)
    inputs[next(iter(inputs))][1] = GIVEN
    for name, change in changes.items():
        inputs[name] = [inputs[name][0], LEFT_OUT] if isinstance(change, int) else [change, how]
    first = np.dtype(plan.output.dtype)
    to = {"uint8": U8, "uint16": U16}[first.name] if to is None else to
    with pytest.raises(QGeluError) as caught:
        host.run(op, None if to < 0 else to, list(inputs.values()), output_type)
    return str(caught.value)


@pytest.mark.parametrize("how", [CONSTANT, GIVEN])
def test_refusals(best_host, how):
    def table(**changes):
        return refused(best_host, TABLE, "QGelu", changes, how)

    def requantize(plan=NARROW, **changes):
        return refused(best_host, plan, "RequantizeGelu", changes, how)

    assert table(table=np.zeros(255, np.uint8)) == (
        "input 'table' has rank 1 and 255 entries: give 256 for 8-bit codes, 65536 for 16-bit ones"
    )
    assert "input 'table' has 65536 entries, but 'codes' is uint8: give 256" in table(table=np.zeros(65536, np.uint8))
    assert "'table' has rank 2" in table(table=np.zeros((16, 16), np.uint8))
    assert "input 'table' is int8, but attribute 'to' says uint8" in table(table=np.zeros(256, np.int8))
    assert "input 'first_code' is -5" in table(first_code=np.array(-5))
    assert "input 'first_code' is int32" in table(first_code=np.array(0, np.int32))
    assert "give one int64" in table(first_code=np.zeros(2, np.int64))
    assert "input 'bias' is another type: give int32" in requantize(bias=np.zeros(3, np.float32))
    assert "input 'linear_shift' has 2 entries, but others have 3" in requantize(linear_shift=np.zeros(2, np.int32))
    assert "'upper' has rank 1 and 0 entries" in requantize(upper=np.zeros(0, np.int32))
    assert "'upper' has rank 2" in requantize(upper=np.zeros((1, 3), np.int32))
    assert "input 'linear_shift' is 31 in channel 1, beyond 0 to 30" in requantize(
        linear_shift=np.array([0, 31, 0], np.int32)
    )
    assert "sums of channel 0 leave 32 bits" in requantize(
        upper=np.full(3, INT32.max, np.int32), left_shift=np.full(3, 9, np.int32)
    )
    assert "input 'coefficients' leaves 16 bits" in requantize(coefficients=np.full((16, 4), 32767, np.int32))
    assert "give shape [16, 4]" in requantize(coefficients=np.zeros((4, 16), np.int32))
    assert "input 'code_minimum' has 3 entries: give a single one" in requantize(code_minimum=np.zeros(3, np.int32))
    assert "are 0 and 256: give a range within uint8" in requantize(code_maximum=np.array(256, np.int32))
    assert "are 7 and 3: give a range" in requantize(
        code_minimum=np.array(7, np.int32), code_maximum=np.array(3, np.int32)
    )
    assert "input 'offset' is 9223372036854775807 in channel 0" in requantize(
        WIDE, offset=np.array([np.iinfo(np.int64).max])
    )
    assert "'coefficients' leaves its width" in requantize(WIDE, coefficients=np.full((32, 5), INT32.min, np.int32))
    assert "give shape [32, 5]" in requantize(WIDE, coefficients=np.zeros((32, 4), np.int32))
    assert "input 'output_shift' is 0" in requantize(WIDE, output_shift=np.zeros(1, np.int32))


def test_refusals_at_run_time(best_host):
    def requantize(changes=None, **options):
        return refused(best_host, NARROW, "RequantizeGelu", changes or {}, **options)

    assert "input 'accumulator' has 4 channels, its last axis, but the parameters have 3" in requantize(
        codes=np.zeros((2, 4), np.int32)
    )
    assert "'accumulator' is int32 of rank 0: give int32 of rank 1 or more" in requantize(codes=np.array(1, np.int32))
    assert "'accumulator' is int64" in requantize(codes=np.zeros((2, 3), np.int64))
    assert "input 'bias' is missing" in requantize({"bias": LEFT_OUT})
    assert "attribute 'to' is missing" in requantize(to=-1, output_type=U8)
    assert "attribute 'to' is 1: use 2 (uint8)" in requantize(to=1)
    assert "for codes of 8 bits: use int8 or uint8" in requantize(to=U16)
    assert "the graph declares the output int8, but attribute 'to' says uint8" in requantize(to=U8, output_type=S8)
    assert "input 'codes' is int32" in refused(best_host, TABLE, "QGelu", {}, codes=np.zeros(3, np.int32))


VALUES = st.sampled_from([0, 1, -1, 7, 30, 31, 32767, 32768, 65535, 65536, INT32.max, INT32.min, INT32.max - 1])
SUMS = ("bias", "lower", "upper", "left_shift")
CHANGES = st.sampled_from(["value", "values", "length", "one", "empty", "rank", "type", "left out", "scale"])


@st.composite
def changed_inputs(draw):
    """Return a plan's inputs with some of them changed, and the plan's op."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    kind = draw(st.sampled_from(["narrow", "wide", "table"]))
    channels = draw(st.sampled_from([1, 1, 2, 3, 16, 31, 64, 65, 127, 128, 130, 257]))
    shape = (draw(st.integers(0, 5)), channels if kind != "table" else draw(st.integers(0, 300)))
    if kind == "table":
        plan, codes = TABLE, rng.integers(0, 256, shape).astype(np.uint8)
    else:
        low, high, bits = (0.01, 0.1, 8) if kind == "narrow" else (1e-4, 1e-3, 16)
        scale = 10.0 ** rng.uniform(-7, -2, channels)
        plan = make_plan(
            AccumulatorParams(scale), QParams(rng.uniform(low, high, channels), rng.integers(0, 255, channels), bits)
        )
        codes = rng.integers(INT32.min, INT32.max, shape, endpoint=True) >> rng.integers(0, 31, shape)
        codes[rng.random(shape) < 0.2] = rng.choice([INT32.min, INT32.max])
        codes = codes.astype(np.int32)
    inputs = inputs_of(
        plan, codes, rng.integers(-(1 << 20), 1 << 20, channels).astype(np.int32) if kind != "table" else None
    )
    first, *others = inputs
    inputs[first][1] = GIVEN
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(others if kind == "table" else [*others, *SUMS, *SUMS]))
        _change(draw, inputs[name], draw(CHANGES))
    for name in others:
        if inputs[name][1] == CONSTANT and draw(st.booleans()):
            inputs[name][1] = GIVEN
    return plan, kind, inputs


def _change(draw, pair, change):
    array = np.array(pair[0])
    if change in ("value", "values") and array.size:
        value = np.array(draw(VALUES)).astype(array.dtype)
        array.flat[draw(st.integers(0, array.size - 1)) if change == "value" else slice(None)] = value
    elif change == "length":
        array = np.resize(array, array.size + draw(st.sampled_from([-1, 1, 2])) if array.size > 1 else 2)
    elif change == "one":
        array = array.reshape(-1)[:1]
    elif change == "empty":
        array = array.reshape(-1)[:0]
    elif change == "rank":
        array = array.reshape(1, *array.shape)
    elif change == "type":
        array = array.astype(draw(st.sampled_from([np.int64, np.float32, np.int8, np.uint16])))
    elif change == "scale":
        array = (array.astype(np.int64) * draw(st.sampled_from([-1, 2, 3]))).astype(array.dtype)
    pair[:] = array, LEFT_OUT if change == "left out" else pair[1]


def by_the_plain_loop(plan, kind, inputs):
    arrays = {name: pair[0] for name, pair in inputs.items()}
    if kind == "table":
        return arrays["table"][arrays["codes"].astype(np.int64) - int(arrays["first_code"].reshape(()))]
    accumulator, channels = arrays["accumulator"], arrays["accumulator"].shape[-1]
    names = NARROW_INPUTS if kind == "narrow" else WIDE_INPUTS
    per_channel = [np.ascontiguousarray(np.broadcast_to(arrays[name], (channels,))) for name in names[1:11]]
    out = np.empty(accumulator.shape, plan.output.dtype)
    low, high = int(arrays["code_minimum"].reshape(())), int(arrays["code_maximum"].reshape(()))
    loop = narrow.requantize if kind == "narrow" else wide.requantize
    loop(accumulator, *per_channel, np.ascontiguousarray(arrays["coefficients"]), high - low, low, out)
    return out


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(changed_inputs())
def test_fuzz(host, case):
    """Whatever the inputs: the plain loop's codes, or a message that names what is wrong."""
    plan, kind, inputs = case
    op = "QGelu" if kind == "table" else "RequantizeGelu"
    to = U8 if plan.output.dtype == np.uint8 else U16
    message = ""
    try:
        found = host.run(op, to, [tuple(pair) for pair in inputs.values()])
    except QGeluError as error:
        message = str(error)
    if message:
        assert re.match("(input|inputs|attribute) '.*: .*", message)
        return
    expected = by_the_plain_loop(plan, kind, inputs)
    np.testing.assert_array_equal(np.frombuffer(found, expected.dtype).reshape(expected.shape), expected)
