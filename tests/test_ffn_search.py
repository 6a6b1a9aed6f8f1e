"""The search for scales and weights: better than fixed choices, out of sample, and by the block's output."""

import numpy as np
import pytest

from calibration import equalize, observe
from qgelu.activations import evaluate
from qgelu.errors import QGeluError
from qgelu.ffn import ChannelQuantization, FloatFfn, assemble_ffn, make_integer_ffn
from qgelu.ffn_search import search_block


def block_and_rows(seed=0):
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(24, 64)).astype(np.float32) / 4
    second = rng.normal(size=(64, 24)).astype(np.float32) / 8
    block = FloatFfn(first, rng.normal(size=64).astype(np.float32), second, None, "gelu", 1.702)
    x = rng.standard_t(5, size=(4000, 24)).astype(np.float32)
    x[:, 3] = 12 * x[:, 3] + 30  # an outlier channel on one side of zero
    return block, x


def outputs(block, x):
    hidden = evaluate(x @ block.first_weight + block.first_bias).astype(np.float32)
    return hidden, hidden @ block.second_weight


def integer_block(block, found):
    return assemble_ffn(block, found.input, found.output, found.first, found.second, found.weight_limit)


def statistics(block, x):
    hidden, _ = outputs(block, x)
    return observe(x, per_channel=True, sample_rows=True), observe(hidden, per_channel=True)


@pytest.mark.parametrize("bits", [8, 6, 4])
def test_better_than_fixed_exponents_out_of_sample(bits):
    block, x = block_and_rows()
    source, hidden = statistics(block, x[:2000])
    test = x[2000:]
    _, expected = outputs(block, test)

    def error(integer):
        return np.linalg.norm(integer.run(test) - expected) / np.linalg.norm(expected)

    found = search_block(block, source, hidden, bits)
    searched = error(integer_block(block, found))
    assert searched < 1.3 * found.relative_error
    for exponent in (0.5, 0.7, 0.85, 1.0):
        sides = []
        for values, weight in ((source, block.first_weight), (hidden, block.second_weight)):
            low, high = values.channel_minimum, values.channel_maximum
            low, high = (low, high) if values is source else (np.clip(low, -0.17, 0), np.maximum(high, 0))
            scales = equalize(low, high, weight, exponent, bits)
            sides.append(ChannelQuantization(scales.scale, scales.zero_point, bits))
        assert searched < error(make_integer_ffn(block, *sides))


@pytest.mark.parametrize(("weight_bits", "largest", "limit"), [(8, 127, 0.02), (7, 63, 0.025), (4, 7, 0.2)])
def test_weight_bits(weight_bits, largest, limit):
    block, x = block_and_rows(5)
    found = search_block(block, *statistics(block, x[:2000]), 8, weight_bits)
    integer = integer_block(block, found)
    for weight in (integer.first_weight, integer.second_weight):
        assert np.abs(weight).max() == largest
    _, expected = outputs(block, x[2000:])
    error = np.linalg.norm(integer.run(x[2000:]) - expected) / np.linalg.norm(expected)
    assert error < limit


def test_the_mean_of_the_output_is_kept():
    block, x = block_and_rows(6)
    source, hidden = statistics(block, x)
    integer = integer_block(block, search_block(block, source, hidden, 4, 4))
    rows = source.rows.rows
    _, expected = outputs(block, rows)
    rest = integer.run(rows) - expected
    assert (np.abs(rest.mean(axis=0)) < 0.05 * rest.std(axis=0)).all()


@pytest.mark.parametrize("method", ["minmax", "percentile", "mse", "entropy"])
def test_other_methods_are_honoured(method):
    block, x = block_and_rows(7)
    source, hidden = statistics(block, x[:2000])
    _, expected = outputs(block, x[2000:])

    def error(name):
        result = integer_block(block, search_block(block, source, hidden, 4, method=name)).run(x[2000:])
        return np.linalg.norm(result - expected)

    assert error("output") < error(method)
    others = {"minmax", "percentile", "mse", "entropy"} - {method}
    assert all(error(method) != error(other) for other in others)


def test_eight_bits_never_clip_what_was_seen():
    block, x = block_and_rows(1)
    source, hidden = statistics(block, x)
    found = search_block(block, source, hidden, 8)
    low = found.input.scale * (0 - found.input.zero_point)
    high = found.input.scale * (255 - found.input.zero_point)
    slack = found.input.scale
    assert (low <= source.channel_minimum + slack).all()
    assert (high >= source.channel_maximum - slack).all()


def test_deterministic():
    block, x = block_and_rows(2)
    first, second = (search_block(block, *statistics(block, x), 6) for _ in range(2))
    np.testing.assert_array_equal(first.input.scale, second.input.scale)
    np.testing.assert_array_equal(first.output.zero_point, second.output.zero_point)


def test_statistics_without_rows_are_refused():
    block, x = block_and_rows(3)
    source, hidden = statistics(block, x)
    with pytest.raises(QGeluError, match="no rows for an FFN"):
        search_block(block, hidden, hidden, 8)
    with pytest.raises(QGeluError, match="no channel ranges"):
        search_block(block, source, observe(x), 8)
