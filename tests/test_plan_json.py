import base64
import copy
import json
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import ibert_code, of_channel, output_channel, plan_code
from random_plans import INT32

from qgelu import AccumulatorParams, QGeluError, QParams, make_plan, plan_from_json
from qgelu.activations import evaluate
from qgelu.plan_json import plan_to_dict

PLANS = {
    "table": make_plan(QParams(0.05, 1, 3, True), QParams(0.02, 10)),
    "table of 16 bits": make_plan(QParams(1e-3, 100, 10, True), QParams(1e-3, 200, 16, False), "silu"),
    "narrow": make_plan(AccumulatorParams(1e-6), QParams(0.02, 10), "quick_gelu", 0.7),
    "narrow, enumerated": make_plan(AccumulatorParams(1e-2), QParams(0.02, -10, 8, True), "gelu_tanh"),
    "narrow, per channel": make_plan(AccumulatorParams([1e-6, 1e-5]), QParams([0.02, 0.3], [1, 2])),
    "narrow, from codes": make_plan(QParams(0.1, 7), QParams(0.02, 10), method="polynomial"),
    "wide": make_plan(AccumulatorParams(1e-6), QParams(1e-4, 100, 16, False), "silu"),
    "i-gelu": make_plan(AccumulatorParams(0.05), QParams(0.02, 10), method="ibert"),
    "i-gelu, from codes": make_plan(QParams(0.05, 3), QParams(0.02, 10), method="ibert"),
}
SMALL = {name: plan for name, plan in PLANS.items() if name not in ("table of 16 bits", "wide")}


def probes(plan):
    """Return inputs of the plan's type that reach both ends."""
    if plan.input_dtype != np.int32:
        info = np.iinfo(plan.input_dtype)
        values = np.arange(info.min, info.max + 1).astype(plan.input_dtype)
    else:
        powers = np.power(2.0, np.arange(0, 31, 0.25))
        values = np.unique(np.rint(np.concatenate([[INT32.min, INT32.max, 0], powers, -powers]))).astype(np.int32)
    return values if plan.channels is None else np.repeat(values[:, None], plan.channels, axis=1)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_round_trip(plan):
    text = plan.to_json()
    again = plan_from_json(text)
    assert type(again) is type(plan)
    assert again.to_json() == text
    assert again.certificate == plan.certificate
    assert (again.input, again.output, again.activation, again.alpha) == (
        plan.input,
        plan.output,
        plan.activation,
        plan.alpha,
    )
    codes = probes(plan)
    assert np.array_equal(again(codes), plan(codes))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_text_is_standard_json_with_its_version(plan):
    def refuse(constant):
        raise AssertionError(constant)

    data = json.loads(plan.to_json(), parse_constant=refuse)
    assert data["format"] == "qgelu.plan"
    assert data["version"] == 1
    assert data["kind"] == plan.kind
    assert data["certificate"]["max_error_lsb"] == plan.certificate.max_error_lsb


def test_the_certificate_is_proved_again_not_believed():
    for plan in PLANS.values():
        data = json.loads(plan.to_json())
        data["certificate"]["max_error_lsb"] = 0.0
        data["certificate"]["misrounded"] = 0
        assert plan_from_json(json.dumps(data)).certificate == plan.certificate
        del data["certificate"]
        assert plan_from_json(json.dumps(data)).certificate == plan.certificate


def test_a_changed_table_has_another_certificate():
    data = json.loads(PLANS["table"].to_json())
    data["parameters"]["table"][1] = 200
    certificate = plan_from_json(json.dumps(data)).certificate
    assert certificate.max_error_lsb > 100
    assert certificate.misrounded == 1
    assert certificate.worst_case.code == 200


def test_packed_tables():
    plan = PLANS["table of 16 bits"]
    packed = plan_to_dict(plan, packed=True)
    assert len(json.dumps(packed)) < 3000
    assert plan_from_json(json.dumps(packed)).to_json() == plan.to_json()
    short = base64.b64encode(zlib.compress(bytes(4 * 65535))).decode()
    long = base64.b64encode(zlib.compress(bytes(4 * 65537))).decode()
    for table, reason in [
        ({"zlib": "AAAA"}, "plan: table cannot be unpacked"),
        ({"zlib": "A"}, "plan: table cannot be unpacked"),
        ({"zlib": short}, "plan: table does not have 65536 entries"),
        ({"zlib": long}, "plan: table does not have 65536 entries"),
        ({"zlib": 7}, "plan is damaged"),
        ({}, "plan is damaged"),
    ]:
        packed["parameters"] = {"table": table}
        with pytest.raises(QGeluError, match=reason):
            plan_from_json(json.dumps(packed))
    assert plan_to_dict(PLANS["table"], packed=True) == plan_to_dict(PLANS["table"])


