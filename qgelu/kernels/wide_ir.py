"""The fused wide kernel as vector instructions: docs/arithmetic.md, equations (20) to (25).

A *block* is a few vectors of int32 accumulators. Where 64 bits are needed, even and odd lanes are worked on apart: a
lane's 64 bits then hold one number without any moving about.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

from llvmlite import ir

from qgelu.kernels.block_walk import walk_blocks
from qgelu.kernels.vector_ir import CACHE_LINE, I16, I32, I64, POINTER, VectorBuilder, constants, define, splat, vector

GROUP_CHANNELS: Final = 256
"""Channels that are worked on in all rows before the next ones: their parameters stay in the first-level cache."""

RESULT_PARAMETERS: Final = ("linear_multiplier", "tail_multiplier", "offset", "output_shift")

PER_CHANNEL: Final = ("bias", "lower", "upper", "left_shift")
POINTERS: Final = ("accumulator", *PER_CHANNEL, "blocks", "coefficients", "upper_coefficients", "out")
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
    parameters : tuple of str
        int64 parameters of a block: per vector, of its even lanes, then of its odd lanes.
    """

    words: ClassVar[int]
    unrolled: ClassVar[int]
    parameters: ClassVar[tuple[str, ...]] = ("argument_multiplier", "argument_shift", *RESULT_PARAMETERS)

    def __init__(self, vectors: VectorBuilder) -> None:
        self.vectors = vectors
        self.kind = vector(32, self.words)

    def argument(self, magnitude: ir.Value, read: Callable[[str], ir.Value], general: bool) -> ir.Value:
        """Return floor(magnitude * m / 2**(shift - 1)) + 1 in 64-bit lanes: twice (22), the last bit aside."""
        product = self.vectors.product_of_low_halves(magnitude, read("argument_multiplier"))
        return self.vectors.ir.add(self.vectors.ir.lshr(product, read("argument_shift")), splat(magnitude.type, 1))

    @abstractmethod
    def look_up(self, table: ir.Value, segments: list[ir.Value]) -> list[ir.Value]:
        """Return entries of 32 int32 at a pointer, for several vectors of numbers."""


class PairDialect(WideDialect):
    """Two vectors' upper coefficients are looked up, and their codes packed, as one vector of int16.

    64-bit lanes have an arithmetic shift, so that nothing is lifted.
    """

    @abstractmethod
    def look_up_pair(self, table: ir.Value, segments: ir.Value) -> ir.Value:
        """Return entries of 32 int16 at a pointer."""

    @abstractmethod
    def words_at(self, pair: ir.Value, odd: int) -> ir.Value:
        """Return the even or odd lanes of int16 as int32."""

    @abstractmethod
    def packed_pair(self, low: ir.Value, high: ir.Value) -> ir.Value:
        """Return two vectors' int32 as one of uint16, with saturation."""


class Avx512(PairDialect):
    """One permute of two registers."""

    words = 16
    unrolled = 4

    def look_up(self, table: ir.Value, segments: list[ir.Value]) -> list[ir.Value]:
        """Use VPERMI2D."""
        name = "llvm.x86.avx512.vpermi2var.d.512"
        low, high = (self.vectors.load(self.vectors.at(table, 64 * k), self.kind) for k in range(2))
        return [self.vectors.call(name, self.kind, low, segment, high) for segment in segments]

    def look_up_pair(self, table: ir.Value, segments: ir.Value) -> ir.Value:
        """Use VPERMW on 32 int16 at a pointer."""
        row = self.vectors.load(table, segments.type)
        return self.vectors.call("llvm.x86.avx512.permvar.hi.512", segments.type, row, segments)

    def words_at(self, pair: ir.Value, odd: int) -> ir.Value:
        """Use VPMADDWD; with VNNI, LLVM makes one instruction of it and the sum that follows."""
        picks = constants(pair.type, [int(lane % 2 == odd) for lane in range(2 * self.words)])
        return self.vectors.call("llvm.x86.avx512.pmaddw.d.512", self.kind, pair, picks)

    def packed_pair(self, low: ir.Value, high: ir.Value) -> ir.Value:
        """Use VPACKUSDW, which works on 128 bits at a time, and put its quarters in order."""
        kind = vector(16, 2 * self.words)
        packed = self.vectors.call("llvm.x86.avx512.packusdw.512", kind, low, high)
        quads = self.vectors.ir.bitcast(packed, vector(64, 8))
        return self.vectors.ir.bitcast(self.vectors.shuffle(quads, quads, [0, 2, 4, 6, 1, 3, 5, 7]), kind)


