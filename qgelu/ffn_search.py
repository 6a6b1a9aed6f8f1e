"""An FFN's scales and integer weights, for the least error of the block's output on rows that the calibration kept.

First the first matmul: its input's scales, then its weight, rounded for that input's codes. Then the second, for what
the quantized first one gives. docs/calibration.md has the formulas.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qgelu.activations import derivative, dip, evaluate
from qgelu.errors import QGeluError
from qgelu.ffn import (
    AccumulatorScales,
    ChannelQuantization,
    FloatFfn,
    FoldedLayer,
    accumulator_scales,
    as_channels,
    hidden_qparams,
    with_short_ratio,
    with_whole_bias,
)
from qgelu.qparams import QParams

if TYPE_CHECKING:
    from calibration import TensorStatistics
    from calibration.activation_range import ActivationMethod

Matrix = NDArray[np.float32]

_EXPONENT: Final = 0.9
"""Of the equalisation where ranges are picked channel by channel; searched per FFN, 0.8 to 1.0 were best."""

_LEAST_SAMPLES: Final = 1000
"""With fewer values of a channel, its range and its relations to other channels are uncertain: docs/calibration.md."""

_MOST_CHANNELS: Final = 1 << 16
"""Beyond 2**30 / (255 * 127) = 33,155 channels, accumulators of weights of middling size leave their 30 bits."""

_MOST_EXECUTED_BITS: Final = 8
"""Of the codes. The scales of wider ones, which are simulated, need not be such that an executor takes them."""


def enough_samples(channels: int) -> int:
    """Return how many rows (tokens, patches) a calibration needs for an FFN of that many input channels."""
    return max(_LEAST_SAMPLES, channels)


@dataclass(frozen=True, eq=False)
class BlockScales:
    """What was found for one FFN.

    Attributes
    ----------
    input : ChannelQuantization
        Of the first matmul's input.
    output : QParams
        Of the activation's output.
    first, second : FoldedLayer
        Both layers on these codes.
    weight_limit : int
        Largest code that weights may have.
    relative_error : float
        L2 error of the block's output on the calibration's rows, against the float block's.
    """

    input: ChannelQuantization
    output: QParams
    first: FoldedLayer
    second: FoldedLayer
    weight_limit: int
    relative_error: float


def _codes(x: Matrix, channels: ChannelQuantization) -> Matrix:
    """Return the codes of x, as float32."""
    scale, zero_point = channels.scale.astype(np.float32), channels.zero_point.astype(np.float32)
    codes = np.clip(np.rint(x / scale + zero_point), np.float32(0), np.float32((1 << channels.bits) - 1))
    return np.asarray(codes, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class _Input:
    """What is known of a matmul's input, and what its codes are for."""

    rows: Matrix
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]
    count: float
    weight: Matrix
    importance: NDArray[np.float64]
    lowest: float | None

    @classmethod
    def of(
        cls,
        rows: Matrix,
        statistics: "TensorStatistics",
        weight: Matrix,
        importance: NDArray[np.float64],
        lowest: float | None = None,
    ) -> "_Input":
        minimum, maximum = statistics.channel_minimum, statistics.channel_maximum
        if minimum is None or maximum is None:
            raise QGeluError("the calibration has no channel ranges for an FFN: calibrate this model again")
        return cls(rows, minimum, maximum, statistics.count / minimum.size, weight, importance, lowest)

    def channels(self, bits: int, weight_bits: int, method: "ActivationMethod") -> ChannelQuantization:
        """Return scales and zero points of the codes."""
        import calibration
        from calibration.channel_windows import channel_windows
        from calibration.covariance import remaining_variances
        from calibration.scale_balance import balance_scales
        from calibration.weight_rounding import WEIGHT_LIMITS

        if method == "output":
            windows = channel_windows(self.rows, self.minimum, self.maximum, self.count, bits, lowest=self.lowest)
            remainder = remaining_variances(self.rows)
            limit = WEIGHT_LIMITS[weight_bits]
            found = balance_scales(windows, self.weight, self.importance, remainder, bits, limit)
        else:
            low, high = calibration.pick_channel_ranges(self.rows, self.minimum, self.maximum, method, bits)
            if self.lowest is not None:
                low, high = np.clip(low, self.lowest, 0.0), np.maximum(high, 0.0)
            found = calibration.equalize(low, high, self.weight, _EXPONENT, bits)
        return ChannelQuantization(found.scale, found.zero_point, bits)