def edited(name, path, value):
    """Return the JSON text of a plan with one value changed (or removed)."""
    data = json.loads(PLANS[name].to_json())
    place = data
    for key in path[:-1]:
        place = place[key]
    if value is REMOVED:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(data)


REMOVED = object()
TAIL = ("parameters", "tail")

DAMAGED = [
    ("table", ("format",), "qgelu.calibration"),
    ("table", ("format",), REMOVED),
    ("table", ("version",), 2),
    ("table", ("version",), REMOVED),
    ("table", ("kind",), "oracle"),
    ("table", ("kind",), ["table"]),
    ("table", ("kind",), "polynomial"),
    ("table", ("kind",), "ibert"),
    ("table", ("activation",), "relu"),
    ("table", ("activation",), 7),
    ("table", ("activation",), None),
    ("table", ("alpha",), "steep"),
    ("table", ("alpha",), 0),
    ("table", ("alpha",), [1.0]),
    ("table", ("input",), None),
    ("table", ("input",), "bits"),
    ("table", ("input",), ["bits"]),
    ("table", ("input",), {}),
    ("table", ("input",), {"scale": 0.1}),
    ("table", ("input", "scale"), 0.0),
    ("table", ("input", "scale"), float("nan")),
    ("table", ("input", "scale"), [0.1]),
    ("table", ("input", "scale"), [[0.1]]),
    ("table", ("input", "scale"), {}),
    ("table", ("input", "bits"), 17),
    ("table", ("input", "bits"), 12),
    ("table", ("output",), {"scale": 0.02, "zero_point": 0, "bits": 3, "signed": False}),
    ("table", ("input", "signed"), "false"),
    ("table", ("input", "zero_point"), 0.5),
    ("table", ("input", "colour"), "red"),
    ("table", ("output", "zero_point"), 256),
    ("table", ("output", "zero_point"), [1, 2]),
    ("table", ("output",), REMOVED),
    ("table", ("parameters",), REMOVED),
    ("table", ("parameters",), None),
    ("table", ("parameters", "table"), REMOVED),
    ("table", ("parameters", "table"), [1, 2, 3]),
    ("table", ("parameters", "table"), []),
    ("table", ("parameters", "table"), "0" * 256),
    ("table", ("parameters", "table"), [0.5] * 256),
    ("table", ("parameters", "table"), [300] * 256),
    ("table", ("parameters", "table"), [-1] * 256),
    ("table", ("parameters", "table"), [10**30] * 256),
    ("table", ("parameters", "table"), [[1]] * 256),
    ("table", ("parameters", "table"), [[1], [1, 2]]),
    ("table", ("parameters", "table", 0), None),
    ("narrow", ("kind",), "table"),
    ("narrow", ("kind",), "ibert"),
    ("narrow", ("activation",), "gelu"),
    ("narrow", ("alpha",), 0.9),
    ("narrow", ("input", "scale"), 2e-6),
    ("narrow", ("input", "scale"), [1e-6, 1e-6]),
    ("narrow", ("output", "scale"), 0.04),
    ("narrow", ("output", "zero_point"), 11),
    ("narrow", ("output", "bits"), 16),
    ("narrow", ("parameters", "limit"), [0]),
    ("narrow", ("parameters", "limit"), [-1]),
    ("narrow", ("parameters", "limit"), [1000]),
    ("narrow", ("parameters", "limit"), [2**31 - 1]),
    ("narrow", ("parameters", "limit"), [2**31]),
    ("narrow", ("parameters", "limit"), 5),
    ("narrow", ("parameters", "limit"), []),
    ("narrow", ("parameters", "limit"), [1.5]),
    ("narrow", ("parameters", "limit"), REMOVED),
    ("narrow", ("parameters", "left_shift"), [1]),
    ("narrow", ("parameters", "left_shift"), [-1]),
    ("narrow", ("parameters", "left_shift"), [62]),
    ("narrow", ("parameters", "left_shift"), [64]),
    ("narrow", ("parameters", "linear_shift"), [63]),
    ("narrow", ("parameters", "linear_shift"), [0]),
    ("narrow", ("parameters", "linear_multiplier"), [-5]),
    ("narrow", ("parameters", "linear_multiplier"), [65536]),
    ("narrow", ("parameters", "argument_shift"), [1]),
    ("narrow", ("parameters", "argument_multiplier"), [-1]),
    ("narrow", ("parameters", "tail_multiplier"), [0]),
    ("narrow", ("parameters", "tail_multiplier"), [70000]),
    ("narrow", ("parameters", "offset"), [0]),
    ("narrow", ("parameters", "offset"), [10 * 128 + 65]),
    ("narrow", TAIL, REMOVED),
    ("narrow", TAIL, []),
    ("narrow", (*TAIL, "lanes"), 32),
    ("narrow", (*TAIL, "lanes"), 16.0),
    ("narrow", (*TAIL, "lanes"), [16]),
    ("narrow", (*TAIL, "lanes"), "16"),
    ("narrow", (*TAIL, "family"), "gelu"),
    ("narrow", (*TAIL, "family"), []),
    ("narrow", (*TAIL, "cutoff"), 6.0),
    ("narrow", (*TAIL, "cutoff"), 0.0),
    ("narrow", (*TAIL, "cutoff"), -1.0),
    ("narrow", (*TAIL, "cutoff"), float("nan")),
    ("narrow", (*TAIL, "cutoff"), "wide"),
    ("narrow", (*TAIL, "cutoff"), [12.0]),
    ("narrow", (*TAIL, "gain"), 1e5),
    ("narrow", (*TAIL, "gain"), None),
    ("narrow", (*TAIL, "gain"), float("inf")),
    ("narrow", (*TAIL, "coefficients"), []),
    ("narrow", (*TAIL, "coefficients"), [[1, 2, 3, 4]]),
    ("narrow", (*TAIL, "coefficients"), [[0, 0, 0]] * 16),
    ("narrow", (*TAIL, "coefficients"), [[0, 0, 0, 0, 0]] * 16),
    ("narrow", (*TAIL, "coefficients"), [[0, 0, 0, 0]] * 16),
    ("narrow", (*TAIL, "coefficients"), [[0]] * 16),
    ("narrow", (*TAIL, "coefficients"), [[0, 0, 0, 0]] * 15 + [[0]]),
    ("narrow", (*TAIL, "coefficients", 3), [2**31 - 1] * 4),
    ("narrow", (*TAIL, "coefficients", 3, 3), 40_000),
    ("narrow", (*TAIL, "coefficients", 3, 0), -40_000),
    ("narrow, per channel", ("parameters", "limit"), [5]),
    ("narrow, per channel", ("parameters", "offset"), [192, 192]),
    ("narrow, per channel", ("input", "scale"), [1e-6]),
    ("narrow, per channel", ("input", "scale"), [1e-6, 1e-5, 1e-5]),
    ("narrow, from codes", ("kind",), "table"),
    ("wide", (*TAIL, "coefficients"), [[0]] * 32),
    ("wide", (*TAIL, "coefficients"), [[0, 0]] * 32),
    ("wide", (*TAIL, "coefficients"), [[0] * 60] * 32),
    ("wide", (*TAIL, "coefficients", 0, 0), 2**31 - 1),
    ("wide", (*TAIL, "coefficients", 0, 2), 2**31 - 1),
    ("wide", ("parameters", "limit"), [1000]),
    ("wide", ("parameters", "left_shift"), [40]),
    ("wide", ("parameters", "left_shift"), [64]),
    ("wide", ("parameters", "argument_shift"), [0]),
    ("wide", ("parameters", "argument_shift"), [63]),
    ("wide", ("parameters", "output_shift"), [0]),
    ("wide", ("parameters", "argument_multiplier"), [-1]),
    ("wide", ("parameters", "linear_multiplier"), [2**31]),
    ("wide", ("parameters", "tail_multiplier"), [-(2**31)]),
    ("wide", ("parameters", "offset"), [2**63 - 1]),
    ("i-gelu", ("activation",), "silu"),
    ("i-gelu", ("kind",), "table"),
    ("i-gelu", ("kind",), "polynomial"),
    ("i-gelu", ("input", "scale"), [0.05]),
    ("i-gelu", ("output", "scale"), [0.02, 0.02]),
    ("i-gelu", ("parameters", "shift"), 0),
    ("i-gelu", ("parameters", "shift"), 63),
    ("i-gelu", ("parameters", "shift"), "30"),
    ("i-gelu", ("parameters", "shift"), 30.5),
    ("i-gelu", ("parameters", "shift"), float("nan")),
    ("i-gelu", ("parameters", "one"), 5),
    ("i-gelu", ("parameters", "one"), 0),
    ("i-gelu", ("parameters", "one"), -(2**31)),
    ("i-gelu", ("parameters", "one"), 2**62),
    ("i-gelu", ("parameters", "erf_clip"), -1),
    ("i-gelu", ("parameters", "erf_clip"), 2**31 - 1),
    ("i-gelu", ("parameters", "erf_constant"), 7),
    ("i-gelu", ("parameters", "multiplier"), 7),
    ("i-gelu", ("parameters", "multiplier"), None),
    ("i-gelu", ("parameters", "limit"), 0),
    ("i-gelu", ("parameters", "limit"), 2**30),
    ("i-gelu", ("parameters", "limit"), "many"),
    ("i-gelu", ("parameters", "limit"), REMOVED),
]