class Avx512Ifma(Avx512):
    """The argument by a product of 52 bits, the upper half of which is what is needed."""

    parameters = ("argument_factor", "argument_multiplier", "argument_shift", *RESULT_PARAMETERS)

    def argument(self, magnitude: ir.Value, read: Callable[[str], ir.Value], general: bool) -> ir.Value:
        """Use VPMADD52HUQ with m * 2**(53 - shift), where that has 52 bits."""
        if general:
            return super().argument(magnitude, read, general)
        kind = magnitude.type
        low = self.vectors.ir.and_(magnitude, splat(kind, 0xFFFFFFFF))
        name = "llvm.x86.avx512.vpmadd52h.uq.512"
        return self.vectors.call(name, kind, splat(kind, 1), low, read("argument_factor"))


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
    are known to fit 32 bits: the clamps then follow in narrower lanes, where they are cheap. Without an arithmetic
    shift of 64-bit lanes the result is lifted by ``lift`` codes (which the stored offset contains), so that it is not
    negative. Likewise the sums of the first two Horner steps are known to fit 16 bits.
    """

    def __init__(self, dialect: WideDialect, given: dict[str, ir.Value], code_bits: int, general: bool) -> None:
        self.dialect, self.vectors, self.build = dialect, dialect.vectors, dialect.vectors.ir
        self.given, self.general = given, general
        self.words, self.doubles = dialect.kind, vector(64, dialect.words // 2)
        self.codes_kind = vector(code_bits, dialect.words)
        lift, code_range, minimum = (self.build.trunc(given[n], I32) for n in ("lift", "code_range", "code_minimum"))
        if general:
            lift = ir.Constant(I32, 0)
        self.pairs = dialect if isinstance(dialect, PairDialect) and not general else None
        self.lowest, self.highest, self.shift_of_codes = (
            self.vectors.broadcast(value, dialect.words)
            for value in (lift, self.build.add(lift, code_range), self.build.sub(minimum, lift))
        )

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
        doubled = []  # 2 u, with a last bit of no meaning
        for v, read in zip(vs, reads, strict=True):
            magnitudes = self._halves(vectors.magnitude(v))
            argument = self._joined([self._argument(magnitudes[k], read[k]) for k in range(2)])
            doubled.append(vectors.umin(argument, splat(self.words, (1 << 21) - 1)))
        codes = []
        tails = self._tails_of_pairs(self.pairs, doubled) if self.pairs else self._tails(doubled)
        for v, tail, read in zip(vs, tails, reads, strict=True):
            halves, linear = self._halves(tail), self._halves(vectors.smax(v, splat(self.words, 0)))
            codes.append(self._joined([self._result(linear[k], halves[k], read[k]) for k in range(2)]))
        return self._packed_pairs(self.pairs, codes) if self.pairs else [self._packed(code) for code in codes]

    def _packed(self, code: ir.Value) -> ir.Value:
        """Return codes as they are stored: (25)."""
        code = self.vectors.smin(self.vectors.smax(code, self.lowest), self.highest)
        return self.build.trunc(self.build.add(code, self.shift_of_codes), self.codes_kind)

    def _packed_pairs(self, dialect: PairDialect, codes: list[ir.Value]) -> list[ir.Value]:
        """Return codes as they are stored, the vectors of two as one: (25)."""
        stored = []
        kind = vector(16, 2 * self.words.count)
        code_range, minimum = (
            self.vectors.broadcast(self.build.trunc(self.given[name], I16), kind.count)
            for name in ("code_range", "code_minimum")
        )
        for low, high in zip(codes[::2], codes[1::2], strict=True):
            code = dialect.packed_pair(low, high)
            code = self.build.add(self.vectors.umin(code, code_range), minimum)
            stored.append(self.build.trunc(code, vector(8, kind.count)) if self.codes_kind.element.width == 8 else code)
        return stored

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
            offset = 4 * self.words.count * (2 * self.dialect.unrolled * self.dialect.parameters.index(name) + half)
            return self.vectors.load(self.vectors.at(parameters, offset), self.doubles)

        return read

    def _argument(self, magnitude: ir.Value, read: Callable[[str], ir.Value]) -> ir.Value:
        return self._kept_in_31_bits(self.dialect.argument(magnitude, read, self.general))

    def _kept_in_31_bits(self, value: ir.Value) -> ir.Value:
        return self.vectors.smin(value, splat(self.doubles, (1 << 31) - 1)) if self.general else value

    def _tails(self, doubled: list[ir.Value]) -> list[ir.Value]:
        """Return p(u): (23)."""
        build = self.build
        segments = [build.lshr(value, splat(self.words, 16)) for value in doubled]
        us = [build.lshr(value, splat(self.words, 1)) for value in doubled]
        fractions = [build.sub(build.and_(u, splat(self.words, 32767)), splat(self.words, 16384)) for u in us]
        first = self.dialect.look_up(self._row(self.given["degree"]), segments)
        return self._lower_steps(segments, fractions, first, 1)

    def _tails_of_pairs(self, dialect: PairDialect, doubled: list[ir.Value]) -> list[ir.Value]:
        """Return p(u): (23), with two steps in 16-bit lanes, where a pair's first vector has the even ones."""
        build, vectors = self.build, self.vectors
        kind = vector(16, 2 * self.words.count)
        highest = self.given["upper_coefficients"]
        next_highest = vectors.at(highest, 2 * SEGMENTS)
        half = splat(self.words, 16)
        segments, fractions, products = [], [], []
        for even, odd in zip(doubled[::2], doubled[1::2], strict=True):
            segments += [build.lshr(even, half), build.lshr(odd, half)]
            segment = self._merged(segments[-2], odd)
            # Twice the fraction: the upper half of a product is then the product shifted right by 15.
            twice = build.bitcast(self._merged(even, build.shl(odd, half)), self.words)
            twice = build.and_(twice, splat(self.words, 0xFFFEFFFE))
            twice = build.xor(twice, splat(self.words, 0x80008000))
            fractions += [build.ashr(part, splat(self.words, 17)) for part in (build.shl(twice, half), twice)]
            factor = build.bitcast(twice, kind)
            total = vectors.high_signed(dialect.look_up_pair(highest, segment), factor)
            total = build.add(total, dialect.look_up_pair(next_highest, segment))
            product = vectors.high_signed(total, factor)
            products += [dialect.words_at(product, place) for place in range(2)]
        row = self._row(build.sub(self.given["degree"], ir.Constant(I64, 2)))
        first = [build.add(*pair) for pair in zip(self.dialect.look_up(row, segments), products, strict=True)]
        return self._lower_steps(segments, fractions, first, 3)

    def _merged(self, even: ir.Value, odd: ir.Value) -> ir.Value:
        """Return the lower halves of ``even`` and the upper ones of ``odd`` in 16-bit lanes."""
        kind = vector(16, 2 * self.words.count)
        order = [lane + (lane % 2) * kind.count for lane in range(kind.count)]
        return self.vectors.shuffle(self.build.bitcast(even, kind), self.build.bitcast(odd, kind), order)

    def _row(self, power: ir.Value) -> ir.Value:
        """Return the pointer to all segments' coefficients of a power."""
        return self.vectors.at(self.given["coefficients"], self.build.mul(power, ir.Constant(I64, 4 * SEGMENTS)))

    def _lower_steps(
        self, segments: list[ir.Value], fractions: list[ir.Value], first: list[ir.Value], step: int
    ) -> list[ir.Value]:
        """Return p(u) from Horner sums: ``step`` is the number of the next step, one at least is left."""
        build, vectors = self.build, self.vectors
        degree = self.given["degree"]
        with vectors.fold(ir.Constant(I64, step), degree, first) as (number, tails):
            coefficients = self.dialect.look_up(self._row(build.sub(degree, number)), segments)
            for k, fraction in enumerate(fractions):
                product = build.ashr(build.mul(tails[k], fraction), splat(self.words, 15))
                tails[k] = build.add(coefficients[k], product)
        return [vectors.smax(tail, splat(self.words, 0)) for tail in tails]

    def _result(self, linear: ir.Value, tail: ir.Value, read: Callable[[str], ir.Value]) -> ir.Value:
        """Return the code counted from 0 (lifted by ``lift``) in 64-bit lanes: (24), (25)."""
        build = self.build
        total = build.add(self.vectors.product_of_low_halves(linear, read("linear_multiplier")), read("offset"))
        total = build.sub(total, self.vectors.product_of_low_halves(tail, read("tail_multiplier")))
        if self.general:
            total = self.vectors.smax(total, splat(self.doubles, 0))
            return self._kept_in_31_bits(build.lshr(total, read("output_shift")))
        shift = build.ashr if isinstance(self.dialect, PairDialect) else build.lshr
        return shift(total, read("output_shift"))


