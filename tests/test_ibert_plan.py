import math

import numpy as np
import pytest
from oracle import ibert_code, ibert_value

from qgelu import AccumulatorParams, QGeluError, QParams, make_plan
from qgelu.activations import evaluate


def real_outputs(plan, values):
    """Return the plan's outputs as real numbers."""
    codes = plan(values.astype(np.int32)).astype(np.int64)
    return (codes - plan.output.zero_point) * plan.output.scale


@pytest.mark.parametrize("scale", [0.1, 0.05, 0.02, 0.01, 1e-3, 2e-4])
@pytest.mark.parametrize("output", [QParams(0.05, 10), QParams(1e-4, 20_000, 16, False), QParams(0.01, -3, 6, True)])
def test_codes_are_those_of_the_published_arithmetic(scale, output):
    plan = make_plan(AccumulatorParams(scale), output, method="ibert")
    low, high = plan.certificate.admitted
    rng = np.random.default_rng(31)
    values = np.unique(
        np.concatenate(
            [np.arange(-60, 61), rng.integers(low, high + 1, 1500), np.rint(rng.normal(0, 2 / scale, 500)), [low, high]]
        )
    ).astype(np.int64)
    values = values[(values >= low) & (values <= high)]
    assert np.array_equal(plan(values.astype(np.int32)), [ibert_code(plan, v) for v in values])
    # The requantization follows the published product to half a code.
    products = [ibert_value(int(v), scale) for v in values]
    real = np.clip([q * s / output.scale + output.zero_point for q, s in products], output.qmin, output.qmax)
    assert np.abs(plan(values.astype(np.int32)) - real).max() <= 0.5 + 1e-3


@pytest.mark.parametrize("scale", [0.1, 0.031, 0.02, 7e-3, 1e-3, 3.3e-4])
def test_integers_are_the_published_floors(scale):
    integers = make_plan(AccumulatorParams(scale), QParams(0.05, 10), method="ibert").integers
    erf_scale = scale / 1.4142
    assert -integers.erf_clip == math.floor(-1.769 / erf_scale)
    assert integers.erf_constant == math.floor(1 / -0.2888 / erf_scale**2)
    assert integers.one == math.floor(1 / (erf_scale**2 * -0.2888 * 2**14))


def test_from_codes_too():
    source = QParams(0.04, 100)
    plan = make_plan(source, QParams(0.02, 10), method="ibert")
    codes = np.arange(256, dtype=np.uint8)
    assert np.array_equal(plan(codes), [ibert_code(plan, int(c) - 100) for c in codes])


def test_coarse_scales_fail_as_known():
    """S = 0.1: x = 0.1 gives 2.366, where GELU(0.1) = 0.054."""
    plan = make_plan(AccumulatorParams(0.1), QParams(1e-3, 20_000, 16, False), method="ibert")
    assert real_outputs(plan, np.array([1]))[0] == pytest.approx(2.366, abs=1e-3)
    assert plan.certificate.max_error_lsb > 2.3 / 1e-3
    assert plan.certificate.misrounded > 0


def test_published_errors_at_fine_scales():
    scale = 1.4e-4
    plan = make_plan(AccumulatorParams(scale), QParams(1e-4, 20_000, 16, False), method="ibert")
    values = np.arange(-round(4 / scale), round(4 / scale) + 1)
    error = real_outputs(plan, values) - evaluate(values * scale)
    assert np.abs(error).max() == pytest.approx(0.0182, abs=1e-4)
    assert np.sqrt(np.mean(error**2)) == pytest.approx(0.0082, abs=5e-5)
    outputs = real_outputs(plan, values)
    assert outputs.min() == pytest.approx(-0.1675, abs=1e-4)
    assert np.mean(values[outputs == outputs.min()]) * scale == pytest.approx(-0.834, abs=0.01)


@pytest.mark.parametrize(("scale", "message"), [(1e-4, "overflow"), (1e-6, "overflow"), (1e-9, "overflow")])
def test_refused_where_int32_would_overflow(scale, message):
    with pytest.raises(QGeluError, match=message):
        make_plan(AccumulatorParams(scale), QParams(0.01), method="ibert")