@pytest.mark.parametrize(
    ("name", "path", "value"), DAMAGED, ids=lambda value: "removed" if value is REMOVED else str(value)[:40]
)
def test_damaged_plans_are_refused_in_one_line(name, path, value):
    with pytest.raises(QGeluError) as caught:
        plan_from_json(edited(name, path, value))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) > 10


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "null",
        "[]",
        "{}",
        "1",
        '"qgelu.plan"',
        "{",
        '{"format": "qgelu.plan"}',
        '{"format": "qgelu.plan", "version": 1}',
        "[" * 100_000,
        "\ud800",
        b"\xff\xfe\xfd",
        None,
        5,
        PLANS["table"].to_json()[:-1],
        PLANS["table"].to_json() + "}",
        "1" * 5000,
    ],
    ids=range(18),
)
def test_text_that_is_no_plan_is_refused_in_one_line(text):
    with pytest.raises(QGeluError) as caught:
        plan_from_json(text)
    assert "\n" not in str(caught.value)


def assert_refused_or_true(text):
    """A text is refused with one line, or the plan does what its certificate says."""
    try:
        plan = plan_from_json(text)
    except QGeluError as refusal:
        reason = str(refusal)
        assert "\n" not in reason, reason
        return
    source = probes(plan)
    codes = plan(source)
    columns = source.reshape(len(source), -1)
    for channel in range(columns.shape[1]):
        values = columns[:, channel].astype(np.int64)
        if isinstance(plan.input, QParams):
            values = values[(values >= plan.input.qmin) & (values <= plan.input.qmax)]
        low, high = plan.certificate.admitted
        values = values[(values >= low) & (values <= high)]
        zero = int(of_channel(plan.input.zero_point, channel)) if isinstance(plan.input, QParams) else 0
        scale, offset = output_channel(plan.output, channel)
        x = (values - zero) * float(of_channel(plan.input.scale, channel))
        real = np.clip(evaluate(x, plan.activation, plan.alpha) / scale + offset, plan.output.qmin, plan.output.qmax)
        got = codes.reshape(len(source), -1)[np.isin(columns[:, channel], values), channel].astype(np.int64)
        assert np.abs(got - real).max() <= plan.certificate.max_error_lsb + 1e-6
        if plan.kind == "polynomial":
            assert got.tolist() == [plan_code(plan, int(v) - zero, channel) for v in values]


JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**33), 2**33),
    st.integers(-3, 70),
    st.sampled_from([2**15, 2**16, 2**31 - 1, -(2**31), 2**62, 2**63, 10**40]),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-3, 70), max_size=3),
    st.just({}),
)


@st.composite
def mutations(draw):
    """A plan's JSON with one to three values replaced, nudged, removed or doubled."""
    data = json.loads(draw(st.sampled_from(list(SMALL.values()))).to_json())
    data.pop("certificate")
    for _ in range(draw(st.integers(1, 3))):
        place, key = data, draw(st.sampled_from(sorted(data)))
        while isinstance(place[key], dict | list) and place[key] and draw(st.integers(0, 9)):
            place = place[key]
            key = draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1))
        action = draw(st.sampled_from(["replace", "nudge", "nudge", "remove", "double"]))
        old = place[key]
        if action == "nudge" and isinstance(old, int | float) and not isinstance(old, bool):
            place[key] = old + draw(st.sampled_from([-1, 1, 2, -16, 100])) if isinstance(old, int) else old * 1.01
        elif action == "remove" and len(place) > 1:
            del place[key]
        elif action == "double" and isinstance(old, list):
            place[key] = old + copy.deepcopy(old)
        else:
            place[key] = draw(JSON_VALUES)
        if not data:
            break
    return json.dumps(data)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(mutations())
def test_mutated_plans_are_refused_or_true(text):
    assert_refused_or_true(text)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.sampled_from(list(SMALL.values())), st.data())
def test_mangled_text_is_refused_or_true(plan, data):
    text = plan.to_json()
    start = data.draw(st.integers(0, len(text)))
    stop = min(len(text), start + data.draw(st.integers(0, 12)))
    inserted = data.draw(st.text(alphabet='0123456789-.eE[]{},:" \n\x00é', max_size=6))
    assert_refused_or_true(text[:start] + inserted + text[stop:])


def test_i_gelu_read_back_follows_the_published_arithmetic():
    plan = plan_from_json(PLANS["i-gelu"].to_json())
    values = np.arange(-300, 300)
    assert plan(values.astype(np.int32)).tolist() == [ibert_code(plan, int(v)) for v in values]