def _layer(
    codes: Matrix,
    channels: ChannelQuantization,
    weight: NDArray[Any],
    wanted: Matrix,
    bits: int,
    allowed: AccumulatorScales | None = None,
) -> FoldedLayer:
    """Return a layer whose weight is rounded for its input's codes; its result's mean is that of the wanted one."""
    from calibration.weight_rounding import round_weight

    folded = channels.scale[:, None] * weight.astype(np.float64)
    rounded = round_weight(folded, codes, bits, None if allowed is None else allowed.at_least)
    mean = codes.mean(axis=0, dtype=np.float64) @ rounded.codes.astype(np.float64) * rounded.scale
    return FoldedLayer(rounded.codes, rounded.scale, wanted.mean(axis=0, dtype=np.float64) - mean)


def search_block(
    block: FloatFfn,
    input: "TensorStatistics",
    hidden: "TensorStatistics",
    bits: int,
    weight_bits: int = 8,
    method: "ActivationMethod" = "output",
) -> BlockScales:
    """Return the scales of an FFN's two quantized tensors, and its integer weights, that make its output's error least.

    Parameters
    ----------
    block : FloatFfn
    input : TensorStatistics
        Of the first matmul's input, with channel ranges and rows.
    hidden : TensorStatistics
        Of the activation's output, with channel ranges.
    bits : int
        Of the codes: 2 to 8 for integers, to 16 for the simulation.
    weight_bits : int
        8, 7 or 4.
    method : str
        ``output``: scales for the least error of the block's output. Others: the range of each channel by that method,
        then :func:`calibration.equalize`.

    Raises
    ------
    QGeluError
        If the statistics lack channel ranges or rows, or there are too many channels.
    """
    from calibration.weight_rounding import WEIGHT_LIMITS

    if max(block.first_weight.shape) > _MOST_CHANNELS:
        raise QGeluError(f"its weight of {block.first_weight.shape} leaves int32 accumulators: leave this site out")
    if input.rows is None:
        raise QGeluError("the calibration has no rows for an FFN: calibrate this model again")
    x = input.rows.rows
    first, second = block.first_weight.astype(np.float32), block.second_weight.astype(np.float32)

    def activated(sums: Matrix) -> Matrix:
        return evaluate(sums, block.activation, block.alpha).astype(np.float32)

    sums = x @ first
    if block.first_bias is not None:
        sums += block.first_bias.astype(np.float32)
    values = activated(sums)
    wanted = values @ second
    if block.second_bias is not None:
        wanted += block.second_bias.astype(np.float32)

    steepness = np.mean(np.square(derivative(sums, block.activation, block.alpha)), axis=0)
    importance = steepness * np.square(block.second_weight, dtype=np.float64).sum(axis=1)
    input_channels = _Input.of(x, input, first, importance).channels(bits, weight_bits, method)
    lowest = dip(block.activation, block.alpha).y
    source = _Input.of(values, hidden, second, np.ones(second.shape[1]), lowest)
    output = hidden_qparams(source.channels(bits, weight_bits, method), block.activation, block.alpha)

    codes = _codes(x, input_channels)
    if bits <= _MOST_EXECUTED_BITS:
        allowed = accumulator_scales(output, block.activation, block.alpha)
        # What rounding its bias to whole accumulators does is made up for by the second layer.
        first_layer, _ = with_whole_bias(_layer(codes, input_channels, first, sums, weight_bits, allowed), allowed)
        output = with_short_ratio(output, first_layer.scale)
    else:
        first_layer = _layer(codes, input_channels, first, sums, weight_bits)

    hidden_channels = as_channels(output)
    codes = _codes(activated(first_layer(codes)), hidden_channels)
    second_layer = _layer(codes, hidden_channels, second, wanted, weight_bits)

    error, norm = np.linalg.norm(second_layer(codes) - wanted), np.linalg.norm(wanted)
    relative = float(error / norm) if norm > 0.0 else 0.0
    return BlockScales(input_channels, output, first_layer, second_layer, WEIGHT_LIMITS[weight_bits], relative)
