"""Polynomial plans: from int32 accumulators (or codes) through integer polynomials, per tensor or per channel."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from qgelu import narrow, wide
from qgelu.activations import Activation
from qgelu.certificate import ENUMERATION_LIMIT, Certificate, enumerate_inputs
from qgelu.errors import QGeluError
from qgelu.kernels.rows import Kernel
from qgelu.narrow import NarrowParameters
from qgelu.plan import Bias, Plan
from qgelu.polynomial import Lanes, TailPolynomial, family_of, family_slope, tail_polynomial
from qgelu.qparams import AccumulatorParams, QParams
from qgelu.wide import WideParameters

NARROW_TOLERANCE_LSB: Final = 0.55
"""The 16-bit lanes are chosen where they prove at most this error; else the wide arithmetic, which is slower."""

LARGEST_ERROR_LSB: Final = 1.5
"""A plan must stay below this: then no code is further than 1 from the correctly rounded one."""

_INT32 = np.iinfo(np.int32)
_ARITHMETIC: Final[dict[int, ModuleType]] = {16: narrow, 32: wide}


@dataclass(frozen=True, eq=False)
class PolynomialPlan(Plan):
    """max(x, 0) - g(|x|) with g by an integer polynomial.

    Attributes
    ----------
    integers : NarrowParameters or WideParameters
        For 16-bit lanes (codes of up to 8 bits) or the wide arithmetic.
    tail : TailPolynomial
    """

    kind: ClassVar[str] = "polynomial"

    integers: NarrowParameters | WideParameters
    tail: TailPolynomial

    @property
    def lanes(self) -> Lanes:
        """16 or 32."""
        return self.tail.lanes

    def clamped_bias(self, width: int, bias: Bias) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """Return bias, lower and upper, int32 of shape [width].

        The accumulator is clamped to [lower, upper] before the bias is added, so that the sum is within
        [-limit, limit] and never overflows.
        """
        limit = np.broadcast_to(self.integers.limit, (width,)).astype(np.int64)
        if isinstance(self.input, QParams):
            addend = -np.asarray(self.input.zero_point, dtype=np.int64)
        else:
            addend = np.zeros((), np.int64) if bias is None else bias.astype(np.int64)
        addend = np.broadcast_to(addend, (width,))
        lower = np.clip(-limit - addend, _INT32.min, _INT32.max)
        upper = np.clip(limit - addend, _INT32.min, _INT32.max)
        return addend.astype(np.int32), lower.astype(np.int32), upper.astype(np.int32)

    def kernel(self, channels: int = 1) -> Kernel:
        """Return what runs this plan: a :class:`qgelu.kernels.binding.BoundKernel` for accumulators."""
        bound = self._bound(channels)
        if isinstance(self.input, AccumulatorParams):
            return bound
        addend = -np.broadcast_to(np.asarray(self.input.zero_point, dtype=np.int32), (channels,))

        def run_codes(bias: Bias, source: NDArray[Any], target: NDArray[Any]) -> None:
            bound(addend, source.astype(np.int32), target)

        return run_codes

    def _bound(self, channels: int) -> Kernel:
        from qgelu.kernels.binding import BoundNarrow, BoundWide
        from qgelu.kernels.registry import selected

        arrays = {name: np.broadcast_to(array, (channels,)) for name, array in self.integers.channel_arrays().items()}
        code_range = self.output.qmax - self.output.qmin
        coefficients, first = self.integers.coefficients, self.output.qmin
        if self.lanes == 16:
            return BoundNarrow(selected("narrow"), arrays, coefficients, code_range, first)
        return BoundWide(selected("wide"), arrays, coefficients, code_range, first)

    def run_values(self, values: NDArray[np.int64], channel: int) -> NDArray[np.int64]:
        """Return the codes of accumulators plus bias (or codes less zero point) in one channel."""
        one = slice(channel, channel + 1)
        arrays = {name: array[one] for name, array in self.integers.channel_arrays().items()}
        limit = self.integers.limit[one]
        target = np.empty((values.size, 1), self.output.dtype)
        self._plain(values.astype(np.int32).reshape(-1, 1), (np.zeros(1, np.int32), -limit, limit), arrays, target)
        return np.asarray(target[:, 0], dtype=np.int64)

    def _plain(
        self,
        source: NDArray[np.int32],
        clamped_bias: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]],
        arrays: dict[str, NDArray[Any]],
        target: NDArray[Any],
    ) -> None:
        """Run the plain loop over rows [n, C]."""
        from qgelu.kernels import narrow as narrow_kernel
        from qgelu.kernels import wide as wide_kernel

        requantize = narrow_kernel.requantize if self.lanes == 16 else wide_kernel.requantize
        requantize(
            source,
            *clamped_bias,
            *(np.ascontiguousarray(array) for name, array in arrays.items() if name != "limit"),
            self.integers.coefficients,
            self.output.qmax - self.output.qmin,
            self.output.qmin,
            target,
        )

    def parameters(self) -> dict[str, Any]:
        """Return every per-channel array, and the tail, as lists and numbers."""
        arrays = {name: array.tolist() for name, array in self.integers.channel_arrays().items()}
        tail = {
            "family": self.tail.family,
            "lanes": self.tail.lanes,
            "cutoff": self.tail.cutoff,
            "gain": self.tail.gain,
            "coefficients": self.tail.coefficients.tolist(),
        }
        return {**arrays, "tail": tail}


@dataclass(frozen=True, eq=False)
class _Scales:
    """Everything about the two sides that the arithmetic needs, as arrays of one shape [channels]."""

    input: NDArray[np.float64]
    output: NDArray[np.float64]
    zero_offset: NDArray[np.int64]
    code_range: int


def _scales(input: QParams | AccumulatorParams, output: QParams) -> _Scales:
    input_scale = np.atleast_1d(np.asarray(input.scale, dtype=np.float64))
    output_scale = np.atleast_1d(np.asarray(output.scale, dtype=np.float64))
    zero = np.atleast_1d(np.asarray(output.zero_point, dtype=np.int64)) - output.qmin
    if input.per_channel and output.per_channel and input_scale.size != output_scale.size:
        raise QGeluError(f"input has {input_scale.size} channels and output {output_scale.size}: make them equal")
    shape = np.broadcast_shapes(input_scale.shape, output_scale.shape)
    return _Scales(
        np.broadcast_to(input_scale, shape).copy(),
        np.broadcast_to(output_scale, shape).copy(),
        np.broadcast_to(zero, shape).copy(),
        output.qmax - output.qmin,
    )


def make_polynomial_plan(
    input: QParams | AccumulatorParams,
    output: QParams,
    activation: Activation,
    alpha: float,
    narrow_tolerance: float = NARROW_TOLERANCE_LSB,
    short: bool = False,
) -> PolynomialPlan:
    """Return a plan that forms max(x, 0) - g(|x|) with integer polynomials.

    Parameters
    ----------
    narrow_tolerance : float
        LSB. The 16-bit lanes are used where their proved error is at most this.
    short : bool
        In 16-bit lanes, use short multipliers: see :func:`qgelu.narrow.is_short`.

    Raises
    ------
    QGeluError
        If no arithmetic serves these scales with an error below :data:`LARGEST_ERROR_LSB`, with the reason.
    """
    scales = _scales(input, output)
    slope = family_slope(activation, alpha)
    reasons = []
    for lanes in (16, 32):
        if lanes == 16 and output.bits > 8:
            continue
        arithmetic = _ARITHMETIC[lanes]
        tail = tail_polynomial(family_of(activation), lanes)
        numbers = (scales.input, scales.output, scales.zero_offset, scales.code_range, tail, slope)
        prepared = narrow.prepare(*numbers, short=short) if lanes == 16 else wide.prepare(*numbers)
        if isinstance(prepared, str):
            reasons.append(prepared)
            continue
        bound = arithmetic.error_bound(prepared, scales.input, scales.output, scales.code_range, tail, slope)
        if float(bound.max()) > (narrow_tolerance if lanes == 16 else LARGEST_ERROR_LSB):
            channel = int(np.argmax(bound))
            reasons.append(
                f"proved error {bound[channel]:.3g} LSB at output scale {scales.output[channel]:.3g}: use a larger one"
            )
            continue
        return polynomial_plan_from_parameters(input, output, activation, alpha, prepared, tail)
    raise QGeluError(f"no polynomial plan for {activation}: {reasons[-1]}")


def polynomial_plan_from_parameters(
    input: QParams | AccumulatorParams,
    output: QParams,
    activation: Activation,
    alpha: float,
    integers: NarrowParameters | WideParameters,
    tail: TailPolynomial,
) -> PolynomialPlan:
    """Return a plan of given integers with its certificate.

    Raises
    ------
    QGeluError
        If the integers do not belong to the scales, or an intermediate could leave its width.
    """
    scales = _scales(input, output)
    slope = family_slope(activation, alpha)
    arithmetic = _ARITHMETIC[tail.lanes]
    unfit = arithmetic.check(integers, scales.input, scales.output, scales.zero_offset, scales.code_range, tail, slope)
    if unfit:
        raise QGeluError(f"polynomial plan: {unfit}")
    bound = arithmetic.error_bound(integers, scales.input, scales.output, scales.code_range, tail, slope)
    if not float(bound.max()) <= LARGEST_ERROR_LSB:
        raise QGeluError(f"polynomial plan: its integers do not belong to its scales (error {bound.max():.3g} LSB)")
    limit = integers.limit.astype(np.int64)
    if isinstance(input, QParams):
        zero = np.broadcast_to(np.asarray(input.zero_point, dtype=np.int64), limit.shape)
        ranges = list(zip((input.qmin - zero).tolist(), (input.qmax - zero).tolist(), strict=True))
        admitted = (input.qmin, input.qmax)
    else:
        ranges = list(zip((-limit).tolist(), limit.tolist(), strict=True))
        admitted = _admitted(limit, arithmetic.V_LIMIT)
    found_intermediates = arithmetic.intermediates(integers, tail, (-int(limit.max()), int(limit.max())))
    for intermediate in found_intermediates:
        if not intermediate.fits:
            raise QGeluError(
                f"{intermediate.name} spans {intermediate.minimum} to {intermediate.maximum}, beyond "
                f"{intermediate.bits} bits: use other scales"
            )
    draft = PolynomialPlan(
        input,
        output,
        activation,
        alpha,
        Certificate(float(bound.max()), "bounded", None, None, None, admitted, found_intermediates),
        integers,
        tail,
    )
    if sum(high - low + 1 for low, high in ranges) > ENUMERATION_LIMIT:
        return draft
    ends = () if isinstance(input, QParams) else admitted
    found = enumerate_inputs(draft.run_values, ranges, scales.input, output, activation, alpha, ends)
    certificate = Certificate(
        found.max_error_lsb,
        "enumerated",
        found.misrounded,
        found.inputs,
        found.worst_case,
        admitted,
        found_intermediates,
    )
    return PolynomialPlan(input, output, activation, alpha, certificate, integers, tail)


def _admitted(limit: NDArray[np.int64], cap: int) -> tuple[int, int]:
    """Return the sums that the error holds for: all of int32 unless a limit had to be cut at ``cap``."""
    if np.any(limit >= cap):
        return -cap, cap
    return _INT32.min, _INT32.max
