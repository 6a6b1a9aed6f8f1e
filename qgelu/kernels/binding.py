"""Kernels bound to parameters: one calling convention for all of them.

A bound kernel is called with a bias, a flat source and a flat target. ``function(source, target, *arguments(bias))`` is
the same call for code that Numba compiles, single- or multi-threaded.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgelu.kernels.narrow_blocks import pack_blocks
from qgelu.kernels.registry import Implementation
from qgelu.kernels.wide_blocks import pack_wide_blocks

Bias = NDArray[np.int32] | None


class BoundKernel(ABC):
    """A Numba function with everything but source, target and bias.

    Attributes
    ----------
    function : Numba dispatcher
    """

    def __init__(self, implementation: Implementation) -> None:
        self._implementation = implementation
        self._in_pieces: Callable[..., bool] | None = None
        self.function = implementation.function()

    @abstractmethod
    def arguments(self, bias: Bias = None) -> tuple[Any, ...]:
        """Return what follows source and target.

        Parameters
        ----------
        bias : int32 array of shape [channels], contiguous, optional
        """

    def __call__(self, bias: Bias, source: NDArray[Any], target: NDArray[Any]) -> None:
        """Run on contiguous arrays of shape [n], n a multiple of the channels."""
        self.function(source, target, *self.arguments(bias))

    def run_in_pieces(self, bias: Bias, source: NDArray[Any], target: NDArray[Any], width: int, count: int) -> bool:
        """Run on several threads: :func:`qgelu.kernels.parallel.in_pieces`."""
        if self._in_pieces is None:
            from qgelu.kernels.parallel import in_pieces

            self._in_pieces = in_pieces(self._implementation)
        return self._in_pieces(source, target, width, count, self.arguments(bias))


class BoundTable(BoundKernel):
    """A table lookup; the source's codes are read as bit patterns.

    Parameters
    ----------
    implementation : of ``table_8`` or ``table_16``
    table : array of shape [256] or [65536]
    """

    def __init__(self, implementation: Implementation, table: NDArray[Any]) -> None:
        super().__init__(implementation)
        self._arguments = (table,)
        self._unsigned = np.dtype(np.uint8 if table.size == 256 else np.uint16)

    def arguments(self, bias: Bias = None) -> tuple[Any, ...]:
        """Return the table."""
        return self._arguments

    def __call__(self, bias: Bias, source: NDArray[Any], target: NDArray[Any]) -> None:
        """Run on codes of either sign."""
        self.function(self._patterns(source), target, *self._arguments)

    def run_in_pieces(self, bias: Bias, source: NDArray[Any], target: NDArray[Any], width: int, count: int) -> bool:
        """Run on codes of either sign on several threads."""
        return super().run_in_pieces(bias, self._patterns(source), target, width, count)

    def _patterns(self, source: NDArray[Any]) -> NDArray[Any]:
        return source if source.dtype == self._unsigned else source.view(self._unsigned)


class BoundNarrow(BoundKernel):
    """int32 accumulators to codes of up to 8 bits.

    Parameters
    ----------
    implementation : of ``narrow``
    channel_arrays : mapping of str to int32 array of shape [channels]
        As :class:`qgelu.narrow.NarrowParameters` names them.
    coefficients : int32 array of shape [16, 4]
    code_range, code_minimum : int
        Largest code minus smallest code, and the smallest code.
    """

    def __init__(
        self,
        implementation: Implementation,
        channel_arrays: Mapping[str, NDArray[np.int32]],
        coefficients: NDArray[np.int32],
        code_range: int,
        code_minimum: int,
    ) -> None:
        from qgelu.kernels.narrow_vector import lane_order

        super().__init__(implementation)
        packed = pack_blocks(channel_arrays, coefficients, lane_order(implementation.path))
        self._no_bias = np.zeros(packed.width, np.int32)
        self._arguments = (
            packed.limit,
            packed.left_shift,
            packed.blocks,
            packed.coefficients,
            packed.general,
            code_range,
            code_minimum,
        )

    def arguments(self, bias: Bias = None) -> tuple[Any, ...]:
        """Return the bias, repeated to the kernel's width, and the packed parameters."""
        return (_repeated(bias, self._no_bias), *self._arguments)


class BoundWide(BoundKernel):
    """int32 accumulators to codes of up to 16 bits.

    Parameters
    ----------
    implementation : of ``wide``
    channel_arrays : mapping of str to array of shape [channels]
        As :class:`qgelu.wide.WideParameters` names them.
    coefficients : int32 array of shape [32, degree + 1]
    code_range, code_minimum : int
        Largest code minus smallest code, and the smallest code.
    """

    def __init__(
        self,
        implementation: Implementation,
        channel_arrays: Mapping[str, NDArray[Any]],
        coefficients: NDArray[np.int32],
        code_range: int,
        code_minimum: int,
    ) -> None:
        from qgelu.kernels.wide_vector import block_layout

        super().__init__(implementation)
        packed = pack_wide_blocks(channel_arrays, coefficients, *block_layout(implementation.path))
        self._no_bias = np.zeros(packed.width, np.int32)
        self._arguments = (
            packed.limit,
            packed.left_shift,
            packed.blocks,
            packed.coefficients,
            packed.upper_coefficients,
            packed.general,
            packed.lift,
            code_range,
            code_minimum,
        )

    def arguments(self, bias: Bias = None) -> tuple[Any, ...]:
        """Return the bias, repeated to the kernel's width, and the packed parameters."""
        return (_repeated(bias, self._no_bias), *self._arguments)


def _repeated(bias: Bias, no_bias: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return a bias repeated to a kernel's width."""
    if bias is None:
        return no_bias
    return bias if bias.size == no_bias.size else np.tile(bias, no_bias.size // bias.size)
