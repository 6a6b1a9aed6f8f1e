"""i-GELU exactly as I-BERT publishes it (Kim et al. 2021, section 3.4), as a baseline to compare with.

    erf(t) ~ sign(t) (a (min(|t|, -b) + b)^2 + c),   a = -0.2888, b = -1.769, c = 1

in integers with floors, sqrt 2 as 1.4142 and a shift by 14 bits, as in the authors' released IntGELU module. It is
known to fail for coarse input scales; its certificate shows where.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from qgelu.activations import Activation
from qgelu.certificate import Certificate, Intermediate, enumerate_inputs
from qgelu.errors import QGeluError
from qgelu.kernels.rows import Kernel
from qgelu.plan import Bias, Plan
from qgelu.qparams import AccumulatorParams, QParams

A: Final = -0.2888
B: Final = -1.769
C: Final = 1.0
SQRT_2: Final = 1.4142
"""As published; not math.sqrt(2)."""
SHIFT: Final = 14

_INT32_MAX: Final = (1 << 31) - 1
_MOST_VALUES: Final = 1 << 24
_CURVE_END: Final = 5.0
"""Beyond this |x| the published erf is constant and GELU is max(x, 0) to 1.5e-6."""


@dataclass(frozen=True)
class IBertParameters:
    """Integers of i-GELU.

    Attributes
    ----------
    erf_clip : -floor(b / S'), S' = S / 1.4142.
    erf_constant : floor(c / (a S'^2)); negative.
    one : floor(1 / (a S'^2 2^14)); negative.
    multiplier, shift : S a S'^2 2^14 / 2 / output scale = multiplier / 2**shift; the multiplier is negative.
    limit : accumulators are clamped to [-limit, limit].
    """

    erf_clip: int
    erf_constant: int
    one: int
    multiplier: int
    shift: int
    limit: int


@dataclass(frozen=True, eq=False)
class IBertPlan(Plan):
    """i-GELU with the published constants."""

    kind: ClassVar[str] = "ibert"

    integers: IBertParameters

    def kernel(self, channels: int = 1) -> Kernel:
        """Return a function of bias, flat source and flat target."""
        zero = self.input.zero_point if isinstance(self.input, QParams) else 0

        def run(bias: Bias, source: NDArray[Any], target: NDArray[Any]) -> None:
            values = source.astype(np.int64) - zero
            if bias is not None:
                values = (values.reshape(-1, bias.size) + bias).reshape(-1)
            self._requantize(values, target)

        return run

    def _requantize(self, values: NDArray[np.int64], target: NDArray[Any]) -> None:
        from qgelu.kernels.ibert import requantize

        p = self.integers
        requantize(
            np.clip(values, -p.limit, p.limit),
            p.erf_clip,
            p.erf_constant,
            p.one,
            p.multiplier,
            p.shift,
            int(self.output.zero_point),
            self.output.qmin,
            self.output.qmax,
            target,
        )

    def run_values(self, values: NDArray[np.int64], channel: int) -> NDArray[np.int64]:
        """Return the codes of accumulators (or codes less zero point)."""
        target = np.empty(values.size, self.output.dtype)
        self._requantize(values, target)
        return target.astype(np.int64)

    def parameters(self) -> dict[str, Any]:
        """Return the integers by name."""
        return dict(vars(self.integers))


def _check_servable(input: QParams | AccumulatorParams, output: QParams, activation: Activation) -> None:
    if activation != "gelu":
        raise QGeluError(f"method 'ibert' is i-GELU: it serves activation 'gelu', not {activation!r}")
    if input.per_channel or output.per_channel:
        raise QGeluError("method 'ibert' is per tensor: give one scale and zero point on each side")


def make_ibert_plan(
    input: QParams | AccumulatorParams, output: QParams, activation: Activation, alpha: float
) -> IBertPlan:
    """Return i-GELU at these scales.

    Raises
    ------
    QGeluError
        If the activation is not ``gelu``, a side is per channel, or an int32 intermediate would overflow.
    """
    _check_servable(input, output, activation)
    scale = float(input.scale)
    erf_scale = scale / SQRT_2
    erf_clip = -math.floor(B / erf_scale)
    erf_constant = math.floor(C / A / erf_scale**2)
    output_of_erf = erf_scale**2 * A * (1 << SHIFT)
    one = math.floor(1.0 / output_of_erf)
    ratio = scale * output_of_erf / 2.0 / float(output.scale)
    shift = 30 - math.frexp(-ratio)[1]
    overflow_limit = _INT32_MAX // (2 * -one + 2)
    if isinstance(input, QParams):
        low, high = input.qmin - int(input.zero_point), input.qmax - int(input.zero_point)
        limit = max(-low, high)
    else:
        saturated = (output.qmax - int(output.zero_point) + 1) * float(output.scale)
        needed = math.ceil(max(saturated, _CURVE_END) / scale)
        limit = min(overflow_limit, max(needed, 1 << 16))
        low, high = -limit, limit
        if needed > overflow_limit:
            limit = needed  # refused below
    if limit > overflow_limit or erf_clip**2 - erf_constant > _INT32_MAX:
        raise QGeluError(
            f"i-GELU overflows int32 at input scale {scale:.3g} for |x| above "
            f"{overflow_limit * scale:.3g}: use a coarser scale or method='polynomial'"
        )
    if not 1 <= shift <= 62:
        raise QGeluError(f"no i-GELU plan at input scale {scale:.3g}: output scale {output.scale:.3g} is too far off")
    integers = IBertParameters(erf_clip, erf_constant, one, round(math.ldexp(ratio, shift)), shift, max(-low, high))
    return ibert_plan_from_parameters(input, output, activation, alpha, integers, (low, high))


def ibert_plan_from_parameters(
    input: QParams | AccumulatorParams,
    output: QParams,
    activation: Activation,
    alpha: float,
    integers: IBertParameters,
    values: tuple[int, int],
) -> IBertPlan:
    """Return a plan of given integers, with a certificate found by trying every value in ``values``.

    Raises
    ------
    QGeluError
        If the activation is not ``gelu``, a side is per channel, an intermediate would leave its width, or
        there are too many values to try.
    """
    _check_servable(input, output, activation)
    p = integers
    if min(p.erf_clip, p.limit, -p.erf_constant, -p.one, -p.multiplier) < 1 or not 1 <= p.shift <= 62:
        raise QGeluError("i-GELU: an integer has the wrong sign or the shift leaves 1 to 62")
    if values[1] - values[0] > _MOST_VALUES:
        raise QGeluError(
            f"i-GELU: proving {values[1] - values[0]} values takes too long: use a coarser input scale or a "
            "finer output scale"
        )
    square = (0, integers.erf_clip**2)
    erf = 2 * -integers.one + 2
    intermediates = (
        Intermediate("square plus constant", square[0] + integers.erf_constant, square[1], 32, True),
        Intermediate("value times (erf + one)", -integers.limit * erf, integers.limit * erf, 32, True),
    )
    for intermediate in intermediates:
        if not intermediate.fits:
            raise QGeluError(f"i-GELU: {intermediate.name} leaves int32: use a coarser input scale")
    zero = int(input.zero_point) if isinstance(input, QParams) else 0
    admitted = (values[0] + zero, values[1] + zero)
    draft = IBertPlan(
        input,
        output,
        "gelu",
        alpha,
        Certificate(math.inf, "bounded", None, None, None, admitted, intermediates),
        integers,
    )
    found = enumerate_inputs(draft.run_values, [values], np.array([float(input.scale)]), output, "gelu", alpha)
    certificate = Certificate(
        found.max_error_lsb,
        "enumerated",
        found.misrounded,
        found.inputs,
        found.worst_case,
        admitted,
        intermediates,
    )
    return IBertPlan(input, output, "gelu", alpha, certificate, integers)
