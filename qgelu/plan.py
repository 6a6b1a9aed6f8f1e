"""Plans: everything one integer activation needs, all of it integers, and how to run it."""

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qgelu.activations import Activation
from qgelu.certificate import Certificate
from qgelu.errors import QGeluError
from qgelu.qparams import AccumulatorParams, QParams

_BLOCK: Final = 1024
"""Parameters per tensor are repeated to this many lanes, so that one kernel serves both layouts."""

_MIN_BYTES_PER_THREAD: Final = 1 << 18
"""Below this a second thread costs more than it saves."""

_INT32 = np.iinfo(np.int32)


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

    @property
    def channels(self) -> int | None:
        """Number of channels (the last axis), or None if per tensor."""
        if self.input.per_channel:
            return int(self.input.scale.size)
        return int(self.output.scale.size) if self.output.per_channel else None

    @property
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
        codes = _as_array(q, "input codes")
        if codes.dtype != self.input_dtype:
            raise QGeluError(f"input codes are {codes.dtype}, the plan takes {self.input_dtype}: cast them first")
        channels = self.channels
        if channels is not None and (codes.ndim == 0 or codes.shape[-1] != channels):
            raise QGeluError(f"input has shape {codes.shape}, the plan has {channels} channels on the last axis")
        if out is None:
            out = np.empty(codes.shape, self.output.dtype)
        elif not isinstance(out, np.ndarray):
            raise QGeluError(f"out must be an array, not {type(out).__name__}")
        elif out.shape != codes.shape or out.dtype != self.output.dtype:
            raise QGeluError(f"out is {out.dtype} {out.shape}, it must be {self.output.dtype} {codes.shape}")
        elif not out.flags.writeable:
            raise QGeluError("out is read-only: give a writeable array")
        if threads is not None and (not isinstance(threads, int | np.integer) or threads < 1):
            raise QGeluError(f"threads must be a whole number of 1 or more, not {threads!r}")
        bias_array = self._check_bias(bias, codes)
        source = np.ascontiguousarray(codes)
        in_place = out.flags.c_contiguous and not (
            np.may_share_memory(source, out) and source.ctypes.data != out.ctypes.data
        )
        # Different widths at one address: writing would overtake reading.
        in_place = in_place and not (source.ctypes.data == out.ctypes.data and source.itemsize != out.itemsize)
        target = out if in_place else np.empty(codes.shape, out.dtype)
        self._run_all(source, bias_array, target, threads or 1)
        if target is not out:
            out[...] = target
        return out

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
        return array.astype(np.int32)

    def _run_all(
        self, source: NDArray[Any], bias: NDArray[np.int32] | None, target: NDArray[Any], threads: int
    ) -> None:
        if source.size == 0:
            return
        per_channel = self.channels is not None or (bias is not None and bias.ndim == 1)
        width = source.shape[-1] if per_channel else min(_BLOCK, source.size)
        flat_source, flat_target = source.reshape(-1), target.reshape(-1)
        rows = source.size // width
        whole = rows * width
        run = self._kernel(width, bias)
        pieces = max(1, min(threads, source.nbytes // _MIN_BYTES_PER_THREAD, rows))
        bounds = [rows * piece // pieces * width for piece in range(pieces + 1)]
        ranges = list(zip(bounds[:-1], bounds[1:], strict=True))

        def run_range(start_stop: tuple[int, int]) -> None:
            start, stop = start_stop
            run(flat_source[start:stop].reshape(-1, width), flat_target[start:stop].reshape(-1, width))

        if pieces == 1:
            run_range(ranges[0])
        else:
            with ThreadPoolExecutor(pieces) as pool:
                list(pool.map(run_range, ranges))
        if whole < source.size:  # only per tensor
            rest = source.size - whole
            self._kernel(rest, bias)(flat_source[whole:].reshape(1, rest), flat_target[whole:].reshape(1, rest))

    @abstractmethod
    def _kernel(self, width: int, bias: NDArray[np.int32] | None) -> Any:
        """Return a function (source [rows, width], target [rows, width]) that runs the kernel."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Return the plan's integers as JSON values."""

    def to_json(self) -> str:
        """Return the plan as JSON text; :func:`qgelu.plan_from_json` reads it back."""
        from qgelu.plan_json import plan_to_json

        return plan_to_json(self)
