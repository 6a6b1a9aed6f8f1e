"""The order in which kernels with parameters per channel go through rows and blocks of channels."""

from collections.abc import Callable

from llvmlite import ir

from qgelu.kernels.vector_ir import I64, VectorBuilder


def walk_blocks(
    vectors: VectorBuilder,
    given: dict[str, ir.Value],
    channels: int,
    group_channels: int,
    emit_block: Callable[[ir.Value, ir.Value, ir.Value], None],
) -> None:
    """Emit the loops over groups of channels, rows, and blocks.

    Parameters
    ----------
    given : dict of int64 values
        ``rows``, ``width``, ``count`` (blocks per row), ``last_start`` (first channel of a row's last block, which may
        overlap the one before), ``last_block`` (its number among the parameters).
    channels : int
        Of one block.
    group_channels : int
        Channels that are worked on in all rows before the next ones.
    emit_block : callable
        Takes the block's first element, its first channel, and its number among the parameters.
    """
    build = vectors.ir
    zero, one = ir.Constant(I64, 0), ir.Constant(I64, 1)
    last = build.sub(given["count"], one)
    group = group_channels // channels
    with vectors.loop(zero, given["count"], group) as first_of_group:
        end = build.add(first_of_group, ir.Constant(I64, group))
        end = build.select(build.icmp_signed("<", end, given["count"]), end, given["count"])
        with vectors.loop(zero, given["rows"], 1) as row:
            row_start = build.mul(row, given["width"])
            with vectors.loop(first_of_group, end, 1) as number:
                is_last = build.icmp_signed("==", number, last)
                start = build.mul(number, ir.Constant(I64, channels))
                start = build.select(is_last, given["last_start"], start)
                stored = build.select(is_last, given["last_block"], number)
                emit_block(build.add(row_start, start), start, stored)
