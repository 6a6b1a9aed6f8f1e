import math
import time

import numpy as np
import pytest
from oracle import ACTIVATIONS, rounded_codes, wrong_codes
from random_plans import log_uniform, random_params

from qgelu import AccumulatorParams, QGeluError, QParams, make_plan
from qgelu.table_plan import codes_by_pattern


def all_codes(params):
    return np.arange(params.qmin, params.qmax + 1).astype(params.dtype)


def assert_correctly_rounded(source, output, activation, alpha=1.702):
    plan = make_plan(source, output, activation, alpha)
    assert plan.kind == "table"
    codes = all_codes(source)
    answers = plan(codes)
    assert answers.dtype == output.dtype
    ks = codes.astype(np.int64) - source.zero_point
    wrong = wrong_codes(ks, answers, source.scale, output, activation, alpha)
    assert not wrong, (source, output, activation, alpha, wrong)
    assert plan.certificate.misrounded == 0
    assert plan.certificate.inputs == codes.size
    assert plan.certificate.max_error_lsb <= 0.5 + 1e-9
    return plan


def random_alpha(rng, activation):
    return log_uniform(rng, 0.01, 100.0) if activation == "quick_gelu" and rng.integers(2) else 1.702


def random_pair(rng, lowest_bits, highest_bits):
    """Return input and output parameters; a third of them with scales in the ratio of small whole numbers."""
    source = random_params(rng, 1e-6, 10.0, lowest_bits, highest_bits)
    output = random_params(rng, 1e-6, 10.0, lowest_bits, highest_bits)
    if rng.integers(3) == 0:
        ratio = float(rng.choice([0.25, 0.5, 1.0, 2.0, 4.0, 6.0, 2.0 / 3.0]))
        scale = min(max(source.scale * ratio, 1e-6), 10.0)
        output = QParams(scale, output.zero_point, output.bits, output.signed)
    return source, output


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_codes_of_up_to_8_bits(activation):
    rng = np.random.default_rng(11)
    for _ in range(150):
        assert_correctly_rounded(*random_pair(rng, 2, 8), activation, random_alpha(rng, activation))


