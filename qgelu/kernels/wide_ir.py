"""The fused wide kernel as vector instructions: docs/arithmetic.md, equations (20) to (25).

A *block* is a few vectors of int32 accumulators. Where 64 bits are needed, even and odd lanes are worked on apart: a
lane's 64 bits then hold one number without any moving about.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

from llvmlite import ir

from qgelu.kernels.block_walk import walk_blocks
from qgelu.kernels.vector_ir import I32, I64, POINTER, VectorBuilder, define, splat, vector

GROUP_CHANNELS: Final = 256
"""Channels that are worked on in all rows before the next ones: their parameters stay in the first-level cache."""

PARAMETERS: Final = (
    "argument_multiplier",
    "argument_half",
    "argument_shift",
    "linear_multiplier",
    "tail_multiplier",
    "offset",
    "output_shift",
)
"""int64 parameters of a block: per vector, of its even lanes, then of its odd lanes."""

PER_CHANNEL: Final = ("bias", "lower", "upper", "left_shift")
POINTERS: Final = ("accumulator", *PER_CHANNEL, "blocks", "coefficients", "out")
NUMBERS: Final = ("rows", "width", "count", "last_start", "last_block", "degree", "lift", "code_range", "code_minimum")
"""The kernel's arguments."""

SEGMENTS: Final = 32


class WideDialect(ABC):
    """How one instruction set looks coefficients up.

    Attributes
    ----------
    words : int
        int32 lanes of one vector.
    unrolled : int
        Vectors of one block.
    """

    words: ClassVar[int]
    unrolled: ClassVar[int]

    def __init__(self, vectors: VectorBuilder) -> None:
        self.vectors = vectors
        self.kind = vector(32, self.words)

    @abstractmethod
    def look_up(self, table: ir.Value, segments: list[ir.Value]) -> list[ir.Value]:
        """Return entries of 32 int32 at a pointer, for several vectors of numbers."""


class Avx512(WideDialect):
    """One permute of two registers."""

    words = 16
    unrolled = 4

    def look_up(self, table: ir.Value, segments: list[ir.Value]) -> list[ir.Value]:
        """Use VPERMI2D."""
        name = "llvm.x86.avx512.vpermi2var.d.512"
        low, high = (self.vectors.load(self.vectors.at(table, 64 * k), self.kind) for k in range(2))
        return [self.vectors.call(name, self.kind, low, segment, high) for segment in segments]


class Avx2(WideDialect):
    """Four permutes of one register, and blends on the segment's upper bits."""

    words = 8
    unrolled = 1

    def look_up(self, table: ir.Value, segments: list[ir.Value]) -> list[ir.Value]:
        """Use VPERMD."""
        rows = [self.vectors.load(self.vectors.at(table, 32 * k), self.kind) for k in range(4)]
        return [self._chosen(rows, segment) for segment in segments]

    def _chosen(self, rows: list[ir.Value], segments: ir.Value) -> ir.Value:
        build = self.vectors.ir
        parts = [self.vectors.call("llvm.x86.avx2.permd", self.kind, row, segments) for row in rows]
        for bit in (3, 4):
            # The bit as the lane's sign is what a blend looks at.
            sign = build.shl(segments, splat(self.kind, 31 - bit))
            is_set = build.icmp_signed("<", sign, splat(self.kind, 0))
            parts = [build.select(is_set, parts[k + 1], parts[k]) for k in range(0, len(parts), 2)]
        return parts[0]


class Portable(WideDialect):
    """One load per lane."""

    words = 4
    unrolled = 2

    def look_up(self, table: ir.Value, segments: list[ir.Value]) -> list[ir.Value]:
        """Load and insert."""
        return [self._gathered(table, segment) for segment in segments]

    def _gathered(self, table: ir.Value, segments: ir.Value) -> ir.Value:
        build = self.vectors.ir
        found = ir.Constant(self.kind, ir.Undefined)
        for lane in range(self.words):
            place = ir.Constant(I32, lane)
            index = build.zext(build.extract_element(segments, place), I64)
            entry = self.vectors.load(self.vectors.at(table, build.shl(index, ir.Constant(I64, 2))), I32)
            found = build.insert_element(found, entry, place)
        return found


