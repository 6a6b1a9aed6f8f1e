"""Plans: everything one integer activation needs, all of it integers, and how to run it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Final, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qgelu.activations import Activation
from qgelu.certificate import Certificate
from qgelu.errors import QGeluError
from qgelu.kernels.rows import Kernel, run_rows
from qgelu.plan_arguments import can_write, check_out, check_threads
from qgelu.qparams import AccumulatorParams, QParams

Bias = NDArray[np.int32] | None
_INT32 = np.iinfo(np.int32)
_INT32_TYPE: Final = np.dtype(np.int32)


def _as_array(value: ArrayLike, what: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError:
        raise QGeluError(f"{what} must be an array, not ragged lists") from None


@dataclass(frozen=True, eq=False)
class Plan(ABC):
    """One integer activation: from input codes (or int32 accumulators) to output codes.

    Call it to run the Numba kernel.

    Attributes
    ----------
    input : QParams or AccumulatorParams
    output : QParams
    activation : str
    alpha : float
        Slope of ``quick_gelu``.
    certificate : Certificate
        What has been proved about it.
    """

    kind: ClassVar[str]

    input: QParams | AccumulatorParams
    output: QParams
    activation: Activation
    alpha: float
    certificate: Certificate

    def __getstate__(self) -> dict[str, Any]:
        # What is cached beside the fields belongs to this process.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def channels(self) -> int | None:
        """Number of channels (the last axis), or None if per tensor."""
        if self.input.per_channel:
            return int(self.input.scale.size)
        return int(self.output.scale.size) if self.output.per_channel else None

    @cached_property
    def input_dtype(self) -> np.dtype[Any]:
        """Type of the input array."""
        return np.dtype(np.int32) if isinstance(self.input, AccumulatorParams) else self.input.dtype

    def __call__(
        self,
        q: ArrayLike,
        bias: ArrayLike | None = None,
        out: NDArray[Any] | None = None,
        threads: int | None = None,
    ) -> NDArray[Any]:
        """Run the activation.

        Parameters
        ----------
        q : array
            Codes of dtype ``input_dtype``; any shape; the last axis is the channel if per channel.
        bias : int or int32 array of shape [C], optional
            Added to accumulators, in their scale. Only with :class:`AccumulatorParams`.
        out : array, optional
            Receives the codes; shape of ``q``, dtype of ``output``. May be ``q`` itself.
        threads : int, optional
            Threads to use at most; 1 if not given. Small arrays use one.

        Returns
        -------
        codes : array of the shape of ``q``

        Raises
        ------
        QGeluError
            If a dtype or a shape is wrong.
        """
        if self._is_plain(q, bias):
            source, bias_array = cast("NDArray[Any]", q), cast("Bias", bias)
        else:
            codes = self._checked_codes(q)
            bias_array = self._check_bias(bias, codes)
            source = np.ascontiguousarray(codes).reshape(codes.shape)
        count = check_threads(threads)
        if out is None:
            target = out = np.empty(source.shape, self._output_dtype)
        else:
            check_out(out, source.shape, self._output_dtype)
            target = out if can_write(out, source) else np.empty(source.shape, out.dtype)
        self._run_all(source, bias_array, target, count)
        if target is not out:
            out[...] = target
        return out

    def _checked_codes(self, q: ArrayLike) -> NDArray[Any]:
        codes = _as_array(q, "input codes")
        if codes.dtype != self.input_dtype:
            raise QGeluError(f"input codes are {codes.dtype}, the plan takes {self.input_dtype}: cast them first")
        channels = self.channels
        if channels is not None and (codes.ndim == 0 or codes.shape[-1] != channels):
            raise QGeluError(f"input has shape {codes.shape}, the plan has {channels} channels on the last axis")
        return codes

    def _check_bias(self, bias: ArrayLike | None, codes: NDArray[Any]) -> NDArray[np.int32] | None:
        if bias is None:
            return None
        if not isinstance(self.input, AccumulatorParams):
            raise QGeluError("bias goes with accumulators: this plan takes codes")
        array = _as_array(bias, "bias")
        if array.dtype.kind not in "iu" or np.any(array < _INT32.min) or np.any(array > _INT32.max):
            raise QGeluError(f"bias must hold whole numbers within int32; it is {array.dtype}")
        if array.ndim > 1 or (array.ndim == 1 and (codes.ndim == 0 or array.shape != codes.shape[-1:])):
            raise QGeluError(f"bias has shape {array.shape}, the input's last axis has {codes.shape[-1:]}")
        return np.ascontiguousarray(array, dtype=np.int32).reshape(-1)

    def _is_plain(self, codes: object, bias: object) -> bool:
        """Return whether codes and bias can go straight to the kernel, with nothing left to check or convert."""
        return (
            type(codes) is np.ndarray
            and codes.dtype == self.input_dtype
            and codes.flags.c_contiguous
            and codes.size > 0
            and (self.channels is None or codes.shape[-1:] == (self.channels,))
            and (
                bias is None
                or (
                    type(bias) is np.ndarray
                    and bias.dtype == _INT32_TYPE
                    and bias.flags.c_contiguous
                    and bias.ndim == 1
                    and bias.shape == codes.shape[-1:]
                    and isinstance(self.input, AccumulatorParams)
                )
            )
        )

    @cached_property
    def _output_dtype(self) -> np.dtype[Any]:
        return self.output.dtype

    @cached_property
    def _kernels(self) -> dict[int, Kernel]:
        """Kernels by number of channels; filled as they are needed."""
        return {}

    def _kernel_for(self, bias: Bias) -> Kernel:
        channels = self.channels or (1 if bias is None else bias.size)
        kernel = self._kernels.get(channels)
        if kernel is None:
            kernel = self._kernels[channels] = self.kernel(channels)
        return kernel

    def _run_all(self, source: NDArray[Any], bias: Bias, target: NDArray[Any], threads: int) -> None:
        if source.size:
            width = self.channels or (1 if bias is None else bias.size)
            run_rows(self._kernel_for(bias), bias, source.reshape(-1), target.reshape(-1), width, threads)

    @abstractmethod
    def kernel(self, channels: int = 1) -> Kernel:
        """Return what runs this plan, with nothing checked, on rows of so many channels.

        It is called with a bias (or None), a flat contiguous source and a flat contiguous target. Tables, and
        polynomials from accumulators, return a :class:`qgelu.kernels.binding.BoundKernel`: its ``function`` and
        ``arguments`` can be called from other code that Numba compiles.
        """

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Return the plan's integers as JSON values."""

    def to_json(self) -> str:
        """Return the plan as JSON text; :func:`qgelu.plan_from_json` reads it back."""
        from qgelu.plan_json import plan_to_json

        return plan_to_json(self)
