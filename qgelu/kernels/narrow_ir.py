"""The fused narrow kernel as vector instructions: docs/arithmetic.md, equations (10) to (18).

One emitter serves every instruction set; a :class:`Dialect` says how wide the vectors are, how they are packed and how
16 coefficients are looked up. A *block* is what one pass works on: four vectors of int32 accumulators become two of
16-bit lanes and one of bytes.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from llvmlite import ir

from qgelu.kernels.block_walk import walk_blocks
from qgelu.kernels.vector_ir import I8, I32, I64, POINTER, VectorBuilder, define, splat, vector

GROUP_CHANNELS: Final = 512
"""Channels that are worked on in all rows before the next ones: their parameters stay in the first-level cache."""

WORD_PARAMETERS: Final = ("linear_half", "linear_shift", "argument_half", "argument_shift")
"""int32 parameters of a block, in the order in which they are stored."""

HALF_PARAMETERS: Final = ("linear_multiplier", "argument_multiplier", "tail_multiplier", "offset")
"""uint16 parameters of a block, after the int32 ones; in the dialect's lane order."""

PER_CHANNEL: Final = ("bias", "lower", "upper", "left_shift")
POINTERS: Final = ("accumulator", *PER_CHANNEL, "blocks", "coefficients", "out")
NUMBERS: Final = ("rows", "width", "count", "last_start", "last_block", "code_range", "code_minimum")
"""The kernel's arguments."""

COEFFICIENTS: Final = 4
SEGMENTS: Final = 16


@dataclass(frozen=True)
class Form:
    """What a kernel does for every element; the shorter forms leave out what a check made before or after replaces.

    Attributes
    ----------
    label : str
    clamped : bool
        Clamp accumulators and shift them left, per channel, and raise negative tails to 0. Otherwise the kernel reports
        how large the sums became.
    limited : bool
        Limit codes to ``code_range``. Otherwise that is 255, where packing stops by itself.
    """

    label: str
    clamped: bool
    limited: bool


FORMS: Final = (Form("full", False, False), Form("limited", False, True), Form("general", True, True))
FULL, LIMITED, GENERAL = range(len(FORMS))

SUM_EDGE: Final = 1 << 30
"""Below it, |accumulator + bias| and the largest half of a shift, 2**29, stay within int32. A bias below it makes no
int32 accumulator wrap to less: |sum| < 2**31 + 2**30 leaves 2**32 - |sum| > 2**30."""