def test_int32_holds_everything_that_is_admitted():
    for scale in (0.05, 1e-3, 2e-4):
        plan = make_plan(AccumulatorParams(scale), QParams(0.05, 20), method="ibert")
        low, high = plan.certificate.admitted
        for value in (low, high, low + 1, high - 1, *range(-50, 50)):
            assert abs(ibert_value(value, scale)[0]) < 2**31
        assert all(item.fits for item in plan.certificate.intermediates)


@pytest.mark.parametrize(
    ("scale", "output"), [(0.1, QParams(0.05, 10)), (1e-3, QParams(0.02, 0)), (0.5, QParams(1.0, 3))]
)
def test_certificate_is_the_truth(scale, output):
    plan = make_plan(AccumulatorParams(scale), output, method="ibert")
    certificate = plan.certificate
    low, high = certificate.admitted
    values = np.arange(low, high + 1)
    codes = plan(values.astype(np.int32)).astype(np.int64)
    real = np.clip(evaluate(values * scale) / output.scale + output.zero_point, output.qmin, output.qmax)
    assert np.abs(codes - real).max() == pytest.approx(certificate.max_error_lsb, abs=1e-9)
    assert certificate.inputs == values.size
    sure = np.abs(real - np.floor(real) - 0.5) > 1e-9
    wrong = np.count_nonzero((codes != np.floor(real + 0.5)) & sure)
    assert wrong <= certificate.misrounded <= wrong + np.count_nonzero(~sure)
    worst = certificate.worst_case
    assert plan(np.array([worst.value], np.int32))[0] == worst.code
    assert abs(worst.code - worst.exact) == certificate.max_error_lsb


def test_bias_is_added_without_overflow():
    rng = np.random.default_rng(32)
    ends = [-(2**31), 2**31 - 1, 0, 100]
    source = np.concatenate([ends, rng.integers(-(2**31), 2**31, 300)]).astype(np.int32)
    for scale in (0.01, 1e-3, 2e-4):
        plan = make_plan(AccumulatorParams(scale), QParams(0.02, 10), method="ibert")
        for bias in (-(2**31), 2**31 - 1, 5):
            expected = [ibert_code(plan, int(a) + bias) for a in source]
            assert plan(source, bias=bias).tolist() == expected
            assert plan(source, bias=np.full(source.size, bias, np.int64)).tolist() == expected


@pytest.mark.parametrize(
    ("source", "output", "activation", "message"),
    [
        (AccumulatorParams(0.01), QParams(0.01), "silu", "silu"),
        (AccumulatorParams(0.01), QParams(0.01), "gelu_tanh", "gelu_tanh"),
        (AccumulatorParams([0.01, 0.02]), QParams(0.01), "gelu", "per tensor"),
        (AccumulatorParams([0.01]), QParams(0.01), "gelu", "per tensor"),
        (AccumulatorParams(0.01), QParams([0.01, 0.02]), "gelu", "per tensor"),
        (QParams(0.01, [1, 2]), QParams(0.01), "gelu", "per tensor"),
        (AccumulatorParams(1e30), QParams(1e-30), "gelu", "output scale"),
        (AccumulatorParams(1e-30), QParams(1.0), "gelu", "i-GELU"),
        (AccumulatorParams(0.003), QParams(10.0, 0, 16, False), "gelu", "i-GELU"),
    ],
)
def test_what_it_does_not_serve_is_refused(source, output, activation, message):
    with pytest.raises(QGeluError, match=message):
        make_plan(source, output, activation, method="ibert")


@pytest.mark.parametrize("input_scale", [1.2e-38, 1e-9, 1e-4, 1e-2, 1.0, 1e9, 3.4e38])
@pytest.mark.parametrize("output_scale", [1.2e-38, 1e-6, 1.0, 1e9, 3.4e38])
def test_any_scales_work_or_are_refused(input_scale, output_scale):
    for source in (AccumulatorParams(input_scale), QParams(input_scale, 3, 8, True)):
        try:
            plan = make_plan(source, QParams(output_scale, 3), method="ibert")
        except QGeluError:
            continue
        codes = np.array([-128, -1, 0, 1, 127]).astype(plan.input_dtype)
        zero = 3 if isinstance(source, QParams) else 0
        assert plan(codes).tolist() == [ibert_code(plan, int(c) - zero) for c in codes]
