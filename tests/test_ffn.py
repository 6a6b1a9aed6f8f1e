"""The integer FFN block: what folding promises, and its accumulators."""

import numpy as np
import pytest

from qgelu.activations import ACTIVATIONS, evaluate
from qgelu.errors import QGeluError
from qgelu.ffn import ChannelQuantization, FloatFfn, hidden_qparams, make_integer_ffn, quantize_weight
from qgelu.narrow import SHORT_BIAS, is_short


def make_block(rng, activation="gelu", shape=(12, 24, 8), bias=True):
    k, n, m = shape
    return FloatFfn(
        rng.normal(size=(k, n)).astype(np.float32) / np.sqrt(k) * 2,
        rng.normal(size=n).astype(np.float32) if bias else None,
        rng.normal(size=(n, m)).astype(np.float32) / np.sqrt(n),
        rng.normal(size=m).astype(np.float32) if bias else None,
        activation,
        1.702,
    )


def float_block(block, x):
    hidden = x @ block.first_weight.astype(np.float64) + (0 if block.first_bias is None else block.first_bias)
    hidden = evaluate(hidden, block.activation, block.alpha)
    return hidden, hidden @ block.second_weight + (0 if block.second_bias is None else block.second_bias)


def channels(values, bits, with_zero):
    low, high = values.min(0), values.max(0)
    if with_zero:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    steps = (1 << bits) - 1
    scale = np.maximum((high - low) / steps, 1e-6)
    return ChannelQuantization(scale, -low / scale, bits)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("bits", "limit"), [(8, 0.012), (6, 0.04), (4, 0.15)])
@pytest.mark.parametrize("bias", [True, False])
def test_close_to_float(activation, bits, limit, bias):
    rng = np.random.default_rng(3)
    block = make_block(rng, activation, bias=bias)
    x = (rng.normal(size=(500, 12)) + np.linspace(-6, 6, 12)).astype(np.float32)
    hidden, expected = float_block(block, x)
    integer = make_integer_ffn(block, channels(x, bits, False), channels(hidden, bits, True))
    result = integer.run(x)
    assert result.dtype == np.float32
    assert np.linalg.norm(result - expected) < limit * np.linalg.norm(expected)
    codes = integer.quantize_input(x)
    assert codes.min() == 0
    assert codes.max() == (1 << bits) - 1


def test_empty_channels_of_weights_keep_their_bias():
    rng = np.random.default_rng(4)
    block = make_block(rng)
    block.first_weight[:, 5] = 0
    block.first_bias[5] = 1.25
    block.first_weight[:, 6] = 0
    block.first_bias[6] = 0
    block.second_weight[:, 2] = 0
    x = rng.normal(size=(200, 12)).astype(np.float32)
    hidden, expected = float_block(block, x)
    integer = make_integer_ffn(block, channels(x, 8, False), channels(hidden, 8, True))
    result = integer.run(x)
    assert np.linalg.norm(result - expected) < 0.012 * np.linalg.norm(expected)
    np.testing.assert_allclose(result[:, 2], block.second_bias[2], rtol=1e-6)


def test_a_large_bias_makes_the_weights_coarser():
    rng = np.random.default_rng(5)
    block = make_block(rng)
    x = rng.normal(size=(200, 12)).astype(np.float32)
    hidden, _ = float_block(block, x)
    source, target = channels(x, 8, False), channels(hidden, 8, True)
    scale = quantize_weight(source.scale[:, None] * block.first_weight.astype(np.float64))[1]
    block.first_bias[3] = 3 * scale[3] * SHORT_BIAS
    integer = make_integer_ffn(block, source, target)
    assert abs(int(integer.first_bias[3])) <= SHORT_BIAS
    block.first_bias[3] = 100 * scale[3] * SHORT_BIAS
    with pytest.raises(QGeluError, match="bias does not fit int32 at channel 3"):
        make_integer_ffn(block, source, target)


def test_accumulators_that_could_overflow_are_refused():
    k = 40000
    block = FloatFfn(np.ones((k, 1)), None, np.ones((1, 1)), None, "gelu", 1.702)
    source = ChannelQuantization(np.full(k, 1e-3), np.zeros(k), 8)
    with pytest.raises(QGeluError, match=r"first matmul's int32 accumulators could overflow \(K = 40000\)"):
        make_integer_ffn(block, source, ChannelQuantization(np.array([0.01]), np.array([20.0]), 8))


def test_accumulators_are_exact():
    rng = np.random.default_rng(6)
    block = make_block(rng, shape=(300, 7, 3))
    x = rng.normal(size=(50, 300)).astype(np.float32)
    hidden, _ = float_block(block, x)
    integer = make_integer_ffn(block, channels(x, 8, False), channels(hidden, 8, True))
    codes = integer.quantize_input(x)
    exact = codes.astype(object) @ integer.first_weight.astype(object) + integer.first_bias.astype(object)
    first = integer.plan(exact.astype(np.int32) - integer.first_bias, bias=integer.first_bias)
    second = first.astype(object) @ integer.second_weight.astype(object)
    expected = second.astype(np.int32).astype(np.float32) * integer.output_multiplier + integer.output_bias
    np.testing.assert_array_equal(integer.run(x), expected)


def test_scales_that_need_the_wide_arithmetic_are_refused():
    block = make_block(np.random.default_rng(7))
    source = ChannelQuantization(np.full(12, 0.05), np.full(12, 127.0), 8)
    with pytest.raises(QGeluError, match="need the wide arithmetic"):
        make_integer_ffn(block, source, ChannelQuantization(np.full(24, 500.0), np.full(24, 3.0), 8))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bits", [8, 3])
def test_multipliers_are_short_and_scales_hardly_change(activation, bits):
    rng = np.random.default_rng(8)
    block = make_block(rng, activation, shape=(64, 200, 8))
    block.first_weight[:, :100] *= np.logspace(-7, 0, 100)
    x = rng.normal(size=(400, 64)).astype(np.float32)
    hidden, _ = float_block(block, x)
    target = channels(hidden, bits, True)
    integer = make_integer_ffn(block, channels(x, 8, False), target)
    assert is_short(integer.plan.integers)
    assert integer.plan.certificate.max_error_lsb < 0.75
    raised = integer.plan.output.scale / hidden_qparams(target, activation, block.alpha).scale
    assert np.all((raised > 0.9999) & (raised < 1.01))
    expected = quantize_weight(channels(x, 8, False).scale[:, None] * block.first_weight.astype(np.float64))[1]
    ratio = integer.plan.input.scale / expected
    assert np.all(ratio > 0.9999)
    assert np.all(ratio[120:] < (1.01 if bits == 8 else 3.0))


def test_weights_that_a_coarse_scale_would_lose_are_refused():
    k = 5000
    block = FloatFfn(np.ones((k, 1)), None, np.ones((1, 1)), None, "gelu", 1.702)
    source = ChannelQuantization(np.full(k, 1e-4), np.zeros(k), 8)
    make_integer_ffn(block, source, ChannelQuantization(np.array([0.02]), np.array([9.0]), 8))
    with pytest.raises(QGeluError, match="weights are too small for the output's scale at channel 0"):
        make_integer_ffn(block, source, ChannelQuantization(np.array([3.0]), np.array([9.0]), 8))
