"""The search over equalisation and clipping: no worse than any fixed choice, and by the block's output."""

import numpy as np
import pytest

from calibration import equalize, observe, widen
from qgelu.activations import evaluate
from qgelu.errors import QGeluError
from qgelu.ffn import ChannelQuantization, FloatFfn, make_integer_ffn
from qgelu.ffn_search import CLIPS, search_block


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


def statistics(block, x):
    hidden, _ = outputs(block, x)
    return observe(x, per_channel=True, sample_rows=True), observe(hidden, per_channel=True)


@pytest.mark.parametrize("bits", [8, 6, 4])
def test_better_than_fixed_exponents_out_of_sample(bits):
    block, x = block_and_rows()
    source, hidden = statistics(block, x[:2000])
    test = x[2000:]
    _, expected = outputs(block, test)

    def error(first, second):
        result = make_integer_ffn(block, first, second).run(test)
        return np.linalg.norm(result - expected) / np.linalg.norm(expected)

    found = search_block(block, source, hidden, bits)
    searched = error(found.input, found.hidden)
    assert searched < 1.7 * found.relative_error
    for exponent in (0.5, 0.85):
        sides = []
        for values, weight in ((source, block.first_weight), (hidden, block.second_weight)):
            low, high = widen(values.channel_minimum, values.channel_maximum, 2000)
            low, high = (low, high) if values is source else (np.clip(low, -0.17, 0), np.maximum(high, 0))
            scales = equalize(low, high, weight, exponent, bits)
            sides.append(ChannelQuantization(scales.scale, scales.zero_point, bits))
        assert searched < 1.1 * error(*sides)


def test_eight_bits_never_clip_what_was_seen():
    block, x = block_and_rows(1)
    source, hidden = statistics(block, x)
    found = search_block(block, source, hidden, 8)
    low = found.input.scale * (0 - found.input.zero_point)
    high = found.input.scale * (255 - found.input.zero_point)
    slack = found.input.scale
    assert (low <= source.channel_minimum + slack).all()
    assert (high >= source.channel_maximum - slack).all()
    assert found.input_choice[1] in CLIPS


def test_deterministic():
    block, x = block_and_rows(2)
    first, second = (search_block(block, *statistics(block, x), 6) for _ in range(2))
    np.testing.assert_array_equal(first.input.scale, second.input.scale)
    np.testing.assert_array_equal(first.hidden.zero_point, second.hidden.zero_point)


def test_statistics_without_rows_are_refused():
    block, x = block_and_rows(3)
    source, hidden = statistics(block, x)
    with pytest.raises(QGeluError, match="no rows for an FFN"):
        search_block(block, hidden, hidden, 8)
    with pytest.raises(QGeluError, match="no channel ranges"):
        search_block(block, source, observe(x), 8)
