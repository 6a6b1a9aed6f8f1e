"""Codes of up to 4 bits, two to a byte, as ONNX stores INT4 and UINT4.

The elements of a tensor follow each other in row-major order, whatever its shape: the first of two in the lower half
of a byte. An odd number of elements leaves the upper half of the last byte 0.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qgelu.errors import QGeluError
from qgelu.kernels.binding import BoundTable
from qgelu.kernels.registry import selected
from qgelu.kernels.rows import run_rows
from qgelu.plan import Plan
from qgelu.plan_arguments import can_write, check_out, check_threads
from qgelu.qparams import AccumulatorParams, QParams
from qgelu.table_plan import TablePlan

BITS: Final = 4
SIGN: Final = 1 << (BITS - 1)


def packed_size(shape: Sequence[int]) -> int:
    """Return how many bytes the packed codes of a tensor of that shape take."""
    return (math.prod(shape) + 1) // 2


def pack_int4(codes: ArrayLike, params: QParams) -> NDArray[np.uint8]:
    """Pack codes.

    Parameters
    ----------
    codes : array
        Of dtype ``params.dtype``, any shape.
    params : QParams
        Of 2 to 4 bits.

    Returns
    -------
    packed : uint8 array of shape [(number of codes + 1) // 2]

    Raises
    ------
    QGeluError
        If the parameters have more bits, or a code is of another dtype or beyond 4 bits.
    """
    _check_bits(params, "pack")
    array = np.ascontiguousarray(codes)
    if array.dtype != params.dtype:
        raise QGeluError(f"codes to pack are {array.dtype}, these parameters' are {params.dtype}: cast them first")
    low, high = (-SIGN, SIGN - 1) if params.signed else (0, 2 * SIGN - 1)
    if array.size and not low <= int(array.min()) <= int(array.max()) <= high:
        raise QGeluError(f"codes to pack leave {low} to {high}: saturate them to 4 bits first")
    return _pack(array)


def unpack_int4(packed: ArrayLike, shape: Sequence[int], params: QParams) -> NDArray[Any]:
    """Unpack codes; the inverse of :func:`pack_int4`.

    Parameters
    ----------
    packed : uint8 array of shape [packed_size(shape)]
    shape : sequence of int
        Of the tensor.
    params : QParams
        Of 2 to 4 bits.

    Returns
    -------
    codes : array of that shape, of dtype ``params.dtype``

    Raises
    ------
    QGeluError
        If the parameters have more bits, or the bytes do not belong to that shape.
    """
    _check_bits(params, "unpack")
    sizes = _checked_shape(shape)
    return _unpack(_checked_bytes(packed, sizes), sizes, params)


def run_packed(
    plan: Plan,
    q: ArrayLike,
    shape: Sequence[int],
    bias: ArrayLike | None = None,
    out: NDArray[np.uint8] | None = None,
    threads: int | None = None,
) -> NDArray[Any]:
    """Run a plan on packed codes, to packed codes, or both: whichever side has at most 4 bits.

    Parameters
    ----------
    plan : Plan
    q : array
        uint8 of shape [packed_size(shape)] if the plan's input has at most 4 bits; else what the plan takes.
    shape : sequence of int
        Of the tensor; the last axis is the channel if the plan is per channel.
    bias, threads
        As in a call of the plan.
    out : array, optional
        Receives the result: uint8 of shape [packed_size(shape)] if the plan's output has at most 4 bits, else of
        ``shape`` and the output's dtype.

    Returns
    -------
    codes : array
        As ``out``.

    Raises
    ------
    QGeluError
        If neither side has at most 4 bits, or a dtype or a shape is wrong.
    """
    shape = _checked_shape(shape)
    takes, returns = _is_packed(plan.input), _is_packed(plan.output)
    if not takes and not returns:
        raise QGeluError("neither side of this plan has 4 bits or fewer: call the plan itself")
    if takes and returns and isinstance(plan, TablePlan) and bias is None:
        return _look_up_pairs(plan, _checked_bytes(q, shape), math.prod(shape) % 2 == 1, out, threads)
    if isinstance(plan.input, QParams) and takes:
        codes = _unpack(_checked_bytes(q, shape), shape, plan.input)
    else:
        codes = np.asarray(q)
        if codes.shape != shape:
            raise QGeluError(f"input has shape {codes.shape}, not {shape}")
    if not returns:
        return plan(codes, bias=bias, out=out, threads=threads)
    if out is not None:
        check_out(out, (packed_size(shape),), np.dtype(np.uint8))
    packed = _pack(plan(codes, bias=bias, threads=threads))
    if out is None:
        return packed
    out[...] = packed
    return out


def _look_up_pairs(
    plan: TablePlan, packed: NDArray[np.uint8], odd: bool, out: NDArray[np.uint8] | None, threads: int | None
) -> NDArray[np.uint8]:
    """Look two codes up at once: a byte's answer is its two codes'."""
    count = check_threads(threads)
    if out is None:
        out = np.empty(packed.shape, np.uint8)
    check_out(out, packed.shape, packed.dtype)
    target = out if can_write(out, packed) else np.empty(packed.shape, np.uint8)
    run_rows(_pair_kernel(plan), None, packed, target, 1, count)
    if odd:
        target[-1] &= 15
    if target is not out:
        out[...] = target
    return out


@functools.lru_cache(maxsize=64)
def _pair_kernel(plan: TablePlan) -> BoundTable:
    return BoundTable(selected("table_8"), pair_table(plan))


def pair_table(plan: TablePlan) -> NDArray[np.uint8]:
    """Return, for every byte of two packed input codes, the byte of their two output codes.

    Parameters
    ----------
    plan : TablePlan
        With at most 4 bits on both sides.
    """
    halves = np.arange(2 * SIGN, dtype=np.uint8)
    signed = isinstance(plan.input, QParams) and plan.input.signed
    patterns = (halves ^ SIGN) - SIGN if signed else halves
    codes = plan.table[patterns.astype(np.uint8)].astype(np.uint8) & 15
    return (codes[None, :] | (codes[:, None] << BITS)).astype(np.uint8).reshape(-1)


def _is_packed(side: QParams | AccumulatorParams) -> bool:
    return isinstance(side, QParams) and side.bits <= BITS


def _check_bits(params: QParams, verb: str) -> None:
    if not _is_packed(params):
        raise QGeluError(f"cannot {verb} codes of {params.bits} bits two to a byte: they must have {BITS} or fewer")


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise QGeluError(f"shape must be a sequence of whole numbers, not {shape!r}") from None
    if any(size < 0 for size in sizes):
        raise QGeluError(f"shape must have no negative sizes, not {sizes}")
    return sizes


def _checked_bytes(packed: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    array = np.asarray(packed)
    size = packed_size(shape)
    if array.dtype != np.uint8 or array.shape != (size,):
        raise QGeluError(
            f"packed codes are {array.dtype} {array.shape}; a tensor of shape {shape} takes uint8 ({size},), "
            "two codes to a byte"
        )
    return np.ascontiguousarray(array)


def _pack(codes: NDArray[Any]) -> NDArray[np.uint8]:
    flat = np.ascontiguousarray(codes).reshape(-1).view(np.uint8)
    packed = np.empty(packed_size(flat.shape), np.uint8)
    selected("pack_4").function()(flat, packed)
    return packed


def _unpack(packed: NDArray[np.uint8], shape: tuple[int, ...], params: QParams) -> NDArray[Any]:
    codes = np.empty(shape, params.dtype)
    selected("unpack_4").function()(packed, codes.reshape(-1).view(np.uint8), np.uint8(SIGN if params.signed else 0))
    return codes
