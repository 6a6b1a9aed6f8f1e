"""The scales of an FFN that make the error of the block's output least, on rows kept by the calibration.

Two searches over (exponent of the equalisation, part of the range that is kept), the first matmul's input first and
then, with that fixed, the activation's output. The error is that of the float block with the quantization in
question and int8 weights, against the float block: docs/calibration.md.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qgelu.activations import dip, evaluate
from qgelu.errors import QGeluError
from qgelu.ffn import ChannelQuantization, FloatFfn, hidden_qparams, middle_code, quantize_weight

if TYPE_CHECKING:
    from calibration import TensorStatistics

EXPONENTS: Final = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
CLIPS: Final = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)

_CLIPPING_BITS: Final = 8
"""From this width on the whole widened range is kept: little is gained by less, and few rows do not show the worst."""

Matrix = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class BlockScales:
    """What was found for one FFN.

    Attributes
    ----------
    input, hidden : ChannelQuantization
        Of the first matmul's input and of the activation's output.
    input_choice, hidden_choice : tuple of (float, float)
        Exponent and clip of each.
    relative_error : float
        L2 error of the block's output on the calibration's rows, against the float block's.
    """

    input: ChannelQuantization
    hidden: ChannelQuantization
    input_choice: tuple[float, float]
    hidden_choice: tuple[float, float]
    relative_error: float


@dataclass(frozen=True, eq=False)
class _Side:
    """One matmul's input: its widened ranges, its weight, and which clips may be tried."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    weight: NDArray[Any]
    clips: tuple[float, ...]
    bits: int

    def candidates(self) -> Iterable[tuple[tuple[float, float], ChannelQuantization]]:
        import calibration

        for exponent, clip in itertools.product(EXPONENTS, self.clips):
            scales = calibration.equalize(self.low, self.high, self.weight, exponent, self.bits, clip=clip)
            yield (exponent, clip), ChannelQuantization(scales.scale, scales.zero_point, self.bits)


def _side(statistics: "TensorStatistics", weight: NDArray[Any], bits: int, lowest: float | None = None) -> _Side:
    """Return a side with its ranges widened for few samples.

    ``lowest`` is the least value that the input can take, where it is known; its ranges then include 0, since
    whole zero points must be codes.
    """
    import calibration

    minimum, maximum = statistics.channel_minimum, statistics.channel_maximum
    if minimum is None or maximum is None:
        raise QGeluError("the calibration has no channel ranges for an FFN: calibrate this model again")
    samples = statistics.count / minimum.size
    low, high = calibration.widen(minimum, maximum, samples)
    if lowest is not None:
        low, high = np.clip(low, lowest, 0.0), np.maximum(high, 0.0)
    clips = CLIPS[:1] if bits >= _CLIPPING_BITS else CLIPS
    return _Side(low, high, weight, clips, bits)


def _codes(x: Matrix, scale: Matrix, zero_point: Matrix, bits: int) -> Matrix:
    """Return the codes of x, as float32."""
    codes = np.clip(np.rint(x / scale + zero_point), np.float32(0), np.float32((1 << bits) - 1))
    return np.asarray(codes, dtype=np.float32)


def _int8_weight(weight: NDArray[Any], scale: NDArray[np.float64]) -> Matrix:
    codes, weight_scale = quantize_weight(scale[:, None] * weight.astype(np.float64))
    return (codes * weight_scale).astype(np.float32)


def _least(
    side: _Side, error: Callable[[ChannelQuantization], float]
) -> tuple[float, tuple[float, float], ChannelQuantization]:
    """Return the least error, its choice and its scales; the first of equals."""
    tried = ((error(scales), choice, scales) for choice, scales in side.candidates())
    return min(tried, key=lambda entry: entry[0])


def search_block(block: FloatFfn, input: "TensorStatistics", hidden: "TensorStatistics", bits: int) -> BlockScales:
    """Return the scales of an FFN's two quantized tensors that make its output's error least.

    Parameters
    ----------
    block : FloatFfn
    input : TensorStatistics
        Of the first matmul's input, with channel ranges and rows.
    hidden : TensorStatistics
        Of the activation's output, with channel ranges.
    bits : int
        2 to 8.

    Raises
    ------
    QGeluError
        If the statistics lack channel ranges or rows.
    """
    if input.rows is None:
        raise QGeluError("the calibration has no rows for an FFN: calibrate this model again")
    x = input.rows.rows
    first, second = block.first_weight.astype(np.float32), block.second_weight.astype(np.float32)
    bias = np.zeros(first.shape[1], np.float32) if block.first_bias is None else block.first_bias.astype(np.float32)

    def activated(sums: Matrix) -> Matrix:
        return evaluate(sums, block.activation, block.alpha).astype(np.float32)

    # The second bias is the same on both sides of every difference.
    expected = activated(x @ first + bias) @ second
    norm = float(np.square(expected, dtype=np.float64).sum())

    def squared(actual: Matrix) -> float:
        return float(np.square(actual - expected, dtype=np.float64).sum())

    def hidden_with(scales: ChannelQuantization) -> Matrix:
        scale, zero = scales.scale.astype(np.float32), scales.zero_point.astype(np.float32)
        # The middles of the ranges pass through the float weight into the bias, as in make_integer_ffn.
        middle = np.float32(middle_code(bits))
        about_middle = _codes(x, scale, zero, bits) - middle
        constant = bias + (middle - scales.zero_point) * scales.scale @ first
        sums = about_middle @ _int8_weight(first, scales.scale) + constant.astype(np.float32)
        return activated(np.asarray(sums, dtype=np.float32))

    _, input_choice, input_scales = _least(
        _side(input, first, bits), lambda scales: squared(hidden_with(scales) @ second)
    )
    values = hidden_with(input_scales)

    def with_hidden(scales: ChannelQuantization) -> float:
        params = hidden_qparams(scales, block.activation, block.alpha)
        scale, zero = params.scale.astype(np.float32), params.zero_point.astype(np.float32)
        return squared((_codes(values, scale, zero, bits) - zero) @ _int8_weight(second, params.scale))

    lowest = dip(block.activation, block.alpha).y
    error, hidden_choice, hidden_scales = _least(_side(hidden, second, bits, lowest), with_hidden)
    relative = (error / norm) ** 0.5 if norm > 0.0 else 0.0
    return BlockScales(input_scales, hidden_scales, input_choice, hidden_choice, relative)