class _Arithmetic:
    """Equations (20) to (25) for one block.

    In the ``general`` form every clamp is where the equations have it. Otherwise u before its clamp, and the result,
    are known to fit 32 bits once the result is lifted by ``lift`` codes (which the stored offset contains), so that it
    is not negative: the clamps then follow in 32-bit lanes, where they are cheap.
    """

    def __init__(self, dialect: WideDialect, given: dict[str, ir.Value], code_bits: int, general: bool) -> None:
        self.dialect, self.vectors, self.build = dialect, dialect.vectors, dialect.vectors.ir
        self.given, self.general = given, general
        self.words, self.doubles = dialect.kind, vector(64, dialect.words // 2)
        self.codes_kind = vector(code_bits, dialect.words)
        lift, code_range, minimum = (self.build.trunc(given[n], I32) for n in ("lift", "code_range", "code_minimum"))
        if general:
            lift = ir.Constant(I32, 0)
        self.lowest, self.highest, self.shift_of_codes = (
            self.vectors.broadcast(value, dialect.words)
            for value in (lift, self.build.add(lift, code_range), self.build.sub(minimum, lift))
        )
        self.low_half = splat(self.doubles, 0xFFFFFFFF)

    def codes(self, accumulator: ir.Value, channels: dict[str, ir.Value], parameters: ir.Value) -> list[ir.Value]:
        """Return one block of codes; arguments are byte pointers.

        Every step is taken for all vectors before the next: the chain of dependent steps is long, and a CPU does not
        look far enough ahead to find the next vector's.
        """
        build, vectors = self.build, self.vectors
        parts = range(self.dialect.unrolled)
        vs = []
        for part in parts:
            value, bias, lower, upper, left_shift = (
                vectors.load(vectors.at(pointer, 4 * self.words.count * part), self.words)
                for pointer in (accumulator, *channels.values())
            )
            clamped = vectors.smin(vectors.smax(value, lower), upper)
            vs.append(build.shl(build.add(clamped, bias), left_shift))  # (20), (21)
        reads = [[self._reader(parameters, 2 * part + odd) for odd in range(2)] for part in parts]
        us = []
        for v, read in zip(vs, reads, strict=True):
            magnitudes = self._halves(vectors.magnitude(v))
            u = self._joined([self._argument(magnitudes[k], read[k]) for k in range(2)])
            us.append(vectors.umin(u, splat(self.words, (1 << 20) - 1)))
        codes = []
        for v, tail, read in zip(vs, self._tails(us), reads, strict=True):
            tails, linear = self._halves(tail), self._halves(vectors.smax(v, splat(self.words, 0)))
            code = self._joined([self._result(linear[k], tails[k], read[k]) for k in range(2)])
            code = vectors.smin(vectors.smax(code, self.lowest), self.highest)  # (25)
            codes.append(build.trunc(build.add(code, self.shift_of_codes), self.codes_kind))
        return codes

    def _halves(self, value: ir.Value) -> list[ir.Value]:
        """Return even and odd lanes of non-negative numbers in 64-bit lanes, the upper half of which does not count."""
        odd = self.vectors.shuffle(value, value, [lane | 1 for lane in range(self.words.count)])
        return [self.build.bitcast(half, self.doubles) for half in (value, odd)]

    def _joined(self, halves: list[ir.Value]) -> ir.Value:
        """Return the lower halves of 64-bit lanes as one vector of 32-bit lanes."""
        even, odd = (self.build.bitcast(half, self.words) for half in halves)
        count = self.words.count
        return self.vectors.shuffle(even, odd, [lane + (lane % 2) * (count - 1) for lane in range(count)])

    def _reader(self, parameters: ir.Value, half: int) -> Callable[[str], ir.Value]:
        def read(name: str) -> ir.Value:
            offset = 4 * self.words.count * (2 * self.dialect.unrolled * PARAMETERS.index(name) + half)
            return self.vectors.load(self.vectors.at(parameters, offset), self.doubles)

        return read

    def _product(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Multiply the lower halves of 64-bit lanes, which is one instruction."""
        return self.build.mul(self.build.and_(a, self.low_half), self.build.and_(b, self.low_half))

    def _argument(self, magnitude: ir.Value, read: Callable[[str], ir.Value]) -> ir.Value:
        """Return u in 64-bit lanes: (22)."""
        product = self._product(magnitude, read("argument_multiplier"))
        shifted = self.build.lshr(self.build.add(product, read("argument_half")), read("argument_shift"))
        return self._kept_in_31_bits(shifted)

    def _kept_in_31_bits(self, value: ir.Value) -> ir.Value:
        return self.vectors.smin(value, splat(self.doubles, (1 << 31) - 1)) if self.general else value

    def _tails(self, us: list[ir.Value]) -> list[ir.Value]:
        """Return p(u): (23)."""
        build, vectors = self.build, self.vectors
        segments = [build.lshr(u, splat(self.words, 15)) for u in us]
        fractions = [build.sub(build.and_(u, splat(self.words, 32767)), splat(self.words, 16384)) for u in us]
        size = 4 * SEGMENTS
        degree = self.given["degree"]
        top = vectors.at(self.given["coefficients"], build.mul(degree, ir.Constant(I64, size)))
        first = self.dialect.look_up(top, segments)
        with vectors.fold(ir.Constant(I64, 1), degree, first) as (number, tails):
            table = vectors.at(top, build.mul(number, ir.Constant(I64, -size)))
            coefficients = self.dialect.look_up(table, segments)
            for k, fraction in enumerate(fractions):
                product = build.ashr(build.mul(tails[k], fraction), splat(self.words, 15))
                tails[k] = build.add(coefficients[k], product)
        return [vectors.smax(tail, splat(self.words, 0)) for tail in tails]

    def _result(self, linear: ir.Value, tail: ir.Value, read: Callable[[str], ir.Value]) -> ir.Value:
        """Return the code counted from 0 (lifted, if not general) in 64-bit lanes: (24), (25)."""
        build = self.build
        total = build.add(self._product(linear, read("linear_multiplier")), read("offset"))
        total = build.sub(total, self._product(tail, read("tail_multiplier")))
        if self.general:
            total = self.vectors.smax(total, splat(self.doubles, 0))
        return self._kept_in_31_bits(build.lshr(total, read("output_shift")))


def block_channels(dialect: type[WideDialect]) -> int:
    """Return how many channels one block has."""
    return dialect.words * dialect.unrolled


def block_bytes(dialect: type[WideDialect]) -> int:
    """Return the size of one block's parameters."""
    return 8 * block_channels(dialect) * len(PARAMETERS)


def emit(module: ir.Module, name: str, dialect: type[WideDialect], code_bits: int, general: bool) -> ir.Function:
    """Add the kernel to a module and return it.

    Parameters
    ----------
    code_bits : int
        8 or 16: size of one code in memory.
    general : bool
        Whether nothing is known of u and the result but that they fit 64 bits.

    Notes
    -----
    The function's arguments are :data:`POINTERS`, to accumulators int32 [rows, width], bias, lower, upper, left_shift
    int32 [width], blocks of parameters, coefficients int32 [degree + 1, 32], out [rows, width]; then :data:`NUMBERS`,
    int64, where count is blocks per row, last_start the first channel of a row's last block, last_block its number
    among the parameters.
    """
    labels: list[tuple[str, Any]] = [*((label, POINTER) for label in POINTERS), *((label, I64) for label in NUMBERS)]
    function, given = define(module, name, labels)
    build = ir.IRBuilder(function.append_basic_block("entry"))
    vectors = VectorBuilder(build)
    arithmetic = _Arithmetic(dialect(vectors), given, code_bits, general)

    def block(element: ir.Value, channel: ir.Value, stored: ir.Value) -> None:
        codes = arithmetic.codes(
            vectors.at(given["accumulator"], build.shl(element, ir.Constant(I64, 2))),
            {label: vectors.at(given[label], build.shl(channel, ir.Constant(I64, 2))) for label in PER_CHANNEL},
            vectors.at(given["blocks"], build.mul(stored, ir.Constant(I64, block_bytes(dialect)))),
        )
        size = code_bits // 8
        out = vectors.at(given["out"], build.mul(element, ir.Constant(I64, size)))
        for part, vector_of_codes in enumerate(codes):
            vectors.store(vector_of_codes, vectors.at(out, size * dialect.words * part))

    walk_blocks(vectors, given, block_channels(dialect), GROUP_CHANNELS, block)
    build.ret_void()
    return function