def block_channels(dialect: type[WideDialect]) -> int:
    """Return how many channels one block has."""
    return dialect.words * dialect.unrolled


def block_bytes(dialect: type[WideDialect]) -> int:
    """Return the size of one block's parameters."""
    return 8 * block_channels(dialect) * len(dialect.parameters)


def emit(module: ir.Module, name: str, dialect: type[WideDialect], code_bits: int, general: bool) -> ir.Function:
    """Add the kernel to a module and return it.

    Parameters
    ----------
    code_bits : int
        8 or 16: size of one code in memory.
    general : bool
        Whether nothing is known of u and the result but that they fit 64 bits, and of Horner sums but that their
        products with a fraction fit 32.

    Notes
    -----
    The function's arguments are :data:`POINTERS`, to accumulators int32 [rows, width], bias, lower, upper, left_shift
    int32 [width], blocks of parameters, coefficients int32 [degree + 1, 32], the two of the highest powers once more as
    int16 [2, 32], the highest first, out [rows, width]; then :data:`NUMBERS`,
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
        # A strip of the next row is read next; it begins on another page, which CPUs do not foresee.
        following = vectors.at(given["accumulator"], build.shl(build.add(element, given["width"]), ir.Constant(I64, 2)))
        for line in range(0, 4 * block_channels(dialect), CACHE_LINE):
            vectors.prefetch(vectors.at(following, line))
        size = code_bits // 8
        out = vectors.at(given["out"], build.mul(element, ir.Constant(I64, size)))
        for part, vector_of_codes in enumerate(codes):
            vectors.store(vector_of_codes, vectors.at(out, size * vector_of_codes.type.count * part))

    walk_blocks(vectors, given, block_channels(dialect), GROUP_CHANNELS, block)
    build.ret_void()
    return function
