"""The integer FFN block: scales folded into int8 weights, int32 bias, the fused activation, and its executor.

docs/arithmetic.md, section 5, has the algebra. In short, with s_k, z_k the input channels' scales and shifts:

    x_k ~ s_k (q_k - z_k)
    sum_k x_k w_kn ~ S_n (sum_k q_k W_kn + b_n)      W_kn = round(s_k w_kn / S_n), S_n = max_k |s_k w_kn| / 127

and the same again for the second matmul, whose input codes leave the activation with their own scale and zero
point per channel.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qgelu import narrow
from qgelu.activations import Activation
from qgelu.errors import QGeluError
from qgelu.polynomial import family_of, family_slope, tail_polynomial
from qgelu.polynomial_plan import PolynomialPlan, make_polynomial_plan
from qgelu.qparams import AccumulatorParams, QParams

WEIGHT_LIMIT: Final = 127
"""int8 weights are symmetric."""

_BIAS_LIMIT: Final = narrow.SHORT_BIAS
_ACCUMULATOR_LIMIT: Final = (1 << 30) - 1
"""With the bias within 24 bits, their sum stays within int32."""

_LARGEST_COARSENING: Final = 16.0
_NARROW_TOLERANCE_LSB: Final = 0.75
"""FFN outputs may have scales finer than 0.002, where the 16-bit lanes prove a little more than 0.55 LSB."""

_FINEST_OUTPUT: Final = 2.0
"""In units of the finest output scale of 16-bit lanes: finer ones prove more than the tolerance by a short m_3."""


@dataclass(frozen=True, eq=False)
class ChannelQuantization:
    """Real scale and shift of every channel: x ~ scale * (code - zero_point).

    Attributes
    ----------
    scale, zero_point : float64 arrays of shape [channels]
        The zero point need not be whole nor a code.
    bits : int
        Codes are 0 to 2**bits - 1.
    """

    scale: NDArray[np.float64]
    zero_point: NDArray[np.float64]
    bits: int


@dataclass(frozen=True, eq=False)
class FloatFfn:
    """Weights of the float block: activation(x @ first_weight + first_bias) @ second_weight + second_bias.

    Attributes
    ----------
    first_weight : array of shape [K, N]
    first_bias : array of shape [N] or None
    second_weight : array of shape [N, M]
    second_bias : array of shape [M] or None
    activation, alpha
    """

    first_weight: NDArray[Any]
    first_bias: NDArray[Any] | None
    second_weight: NDArray[Any]
    second_bias: NDArray[Any] | None
    activation: Activation
    alpha: float


@dataclass(frozen=True, eq=False)
class FoldedLayer:
    """A linear layer on codes: x @ weight + bias ~ scale * (codes @ weight codes) + constant.

    Attributes
    ----------
    codes : int8 array of shape [K, N]
        Of the weight, the input's scales in it.
    scale : float64 array of shape [N]
    constant : float64 array of shape [N]
        The bias and what the input's zero points add.
    """

    codes: NDArray[np.int8]
    scale: NDArray[np.float64]
    constant: NDArray[np.float64]

    def __call__(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Return the layer's real result for input codes [rows, K], float32 [rows, N]."""
        sums = codes.astype(np.float64) @ self.codes.astype(np.float64)
        return (sums * self.scale + self.constant).astype(np.float32)


