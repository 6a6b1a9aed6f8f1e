"""int32 accumulators to codes of up to 8 bits, many lanes at a time: the paths of the narrow kernel."""

from typing import Any, Final

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from qgelu.kernels.narrow_ir import (
    FORMS,
    FULL,
    GENERAL,
    LIMITED,
    NUMBERS,
    SUM_EDGE,
    Avx2,
    Avx512,
    Dialect,
    Portable,
    block_channels,
    emit,
)
from qgelu.kernels.options import compiled
from qgelu.kernels.vector_ir import CACHE_LINE, I32, POINTER
from qgelu.kernels.version import VERSION

DIALECTS: Final[dict[str, type[Dialect]]] = {"portable": Portable, "avx2": Avx2, "avx512": Avx512}
_NAMES: Final = tuple(DIALECTS)
INT32_MINIMUM: Final = -(1 << 31)
INT32_MAXIMUM: Final = (1 << 31) - 1


def lane_order(path: str) -> list[int]:
    """Return the channel, within a block, of each 16-bit lane of a path's kernel."""
    return DIALECTS[path].lane_order()


def _typed_run(
    typing_context: Any,
    version: Any,
    path: Any,
    form: Any,
    accumulator: Any,
    bias: Any,
    lower: Any,
    upper: Any,
    left_shift: Any,
    blocks: Any,
    coefficients: Any,
    out: Any,
    numbers: Any,
) -> Any:
    """Run the kernel of one dialect in one of its forms: qgelu.kernels.narrow_ir.emit."""
    arrays = (accumulator, bias, lower, upper, left_shift, blocks, coefficients, out)
    signature = types.uint32(version, path, types.int64, *arrays, numbers)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointers = [
            builder.bitcast(context.make_array(array)(context, builder, value).data, POINTER)
            for array, value in zip(signature.args[3:-1], arguments[3:-1], strict=True)
        ]
        numbers = [builder.extract_value(arguments[-1], k) for k in range(len(NUMBERS))]
        label = _NAMES[path.literal_value]
        seen = builder.alloca(I32)
        after = builder.append_basic_block("after")
        choice = builder.switch(arguments[2], after)
        for number, kind in enumerate(FORMS):
            name = f"qgelu_narrow_{label}_{kind.label}"
            kernel = builder.module.globals.get(name) or emit(builder.module, name, DIALECTS[label], kind)
            choice.add_case(number, builder.append_basic_block(kind.label))
            builder.position_at_end(choice.cases[-1][1])
            builder.store(builder.call(kernel, [*pointers, *numbers]), seen)
            builder.branch(after)
        builder.position_at_end(after)
        return builder.load(seen)

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
        general: bool,
        code_range: int,
        code_minimum: int,
    ) -> None:
        """Write the codes of int32 accumulators.

        Parameters
        ----------
        accumulator : int32 array of shape [n], contiguous
            Rows of channels; the last row of ``width`` may be cut short.
        out : (u)int8 array of shape [n], contiguous
            Shares no memory with any other argument.
        bias : int32 array of shape [width], contiguous
        limit, left_shift, blocks, coefficients, general
            As :class:`qgelu.kernels.narrow_blocks.NarrowBlocks` has them.
        code_range, code_minimum : int
            Largest code minus smallest code, and the smallest code.
        """
        width = bias.size
        # A copy on whole cache lines: every row reads it.
        raw = np.empty(width + CACHE_LINE // 4, np.int32)
        start = (-np.int64(raw.ctypes.data) & (CACHE_LINE - 1)) // 4
        summand = raw[start : start + width]
        largest = np.int64(0)
        for k in range(width):
            summand[k] = bias[k]
            largest = max(largest, abs(np.int64(bias[k])))
        lower = np.empty(0, np.int32)
        upper = lower
        form = FULL if code_range == 255 else LIMITED
        if general or largest >= SUM_EDGE:
            form = GENERAL
        while True:
            if form == GENERAL:
                lower = np.empty(width, np.int32)
                upper = np.empty(width, np.int32)
                for k in range(width):
                    lower[k] = min(max(-np.int64(limit[k]) - bias[k], INT32_MINIMUM), INT32_MAXIMUM)
                    upper[k] = min(max(np.int64(limit[k]) - bias[k], INT32_MINIMUM), INT32_MAXIMUM)
            seen = np.uint32(0)
            rows = accumulator.size // width
            if rows > 0:
                numbers = (
                    rows, width, (width + block - 1) // block, width - block, blocks.shape[0] - 1,
                    code_range, code_minimum,
                )  # fmt: skip
                seen |= _run(
                    version, path, form, accumulator, summand, lower, upper, left_shift, blocks, coefficients, out,
                    numbers,
                )  # fmt: skip
            done = rows * width
            count = (accumulator.size - done) // block
            if count > 0:
                numbers = (1, width, count, (count - 1) * block, count - 1, code_range, code_minimum)
                seen |= _run(
                    version, path, form, accumulator[done:], summand, lower, upper, left_shift, blocks, coefficients,
                    out[done:], numbers,
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
                    words[4, k] = left_shift[first + k]
                    if form == GENERAL:
                        words[2, k] = lower[first + k]
                        words[3, k] = upper[first + k]
                numbers = (1, block, 1, 0, 0, code_range, code_minimum)
                seen |= _run(
                    version, path, form, words[0], words[1], words[2], words[3], words[4], blocks[count:], coefficients,
                    codes, numbers,
                )  # fmt: skip
                for k in range(rest):
                    out[done + k] = codes[k]
            if form == GENERAL or seen < SUM_EDGE:
                break
            form = GENERAL  # a sum may have wrapped: once more, clamped

    return requantize


REQUANTIZE: Final = {name: _make(number, VERSION) for number, name in enumerate(_NAMES)}
"""The kernel by path."""
