"""Scales and zero points: the affine map real = scale * (code - zero_point), as in ONNX and gemmlowp."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qgelu.errors import QGeluError

MIN_BITS: Final = 2
MAX_BITS: Final = 16

_FLOAT32_SMALLEST: Final = float(np.finfo(np.float32).tiny)
_FLOAT32_LARGEST: Final = float(np.finfo(np.float32).max)
"""ONNX holds scales in float32: they must be among its normal numbers."""


def _check_scale(scale: Any, what: str) -> NDArray[np.float64]:
    try:
        values = np.array(scale, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise QGeluError(f"{what} must be a number or a 1-D array of numbers, not {scale!r}") from None
    if values.ndim > 1 or values.size == 0:
        raise QGeluError(f"{what} must be a number or a non-empty 1-D array, not shape {values.shape}")
    bad = ~((values >= _FLOAT32_SMALLEST) & (values <= _FLOAT32_LARGEST))
    if bad.any():
        index = int(np.flatnonzero(bad)[0])
        where = f" at channel {index}" if values.ndim else ""
        raise QGeluError(
            f"{what} must be finite, above 0 and a normal float32 (from {_FLOAT32_SMALLEST:.3g}), "
            f"not {float(np.atleast_1d(values)[index])}{where}"
        )
    values.setflags(write=False)
    return values


def _real_numbers(x: ArrayLike, verb: str) -> NDArray[Any]:
    """Return x as float32 if it is that, else as float64."""
    try:
        values = np.asarray(x)
        if values.dtype.kind not in "biufO":
            raise TypeError
        return values if values.dtype == np.float32 else values.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise QGeluError(f"cannot {verb} {str(x)[:40]!r}: give an array of real numbers") from None


@dataclass(frozen=True, eq=False)
class QParams:
    """Quantization parameters of a tensor of codes: real = scale * (code - zero_point).

    Parameters
    ----------
    scale : float or array_like of shape [C]
        Real width of one LSB; above 0, a normal number of float32. One per channel (the last axis) if 1-D.
    zero_point : int or array_like of shape [C]
        The code that stands for 0; within [qmin, qmax].
    bits : int
        2 to 16.
    signed : bool
        Two's complement codes if true, else codes from 0.

    Raises
    ------
    QGeluError
        If a value is out of range, naming it.
    """

    scale: Any
    zero_point: Any = 0
    bits: int = 8
    signed: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.bits, bool) or not isinstance(self.bits, int | np.integer):
            raise QGeluError(f"bits must be a whole number, not {self.bits!r}")
        if not MIN_BITS <= self.bits <= MAX_BITS:
            raise QGeluError(f"bits must be from {MIN_BITS} to {MAX_BITS}, not {self.bits}")
        scale = _check_scale(self.scale, "scale")
        if not isinstance(self.signed, bool | np.bool_):
            raise QGeluError(f"signed must be true or false, not {self.signed!r}")
        try:
            zero_point = np.array(self.zero_point)
        except ValueError:
            raise QGeluError("zero_point must be a whole number or a 1-D array of them") from None
        if zero_point.dtype.kind not in "iu":
            raise QGeluError(f"zero_point must be whole, not of dtype {zero_point.dtype}")
        if zero_point.ndim > 1 or zero_point.size == 0:
            raise QGeluError(f"zero_point must be a number or a non-empty 1-D array, not {zero_point.shape}")
        if zero_point.ndim and scale.ndim and zero_point.shape != scale.shape:
            raise QGeluError(f"scale has {scale.size} channels and zero_point {zero_point.size}: make them equal")
        object.__setattr__(self, "bits", int(self.bits))
        object.__setattr__(self, "signed", bool(self.signed))
        outside = (zero_point < self.qmin) | (zero_point > self.qmax)
        if outside.any():
            value = int(np.atleast_1d(zero_point)[np.flatnonzero(outside)[0]])
            raise QGeluError(f"zero_point {value} is outside the codes {self.qmin} to {self.qmax}")
        if scale.ndim or zero_point.ndim:
            shape = np.broadcast_shapes(scale.shape, zero_point.shape)
            scale = np.broadcast_to(scale, shape).copy()
            points = np.broadcast_to(zero_point.astype(np.int32), shape).copy()
            scale.setflags(write=False)
            points.setflags(write=False)
            object.__setattr__(self, "scale", scale)
            object.__setattr__(self, "zero_point", points)
        else:
            object.__setattr__(self, "scale", float(scale))
            object.__setattr__(self, "zero_point", int(zero_point))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QParams):
            return NotImplemented
        return (
            self.bits == other.bits
            and self.signed == other.signed
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def per_channel(self) -> bool:
        """Whether there is one scale and zero point per channel."""
        return isinstance(self.scale, np.ndarray)

    @property
    def qmin(self) -> int:
        """Smallest code."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def qmax(self) -> int:
        """Largest code."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy type that holds one code: (u)int8 up to 8 bits, else (u)int16."""
        size = 8 if self.bits <= 8 else 16
        return np.dtype(f"{'int' if self.signed else 'uint'}{size}")

    def quantize(self, x: ArrayLike) -> NDArray[Any]:
        """Return codes saturate(round_half_even(x / scale) + zero_point), as ONNX QuantizeLinear.

        float32 input is divided in float32, as ONNX Runtime does; anything else in float64.

        Raises
        ------
        QGeluError
            If x is not of real numbers, has another number of channels, or holds NaN. Infinities saturate.
        """
        values = _real_numbers(x, "quantize")
        self._check_channels(values, "quantize")
        if np.isnan(values).any():
            raise QGeluError("cannot quantize NaN: clean the data first")
        with np.errstate(over="ignore"):
            scaled = np.rint(values / np.asarray(self.scale, dtype=values.dtype)).astype(np.float64)
        codes: NDArray[Any] = np.clip(scaled + self.zero_point, self.qmin, self.qmax).astype(self.dtype)
        return codes

    def dequantize(self, q: ArrayLike) -> NDArray[np.float64]:
        """Return scale * (q - zero_point) in float64.

        Raises
        ------
        QGeluError
            If q is not of real numbers, or has another number of channels.
        """
        codes = _real_numbers(q, "dequantize").astype(np.float64)
        self._check_channels(codes, "dequantize")
        return np.asarray(self.scale * (codes - self.zero_point))

    def _check_channels(self, values: NDArray[Any], verb: str) -> None:
        channels = np.size(self.scale)
        if values.ndim and channels > 1 and values.shape[-1] not in {1, channels}:
            raise QGeluError(f"cannot {verb} shape {list(values.shape)}: the last axis must have {channels} channels")


@dataclass(frozen=True, eq=False)
class AccumulatorParams:
    """Scale of int32 accumulators: real = scale * accumulator.

    Parameters
    ----------
    scale : float or array_like of shape [C]
        Above 0, within the normal numbers of float32. One per channel (the last axis) if 1-D.
    """

    scale: Any

    def __post_init__(self) -> None:
        scale = _check_scale(self.scale, "accumulator scale")
        object.__setattr__(self, "scale", scale if scale.ndim else float(scale))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AccumulatorParams) and np.array_equal(self.scale, other.scale)

    __hash__ = None  # type: ignore[assignment]

    @property
    def per_channel(self) -> bool:
        """Whether there is one scale per channel."""
        return isinstance(self.scale, np.ndarray)
