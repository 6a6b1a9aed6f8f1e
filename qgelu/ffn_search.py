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
from qgelu.ffn import ChannelQuantization, FloatFfn, FoldedLayer, as_channels, hidden_qparams

if TYPE_CHECKING:
    from calibration import TensorStatistics
    from calibration.activation_range import ActivationMethod

Matrix = NDArray[np.float32]

_EXPONENT: Final = 0.9
"""Of the equalisation where ranges are picked channel by channel; searched per FFN, 0.8 to 1.0 were best."""


@dataclass(frozen=True, eq=False)
class BlockScales:
    """What was found for one FFN.

    Attributes
    ----------
    input, hidden : ChannelQuantization
        Of the first matmul's input and of the activation's output.
    first, second : FoldedLayer
        Both layers on these codes.
    relative_error : float
        L2 error of the block's output on the calibration's rows, against the float block's.
    """

    input: ChannelQuantization
    hidden: ChannelQuantization
    first: FoldedLayer
    second: FoldedLayer
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
    codes: Matrix, channels: ChannelQuantization, weight: NDArray[Any], wanted: Matrix, bits: int
) -> FoldedLayer:
    """Return a layer whose weight is rounded for its input's codes; its result's mean is that of the wanted one."""
    from calibration.covariance import shrunk_covariance
    from calibration.weight_rounding import round_weight

    folded = channels.scale[:, None] * weight.astype(np.float64)
    rounded = round_weight(folded, shrunk_covariance(codes), bits)
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
        Of the codes: 2 to 8.
    weight_bits : int
        8, 7 or 4.
    method : str
        ``output``: scales for the least error of the block's output. Others: the range of each channel by that method,
        then :func:`calibration.equalize`.

    Raises
    ------
    QGeluError
        If the statistics lack channel ranges or rows.
    """
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
    codes = _codes(x, input_channels)
    first_layer = _layer(codes, input_channels, first, sums, weight_bits)
    actual = activated(first_layer(codes))

    lowest = dip(block.activation, block.alpha).y
    source = _Input.of(values, hidden, second, np.ones(second.shape[1]), lowest)
    found = source.channels(bits, weight_bits, method)
    hidden_channels = as_channels(hidden_qparams(found, block.activation, block.alpha))
    codes = _codes(actual, hidden_channels)
    second_layer = _layer(codes, hidden_channels, second, wanted, weight_bits)

    error, norm = np.linalg.norm(second_layer(codes) - wanted), np.linalg.norm(wanted)
    relative = float(error / norm) if norm > 0.0 else 0.0
    return BlockScales(input_channels, hidden_channels, first_layer, second_layer, relative)