@dataclass(frozen=True, eq=False)
class IntegerFfn:
    """An FFN block in integers.

    Attributes
    ----------
    input_multiplier, input_offset : float32 arrays of shape [K]
        Input codes are saturate(round_half_even(x * multiplier + offset)).
    input_bits : int
    first_weight : int8 array of shape [K, N]
    first_bias : int32 array of shape [N]
    plan : PolynomialPlan
        From the first accumulators to uint8 codes, per channel.
    second_weight : int8 array of shape [N, M]
    output_multiplier, output_bias : float32 arrays of shape [M]
        The output is accumulator * multiplier + bias.
    """

    input_multiplier: NDArray[np.float32]
    input_offset: NDArray[np.float32]
    input_bits: int
    first_weight: NDArray[np.int8]
    first_bias: NDArray[np.int32]
    plan: PolynomialPlan
    second_weight: NDArray[np.int8]
    output_multiplier: NDArray[np.float32]
    output_bias: NDArray[np.float32]

    def quantize_input(self, x: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Return the input codes, uint8 of the shape of x ([..., K], float32)."""
        scaled = np.rint(x * self.input_multiplier + self.input_offset)
        return np.asarray(np.clip(scaled, 0, (1 << self.input_bits) - 1), dtype=np.uint8)

    def run(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run the block: x float32 [..., K] -> float32 [..., M]."""
        hidden = self.plan(_matmul(self.quantize_input(x), self.first_weight), bias=self.first_bias)
        accumulator = _matmul(hidden, self.second_weight)
        result = accumulator.astype(np.float32) * self.output_multiplier + self.output_bias
        return np.asarray(result, dtype=np.float32)


def _matmul(codes: NDArray[Any], weight: NDArray[np.int8]) -> NDArray[np.int32]:
    # float64 holds every product and sum below 2**53 exactly, and its matmul is fast.
    return (codes.astype(np.float64) @ weight.astype(np.float64)).astype(np.int32)


def quantize_weight(weight: NDArray[np.float64]) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """Return int8 weights [K, N] and their scale [N], symmetric per output channel, round to nearest.

    A channel of zeros gets scale 1.
    """
    largest = np.abs(weight).max(axis=0)
    scale = np.where(largest > 0.0, largest / WEIGHT_LIMIT, 1.0)
    return _round_weight(weight, scale), scale


def with_short_ratio(output: QParams, accumulator_scale: NDArray[np.float64]) -> QParams:
    """Return the output's parameters with scales raised, by less than 1 %, to short ratios of the accumulators'."""
    unit = accumulator_scale * (1 << narrow.FRACTION_BITS)
    scale = unit / narrow.short_at_most(unit / output.scale)
    return QParams(scale, output.zero_point, output.bits, output.signed)


def middle_code(bits: int) -> float:
    """Return the middle of the codes 0 to 2**bits - 1."""
    return 0.5 * ((1 << bits) - 1)


def _round_weight(weight: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.int8]:
    return np.clip(np.rint(weight / scale), -WEIGHT_LIMIT, WEIGHT_LIMIT).astype(np.int8)


def _check_accumulators(weight: NDArray[np.int8], bits: int, which: str) -> None:
    largest = np.abs(weight.astype(np.int64)).sum(axis=0) * ((1 << bits) - 1)
    if largest.size and int(largest.max()) > _ACCUMULATOR_LIMIT:
        raise QGeluError(
            f"the {which} matmul's int32 accumulators could overflow (K = {weight.shape[0]}): leave this site out"
        )


@dataclass(frozen=True, eq=False)
class AccumulatorScales:
    """The scales that a first matmul's accumulators may have: those whose multiplier to the tail's steps is short.

    Attributes
    ----------
    unit : float
        Real width of a step of u; the scales are this times a short ratio.
    least : float64 array of shape [N]
        Finer ones would need longer shifts than short multipliers allow.
    output : float64 array of shape [N]
        The activation's output scale.
    """

    unit: float
    least: NDArray[np.float64]
    output: NDArray[np.float64]

    def at_least(self, scale: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the next scales that are not finer, [N]."""
        return narrow.short_at_least(np.maximum(scale, self.least) / self.unit) * self.unit

    def check(
        self,
        weight: NDArray[np.float64],
        codes: NDArray[np.int8],
        scale: NDArray[np.float64],
        bits: int,
        weight_limit: int,
    ) -> None:
        """Raise QGeluError if a scale is so coarse that inputs which move together would be lost."""
        natural = quantize_weight(weight)[1] * (WEIGHT_LIMIT / weight_limit)
        lost = np.abs((weight - scale * codes).sum(axis=0)) * middle_code(bits)
        coarse = (scale > _LARGEST_COARSENING * natural) & (lost > self.output)
        if coarse.any():
            raise QGeluError(
                f"the first matmul's weights are too small for the output's scale at channel {int(np.argmax(coarse))}: "
                "leave this site out"
            )


def accumulator_scales(output: QParams, activation: Activation, alpha: float) -> AccumulatorScales:
    """Return the scales that the first matmul's accumulators may have for an output with these parameters."""
    unit = tail_polynomial(family_of(activation), 16).step / family_slope(activation, alpha)
    # make_integer_ffn raises the output's scale by at most one step of a short ratio, 2**-7.
    scale = np.asarray(output.scale, dtype=np.float64)
    linear_unit = scale * (1.0 + 2.0**-6) / (1 << narrow.FRACTION_BITS)
    return AccumulatorScales(unit, np.maximum(unit, linear_unit) / (1 << narrow.SHORT_SHIFT), scale)


def fold_layer(
    weight: NDArray[Any],
    bias: NDArray[Any] | None,
    input: ChannelQuantization,
    allowed: AccumulatorScales | None = None,
) -> FoldedLayer:
    """Return a layer with nearest weights, of allowed scales, and the constant that goes with them.

    What the channels' middle codes add to the constant goes through the unrounded weight: a channel that hardly varies
    about a large value may have no weight left after rounding.
    """
    folded = input.scale[:, None] * weight.astype(np.float64)
    codes, scale = quantize_weight(folded)
    if allowed is not None:
        scale = allowed.at_least(scale)
        codes = _round_weight(folded, scale)
    middle = middle_code(input.bits)
    constant = (middle - input.zero_point) @ folded - middle * scale * codes.sum(axis=0, dtype=np.float64)
    return FoldedLayer(codes, scale, constant if bias is None else constant + bias)


def with_whole_bias(layer: FoldedLayer, allowed: AccumulatorScales) -> tuple[FoldedLayer, NDArray[np.int32]]:
    """Return the first layer with a constant that is a whole bias of its accumulators, and that bias.

    Raises
    ------
    QGeluError
        If the bias does not fit.
    """
    # A channel without weights still has its bias to represent.
    empty = ~layer.codes.any(axis=0) & (layer.constant != 0.0)
    scale = np.where(empty, allowed.at_least(np.abs(layer.constant) / (1 << 20)), layer.scale)
    codes, constant = layer.codes, layer.constant
    too_large = np.abs(np.rint(constant / scale)) / _BIAS_LIMIT
    if np.any(too_large > 1.0):
        # Coarser weights bring the bias back into its limit.
        factor = np.where(too_large > 1.0, 2.0 * too_large, 1.0)
        if factor.max() > _LARGEST_COARSENING:
            channel = int(np.argmax(factor))
            raise QGeluError(f"the first matmul's bias does not fit int32 at channel {channel}: leave this site out")
        coarser = np.where(too_large > 1.0, allowed.at_least(scale * factor), scale)
        codes, scale = np.rint(codes * (scale / coarser)).astype(np.int8), coarser
    bias = np.rint(constant / scale)
    return FoldedLayer(codes, scale, bias * scale), bias.astype(np.int32)


def hidden_qparams(hidden: ChannelQuantization, activation: Activation, alpha: float) -> QParams:
    """Return uint8 parameters of the activation's output, with whole zero points.

    Scales finer than what the 16-bit-lane arithmetic serves are raised to it.
    """
    tail, slope = tail_polynomial(family_of(activation), 16), family_slope(activation, alpha)
    floor = _FINEST_OUTPUT * narrow.smallest_output_scale(tail, slope)
    zero_point = np.clip(np.rint(hidden.zero_point), 0, (1 << hidden.bits) - 1).astype(np.int32)
    return QParams(np.maximum(hidden.scale, floor), zero_point, hidden.bits, signed=False)


def as_channels(params: QParams) -> ChannelQuantization:
    """Return per-channel parameters of uint8 codes as real numbers."""
    return ChannelQuantization(params.scale, params.zero_point.astype(np.float64), params.bits)


def make_integer_ffn(block: FloatFfn, input: ChannelQuantization, hidden: ChannelQuantization) -> IntegerFfn:
    """Fold scales and shifts into int8 weights, rounded to nearest, and return the integer block.

    Parameters
    ----------
    block : FloatFfn
    input : ChannelQuantization
        Of the first matmul's input, K channels.
    hidden : ChannelQuantization
        Of the activation's output, N channels.

    Raises
    ------
    QGeluError
        If an accumulator or a bias could overflow, or no plan serves the scales.
    """
    output = hidden_qparams(hidden, block.activation, block.alpha)
    allowed = accumulator_scales(output, block.activation, block.alpha)
    first, _ = with_whole_bias(fold_layer(block.first_weight, block.first_bias, input, allowed), allowed)
    output = with_short_ratio(output, first.scale)
    second = fold_layer(block.second_weight, block.second_bias, as_channels(output))
    return assemble_ffn(block, input, output, first, second)


def assemble_ffn(
    block: FloatFfn,
    input: ChannelQuantization,
    output: QParams,
    first: FoldedLayer,
    second: FoldedLayer,
    weight_limit: int = WEIGHT_LIMIT,
) -> IntegerFfn:
    """Put scales, weights and constants together and return the integer block.

    Parameters
    ----------
    block : FloatFfn
    input : ChannelQuantization
        Of the first matmul's input, K channels.
    output : QParams
        Of the activation's output, N channels; from :func:`with_short_ratio`.
    first, second : FoldedLayer
        The layers on codes with these scales; the first from :func:`with_whole_bias`.
    weight_limit : int
        Largest code that weights may have.

    Raises
    ------
    QGeluError
        If an accumulator could overflow, or no plan serves the scales.
    """
    folded = input.scale[:, None] * block.first_weight.astype(np.float64)
    allowed = accumulator_scales(output, block.activation, block.alpha)
    allowed.check(folded, first.codes, first.scale, input.bits, weight_limit)
    _check_accumulators(first.codes, input.bits, "first")
    _check_accumulators(second.codes, output.bits, "second")
    plan = make_polynomial_plan(
        AccumulatorParams(first.scale),
        output,
        block.activation,
        block.alpha,
        narrow_tolerance=_NARROW_TOLERANCE_LSB,
        short=True,
    )
    if plan.lanes != 16:  # a model holds one body of the op, and this one is for all FFNs
        raise QGeluError("its scales need the wide arithmetic, which FFNs do not use: leave this site out")
    return IntegerFfn(
        (1.0 / input.scale).astype(np.float32),
        input.zero_point.astype(np.float32),
        input.bits,
        first.codes,
        np.rint(first.constant / first.scale).astype(np.int32),
        plan,
        second.codes,
        second.scale.astype(np.float32),
        second.constant.astype(np.float32),
    )