@pytest.mark.exhaustive
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_codes_of_up_to_8_bits_ten_thousand_times(activation):
    rng = np.random.default_rng(12)
    for _ in range(10_000):
        assert_correctly_rounded(*random_pair(rng, 2, 8), activation, random_alpha(rng, activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_16_bits(activation):
    rng = np.random.default_rng(13)
    source = QParams(10.0 / 65536, 30000, 16, False)
    assert_correctly_rounded(source, random_params(rng, 1e-4, 1e-3, 16, 16), activation)


@pytest.mark.exhaustive
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_16_bits_over_many_scales(activation):
    rng = np.random.default_rng(14)
    for _ in range(20):
        source = random_params(rng, 1e-6, 10.0, 16, 16)
        output = random_params(rng, 1e-6, 10.0, 16, 16)
        assert_correctly_rounded(source, output, activation, random_alpha(rng, activation))
    for _ in range(20):
        assert_correctly_rounded(*random_pair(rng, 9, 16), activation, random_alpha(rng, activation))
    for _ in range(8):  # scales under which most codes differ from their neighbours
        source = random_params(rng, 1e-4, 1e-3, 16, 16)
        output = QParams(source.scale * float(rng.uniform(0.3, 3.0)), 20_000, 16, False)
        assert_correctly_rounded(source, output, activation, random_alpha(rng, activation))


TIES = [(2.0**-7, 2.0**-6), (0.1, 0.2), (1.0, 2.0), (0.3, 0.6), (10.0, 2.5), (3.0, 2.0), (2.0**-12, 2.0**-9)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("input_scale", "output_scale"), TIES)
def test_ties_of_the_linear_part_round_down(activation, input_scale, output_scale):
    """x / s_y half-way between two codes, x - f(x) far below a float64 unit in the last place."""
    for zero_point in (0, 7):
        assert_correctly_rounded(QParams(input_scale, 3), QParams(output_scale, zero_point), activation)
        source = QParams(input_scale, 4000, 16, False)
        for alpha in (1.702, 0.02) if activation == "quick_gelu" else (1.702,):
            plan = make_plan(source, QParams(output_scale, zero_point, 16, False), activation, alpha)
            codes = np.concatenate([np.arange(0, 65536, 997), np.arange(3990, 4010), np.arange(65500, 65536)])
            expected = rounded_codes(codes - 4000, input_scale, plan.output, activation, alpha)
            assert np.array_equal(plan(codes.astype(np.uint16)), expected)


@pytest.mark.parametrize("k", [21, 51, 101, 151, 251])
def test_near_ties_that_the_tail_makes_of_a_tie(k):
    """x / s_y is a tie and g(x) / s_y is 1 to the last bit: f(x) / s_y is next to another tie, on either side."""
    low, high = 0.0, 6.0  # g(x) = x Phi(-x) = s_y = 2 x / k where Phi(-x) = 2 / k
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if math.erfc(middle / math.sqrt(2)) / 2 > 2.0 / k else (low, middle)
    seen = set()
    for step in range(-6, 7):
        input_scale = float(low / k * (1 + step * 2.0**-52))
        output = QParams(2.0 * input_scale)
        expected = rounded_codes([k], input_scale, output, "gelu", 1.702)
        plan = make_plan(QParams(input_scale), output)
        assert plan(np.array([k], np.uint8)) == expected
        seen.add(int(expected[0]))
    assert seen == {(k - 1) // 2 - 1, (k - 1) // 2}


def test_tables_of_16_bits_with_ties_everywhere_are_quick():
    start = time.process_time()
    make_plan(QParams(2.0**-10, 0, 16, False), QParams(2.0**-9, 0, 16, False), "gelu")
    assert time.process_time() - start < 3.0


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 5, 8, 9, 12, 16])
def test_bit_patterns_beyond_the_codes_answer_as_the_nearest_code(bits, signed):
    source = QParams(0.05, 1, bits, signed)
    plan = make_plan(source, QParams(0.01, 9, 8, False), "silu")
    info = np.iinfo(source.dtype)
    everything = np.arange(info.min, info.max + 1).astype(source.dtype)
    nearest_code = np.clip(everything, source.qmin, source.qmax).astype(source.dtype)
    assert np.array_equal(plan(everything), plan(nearest_code))
    assert np.array_equal(codes_by_pattern(source).astype(source.dtype), np.roll(nearest_code, info.min))


def test_auto_chooses_a_table_for_codes_per_tensor():
    source, output = QParams(0.1, 3), QParams(0.05, 4)
    assert make_plan(source, output).kind == "table"
    assert make_plan(source, output, method="table").kind == "table"
    assert make_plan(source, output, method="polynomial").kind == "polynomial"
    assert make_plan(source, QParams([0.05, 0.06], 4)).kind == "polynomial"
    assert make_plan(AccumulatorParams(0.1), output).kind == "polynomial"


@pytest.mark.parametrize(
    ("source", "output", "message"),
    [
        (AccumulatorParams(0.1), QParams(0.1), "accumulators"),
        (QParams([0.1, 0.2]), QParams(0.1), "per channel"),
        (QParams(0.1), QParams([0.1, 0.2]), "per channel"),
    ],
)
def test_tables_that_cannot_be_are_refused(source, output, message):
    with pytest.raises(QGeluError, match=message):
        make_plan(source, output, method="table")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("q", QParams(0.1)), "input"),
        ((QParams(0.1), 0.1), "output"),
        ((QParams(0.1), AccumulatorParams(0.1)), "output"),
        ((QParams(0.1), QParams(0.1), "relu"), "relu"),
        ((QParams(0.1), QParams(0.1), "quick_gelu", 0.0), "alpha"),
        ((QParams(0.1), QParams(0.1), "gelu", 1.702, "magic"), "magic"),
    ],
)
def test_bad_arguments_of_make_plan(arguments, message):
    with pytest.raises(QGeluError, match=message):
        make_plan(*arguments)


def test_certificate_names_the_worst_case():
    plan = make_plan(QParams(0.1, 128), QParams(0.05, 20))
    worst = plan.certificate.worst_case
    code = plan(np.array([worst.value + 128], np.uint8))[0]
    assert code == worst.code
    assert abs(code - worst.exact) == plan.certificate.max_error_lsb
    assert plan.certificate.proof == "enumerated"
    assert plan.certificate.admitted == (0, 255)
