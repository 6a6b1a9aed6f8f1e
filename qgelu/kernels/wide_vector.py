"""int32 accumulators to codes of up to 16 bits, many lanes at a time: the paths of the wide kernel."""

from typing import Any, Final

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from qgelu.kernels.options import compiled
from qgelu.kernels.vector_ir import POINTER
from qgelu.kernels.version import VERSION
from qgelu.kernels.wide_ir import (
    NUMBERS,
    Avx2,
    Avx512,
    Avx512Ifma,
    PairDialect,
    Portable,
    WideDialect,
    block_channels,
    emit,
)

DIALECTS: Final[dict[str, type[WideDialect]]] = {
    "portable": Portable,
    "avx2": Avx2,
    "avx512": Avx512,
    "avx512_ifma": Avx512Ifma,
}
_NAMES: Final = tuple(DIALECTS)
INT32_MINIMUM: Final = -(1 << 31)
INT32_MAXIMUM: Final = (1 << 31) - 1


def block_layout(path: str) -> tuple[int, int, tuple[str, ...], bool]:
    """Return what :func:`qgelu.kernels.wide_blocks.pack_wide_blocks` must know of a path's kernel.

    Lanes of one vector, vectors of one block, what a block stores, whether results are lifted.
    """
    dialect = DIALECTS[path]
    return dialect.words, dialect.unrolled, dialect.parameters, not issubclass(dialect, PairDialect)


def _typed_run(
    typing_context: Any,
    version: Any,
    path: Any,
    general: Any,
    accumulator: Any,
    bias: Any,
    lower: Any,
    upper: Any,
    left_shift: Any,
    blocks: Any,
    coefficients: Any,
    upper_coefficients: Any,
    out: Any,
    numbers: Any,
) -> Any:
    """Run the kernel of one dialect, by ``general`` either form of it: qgelu.kernels.wide_ir.emit."""
    arrays = (accumulator, bias, lower, upper, left_shift, blocks, coefficients, upper_coefficients, out)
    signature = types.void(version, path, types.boolean, *arrays, numbers)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointers = [
            builder.bitcast(context.make_array(kind)(context, builder, value).data, POINTER)
            for kind, value in zip(signature.args[3:-1], arguments[3:-1], strict=True)
        ]
        numbers = [builder.extract_value(arguments[-1], k) for k in range(len(NUMBERS))]
        label, code_bits = _NAMES[path.literal_value], out.dtype.bitwidth
        simple, clamped = (
            builder.module.globals.get(name) or emit(builder.module, name, DIALECTS[label], code_bits, is_general)
            for name, is_general in (
                (f"qgelu_wide_{label}_{code_bits}", False),
                (f"qgelu_wide_{label}_{code_bits}_general", True),
            )
        )
        with builder.if_else(arguments[2]) as (then, otherwise):
            with then:
                builder.call(clamped, [*pointers, *numbers])
            with otherwise:
                builder.call(simple, [*pointers, *numbers])
        return context.get_dummy_value()

    return signature, generate


_run: Any = intrinsic(prefer_literal=True)(_typed_run)


def _make(path: int, version: int) -> Any:
    block = block_channels(DIALECTS[_NAMES[path]])

    @compiled(_NAMES[path])
    def requantize(
        accumulator: Any,
        out: Any,
        bias: Any,
        limit: Any,
        left_shift: Any,
        blocks: Any,
        coefficients: Any,
        upper_coefficients: Any,
        general: bool,
        lift: int,
        code_range: int,
        code_minimum: int,
    ) -> None:
        """Write the codes of int32 accumulators.

        Parameters
        ----------
        accumulator : int32 array of shape [n], contiguous
            Rows of channels; the last row of ``width`` may be cut short.
        out : (u)int8 or (u)int16 array of shape [n], contiguous
            Shares no memory with any other argument.
        bias : int32 array of shape [width], contiguous
        limit, left_shift, blocks, coefficients, upper_coefficients, general, lift
            As :class:`qgelu.kernels.wide_blocks.WideBlocks` has them.
        code_range, code_minimum : int
            Largest code minus smallest code, and the smallest code.
        """
        width = bias.size
        lower, upper = np.empty(width, np.int32), np.empty(width, np.int32)
        for k in range(width):
            lower[k] = min(max(-np.int64(limit[k]) - bias[k], INT32_MINIMUM), INT32_MAXIMUM)
            upper[k] = min(max(np.int64(limit[k]) - bias[k], INT32_MINIMUM), INT32_MAXIMUM)
        degree = coefficients.shape[0] - 1
        rows = accumulator.size // width
        if rows > 0:
            numbers = (
                rows, width, (width + block - 1) // block, width - block, blocks.shape[0] - 1, degree, lift,
                code_range, code_minimum,
            )  # fmt: skip
            _run(
                version, path, general, accumulator, bias, lower, upper, left_shift, blocks, coefficients,
                upper_coefficients, out, numbers,
            )  # fmt: skip
        done = rows * width
        count = (accumulator.size - done) // block
        if count > 0:
            numbers = (1, width, count, (count - 1) * block, count - 1, degree, lift, code_range, code_minimum)
            _run(
                version, path, general, accumulator[done:], bias, lower, upper, left_shift, blocks, coefficients,
                upper_coefficients, out[done:], numbers,
            )  # fmt: skip
        first = count * block
        done += first
        rest = accumulator.size - done
        if rest > 0:
            # Less than a block: work on copies.
            words = np.zeros((5, block), np.int32)
            codes = np.empty(block, out.dtype)
            for k in range(rest):
                words[0, k] = accumulator[done + k]
                words[1, k] = bias[first + k]
                words[2, k] = lower[first + k]
                words[3, k] = upper[first + k]
                words[4, k] = left_shift[first + k]
            numbers = (1, block, 1, 0, 0, degree, lift, code_range, code_minimum)
            _run(
                version, path, general, words[0], words[1], words[2], words[3], words[4], blocks[count:], coefficients,
                upper_coefficients, codes, numbers,
            )  # fmt: skip
            for k in range(rest):
                out[done + k] = codes[k]

    return requantize


REQUANTIZE: Final = {name: _make(number, VERSION) for number, name in enumerate(_NAMES)}
"""The kernel by path."""