class Dialect(ABC):
    """How one instruction set does what LLVM has no common instruction for.

    Attributes
    ----------
    words : int
        int32 lanes of one vector.
    unrolled : int
        A block is four vectors of accumulators, so many times.
    """

    words: ClassVar[int]
    unrolled: ClassVar[int]

    def __init__(self, vectors: VectorBuilder) -> None:
        self.vectors = vectors

    @abstractmethod
    def load_tables(self, coefficients: ir.Value) -> Any:
        """Load what stays in registers for the whole call."""

    @abstractmethod
    def look_up(self, tables: Any, segments: tuple[ir.Value, ir.Value]) -> list[tuple[ir.Value, ir.Value]]:
        """Return, for c0 to c3, the coefficients of two vectors of segment numbers."""

    @abstractmethod
    def pack_words(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Saturate two vectors of int32 to one of unsigned 16-bit lanes."""

    @abstractmethod
    def pack_halves(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Saturate two vectors of signed 16-bit lanes to one of bytes, in channel order."""

    @classmethod
    def half_order(cls) -> list[int]:
        """Return the channel, within four vectors of accumulators, of each 16-bit lane."""
        return list(range(4 * cls.words))

    @classmethod
    def lane_order(cls) -> list[int]:
        """Return the channel, within a block, of each 16-bit lane."""
        return [4 * cls.words * unit + lane for unit in range(cls.unrolled) for lane in cls.half_order()]


def in_lane_order(words: int) -> list[int]:
    """Return the channel order of 16-bit lanes where packing works within 128-bit lanes."""
    lanes = words // 4
    return [
        pair * 2 * words + source * words + 4 * lane + element
        for pair in range(2)
        for lane in range(lanes)
        for source in range(2)
        for element in range(4)
    ]


class X86Dialect(Dialect):
    """Packing on x86, which works within 128-bit lanes."""

    pack_words_name: ClassVar[str]
    pack_halves_name: ClassVar[str]

    @classmethod
    def half_order(cls) -> list[int]:
        """Return the order in which packing leaves the channels."""
        return in_lane_order(cls.words)

    def pack_words(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Use PACKUSDW."""
        return self.vectors.call(self.pack_words_name, vector(16, 2 * self.words), a, b)

    def pack_halves(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Use PACKUSWB, then put groups of four channels into order."""
        mixed = self.vectors.call(self.pack_halves_name, vector(8, 4 * self.words), a, b)
        groups = self.vectors.ir.bitcast(mixed, vector(32, self.words))
        lanes = self.words // 4
        order = [4 * lane + source for source in range(4) for lane in range(lanes)]
        return self.vectors.ir.bitcast(self.vectors.shuffle(groups, groups, order), mixed.type)


class Avx512(X86Dialect):
    """512-bit vectors; a coefficient of all 16 segments, twice, is one register, looked up by VPERMW."""

    words = 16
    unrolled = 2
    pack_words_name = "llvm.x86.avx512.packusdw.512"
    pack_halves_name = "llvm.x86.avx512.packuswb.512"

    def load_tables(self, coefficients: ir.Value) -> list[ir.Value]:
        """Load four registers."""
        single = vector(16, SEGMENTS)
        tables = [self.vectors.load(self.vectors.at(coefficients, 32 * k), single) for k in range(COEFFICIENTS)]
        return [self.vectors.shuffle(table, table, [*range(SEGMENTS)] * 2) for table in tables]

    def look_up(self, tables: list[ir.Value], segments: tuple[ir.Value, ir.Value]) -> list[tuple[ir.Value, ir.Value]]:
        """Permute words."""
        name, kind = "llvm.x86.avx512.permvar.hi.512", vector(16, 32)
        first, second = segments
        return [
            (self.vectors.call(name, kind, table, first), self.vectors.call(name, kind, table, second))
            for table in tables
        ]


class Avx2(X86Dialect):
    """256-bit vectors; the low and the high bytes of a coefficient are one register each, looked up by PSHUFB."""

    words = 8
    unrolled = 1
    pack_words_name = "llvm.x86.avx2.packusdw"
    pack_halves_name = "llvm.x86.avx2.packuswb"

    def load_tables(self, coefficients: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
        """Split every coefficient into bytes."""
        tables = []
        for k in range(COEFFICIENTS):
            table = self.vectors.load(self.vectors.at(coefficients, 32 * k), vector(8, 2 * SEGMENTS))
            tables.append(
                (
                    self.vectors.shuffle(table, table, [*range(0, 32, 2)] * 2),
                    self.vectors.shuffle(table, table, [*range(1, 32, 2)] * 2),
                )
            )
        return tables

    def look_up(
        self, tables: list[tuple[ir.Value, ir.Value]], segments: tuple[ir.Value, ir.Value]
    ) -> list[tuple[ir.Value, ir.Value]]:
        """Look up bytes for both vectors at once, then join them: unpacking undoes the packing."""
        kind = vector(8, 32)
        index = self.vectors.call(self.pack_halves_name, kind, *segments)
        halves = [[16 * lane + first + k for lane in range(2) for k in range(8)] for first in (0, 8)]
        found = []
        for low_table, high_table in tables:
            low = self.vectors.call("llvm.x86.avx2.pshuf.b", kind, low_table, index)
            high = self.vectors.call("llvm.x86.avx2.pshuf.b", kind, high_table, index)
            pair = []
            for lanes in halves:
                order = [number for lane in lanes for number in (lane, lane + 32)]
                pair.append(self.vectors.ir.bitcast(self.vectors.shuffle(low, high, order), vector(16, 16)))
            found.append((pair[0], pair[1]))
        return found


class Portable(Dialect):
    """128-bit vectors and nothing but LLVM's common instructions: compiles for every CPU."""

    words = 4
    unrolled = 1

    def load_tables(self, coefficients: ir.Value) -> ir.Value:
        """Nothing stays in registers: rows of four coefficients are read one by one."""
        return self.vectors.at(coefficients, 2 * COEFFICIENTS * SEGMENTS)

    def look_up(self, tables: ir.Value, segments: tuple[ir.Value, ir.Value]) -> list[tuple[ir.Value, ir.Value]]:
        """Load one row per lane, and transpose."""
        first, second = (self._rows(tables, segment) for segment in segments)
        return list(zip(first, second, strict=True))

    def _rows(self, tables: ir.Value, segment: ir.Value) -> list[ir.Value]:
        build, row = self.vectors.ir, vector(16, COEFFICIENTS)
        parts = []
        for lane in range(2 * self.words):
            index = build.zext(build.extract_element(segment, ir.Constant(I32, lane)), I64)
            parts.append(self.vectors.load(self.vectors.at(tables, build.shl(index, ir.Constant(I64, 3))), row))
        shuffle = self.vectors.shuffle
        pairs = [shuffle(parts[k], parts[k + 1], [0, 4, 1, 5, 2, 6, 3, 7]) for k in range(0, 8, 2)]
        columns = []
        for order in ([0, 1, 8, 9, 2, 3, 10, 11], [4, 5, 12, 13, 6, 7, 14, 15]):
            first, second = (shuffle(pairs[k], pairs[k + 1], order) for k in (0, 2))
            columns += [shuffle(first, second, [*range(k, k + 4), *range(k + 8, k + 12)]) for k in (0, 4)]
        return columns

    def pack_words(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Clamp and truncate."""
        both = self.vectors.shuffle(a, b, [*range(2 * self.words)])
        return self.vectors.ir.trunc(self._clamped(both, 65535), vector(16, 2 * self.words))

    def pack_halves(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Clamp and truncate."""
        both = self.vectors.shuffle(a, b, [*range(4 * self.words)])
        return self.vectors.ir.trunc(self._clamped(both, 255), vector(8, 4 * self.words))

    def _clamped(self, value: ir.Value, largest: int) -> ir.Value:
        positive = self.vectors.smax(value, splat(value.type, 0))
        return self.vectors.smin(positive, splat(value.type, largest))


@dataclass(frozen=True)
class _Block:
    """Where one block's data is: byte pointers."""

    accumulator: ir.Value
    channels: dict[str, ir.Value]  # bias, lower, upper, left_shift
    parameters: ir.Value


class _Arithmetic:
    """Equations (10) to (18) for one block.

    Attributes
    ----------
    sums_seen : pointer to a vector of int32
        All bits that |accumulator + bias| had so far, in forms that do not clamp.
    """

    def __init__(self, dialect: Dialect, tables: Any, form: Form, code_range: ir.Value, first: ir.Value):
        self.dialect, self.vectors, self.tables = dialect, dialect.vectors, tables
        self.form, self.code_range, self.code_minimum = form, code_range, first
        self.words = vector(32, dialect.words)
        self.halves = vector(16, 2 * dialect.words)
        self.sums_seen = self.vectors.variable(splat(self.words, 0))

    def codes(self, block: _Block) -> list[ir.Value]:
        """Return the block's codes, one vector per four of accumulators."""
        pack, units = self.dialect.pack_words, self.dialect.unrolled
        branches = [self._branches(block, k) for k in range(4 * units)]
        pairs = range(2 * units)
        linear, argument = (
            [pack(branches[2 * k][which], branches[2 * k + 1][which]) for k in pairs] for which in range(2)
        )
        growths = [[self._half(block, name, k) for k in pairs] for name in HALF_PARAMETERS]
        argument = [self._grow(argument[k], growths[1][k]) for k in pairs]
        tail = self._tail(argument)
        results = []
        for k in pairs:
            amount = self.vectors.add_saturating(self._grow(linear[k], growths[0][k]), growths[3][k])  # (13), (16)
            scaled = self.vectors.high_unsigned(tail[k], growths[2][k])
            difference = self.vectors.subtract_saturating(amount, scaled)  # (17)
            results.append(self.vectors.ir.lshr(difference, splat(self.halves, 7)))
        codes = [self.dialect.pack_halves(results[2 * k], results[2 * k + 1]) for k in range(units)]
        if self.form.limited:
            codes = [self.vectors.umin(code, self.code_range) for code in codes]  # (18)
        return [self.vectors.ir.add(code, self.code_minimum) for code in codes]

    def _branches(self, block: _Block, k: int) -> tuple[ir.Value, ir.Value]:
        """Return the linear branch and the argument before saturation: (10), (11) and shifts of (12), (14)."""
        build, vectors = self.vectors.ir, self.vectors
        accumulator = self._natural(block.accumulator, k)
        if self.form.clamped:
            lower, upper = (self._natural(block.channels[label], k) for label in ("lower", "upper"))
            accumulator = vectors.smin(vectors.smax(accumulator, lower), upper)
        v = build.add(accumulator, self._natural(block.channels["bias"], k))
        if self.form.clamped:
            v = build.shl(v, self._natural(block.channels["left_shift"], k))
        linear = build.ashr(build.add(v, self._word(block, 0, k)), self._word(block, 1, k))
        magnitude = vectors.magnitude(v)
        if not self.form.clamped:
            build.store(build.or_(build.load(self.sums_seen), magnitude), self.sums_seen)
        argument = build.add(magnitude, self._word(block, 2, k))
        return linear, build.lshr(argument, self._word(block, 3, k))

    def _natural(self, pointer: ir.Value, k: int) -> ir.Value:
        return self.vectors.load(self.vectors.at(pointer, 4 * self.words.count * k), self.words)

    def _word(self, block: _Block, parameter: int, k: int) -> ir.Value:
        offset = 4 * self.words.count * (4 * self.dialect.unrolled * parameter + k)
        return self.vectors.load(self.vectors.at(block.parameters, offset), self.words)

    def _half(self, block: _Block, name: str, k: int) -> ir.Value:
        units = self.dialect.unrolled
        first = 4 * self.words.count * 4 * units * len(WORD_PARAMETERS)
        offset = first + 2 * self.halves.count * (2 * units * HALF_PARAMETERS.index(name) + k)
        return self.vectors.load(self.vectors.at(block.parameters, offset), self.halves)

    def _grow(self, value: ir.Value, doubled_multiplier: ir.Value) -> ir.Value:
        return self.vectors.add_saturating(value, self.vectors.high_unsigned(value, doubled_multiplier))

    def _tail(self, arguments: list[ir.Value]) -> list[ir.Value]:
        """Return p(u): (15)."""
        build = self.vectors.ir
        segments = [build.lshr(u, splat(self.halves, 12)) for u in arguments]
        found = [self.dialect.look_up(self.tables, (segments[k], segments[k + 1])) for k in range(0, len(segments), 2)]
        rows = [[value for pair in found for value in pair[degree]] for degree in range(COEFFICIENTS)]
        fractions = [build.xor(build.shl(u, splat(self.halves, 4)), splat(self.halves, -32768)) for u in arguments]
        tails = rows[3]
        for row in reversed(rows[:3]):
            tails = [
                build.add(c, self.vectors.high_signed(p, fraction))
                for c, p, fraction in zip(row, tails, fractions, strict=True)
            ]
        return [self.vectors.smax(p, splat(self.halves, 0)) for p in tails] if self.form.clamped else tails


def block_channels(dialect: type[Dialect]) -> int:
    """Return how many channels one block has."""
    return 4 * dialect.words * dialect.unrolled


def block_bytes(dialect: type[Dialect]) -> int:
    """Return the size of one block's parameters."""
    return block_channels(dialect) * (4 * len(WORD_PARAMETERS) + 2 * len(HALF_PARAMETERS))


def emit(module: ir.Module, name: str, dialect: type[Dialect], form: Form) -> ir.Function:
    """Add one form of the kernel to a module and return it.

    Notes
    -----
    The function's arguments are :data:`POINTERS`, to accumulators int32 [rows, width], bias, lower, upper, left_shift
    int32 [width], blocks of parameters, coefficients, out [rows, width]; then :data:`NUMBERS`, int64, where count is
    blocks per row, last_start the first channel of a row's last block, last_block its number among the parameters.
    It returns the bits that any |accumulator + bias| had, as an int32; 0 where it clamped them.
    """
    labels = [*((label, POINTER) for label in POINTERS), *((label, I64) for label in NUMBERS)]
    function, given = define(module, name, labels, result=I32)
    build = ir.IRBuilder(function.append_basic_block("entry"))
    vectors = VectorBuilder(build)
    channels = block_channels(dialect)
    dialect_here = dialect(vectors)
    arithmetic = _Arithmetic(
        dialect_here,
        dialect_here.load_tables(given["coefficients"]),
        form,
        *(
            vectors.broadcast(build.trunc(given[label], I8), 4 * dialect.words)
            for label in ("code_range", "code_minimum")
        ),
    )

    def emit_block(element: ir.Value, channel: ir.Value, stored: ir.Value) -> None:
        block = _Block(
            vectors.at(given["accumulator"], build.shl(element, ir.Constant(I64, 2))),
            {label: vectors.at(given[label], build.shl(channel, ir.Constant(I64, 2))) for label in PER_CHANNEL},
            vectors.at(given["blocks"], build.mul(stored, ir.Constant(I64, block_bytes(dialect)))),
        )
        out = vectors.at(given["out"], element)
        for number, codes in enumerate(arithmetic.codes(block)):
            vectors.store(codes, vectors.at(out, codes.type.count * number))

    walk_blocks(vectors, given, channels, GROUP_CHANNELS, emit_block)
    build.ret(vectors.any_bits(build.load(arithmetic.sums_seen)))
    return function
