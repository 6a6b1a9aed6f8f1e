"""The 8-bit table kernel as vector instructions: 256 entries looked up in many lanes at once.

Input and output may be the same array: every vector is read before it, or anything after it, is written.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from llvmlite import ir

from qgelu.kernels.vector_ir import I64, POINTER, VectorBuilder, define, splat, vector


class ByteTable(ABC):
    """How one instruction set looks bytes up.

    Attributes
    ----------
    lanes : int
        Bytes of one vector.
    unrolled : int
        Vectors per pass of the main loop; a power of two.
    """

    lanes: ClassVar[int]
    unrolled: ClassVar[int]

    def __init__(self, vectors: VectorBuilder, table: ir.Value) -> None:
        self.vectors = vectors
        self.kind = vector(8, self.lanes)
        self.prepare(table)

    @abstractmethod
    def prepare(self, table: ir.Value) -> None:
        """Load the table, at a pointer to 256 bytes, into vectors."""

    @abstractmethod
    def look_up(self, codes: list[ir.Value]) -> list[ir.Value]:
        """Return the entries of several vectors of codes."""


class Avx512Vbmi(ByteTable):
    """Two 128-entry byte permutes, and a blend on the codes' top bit."""

    lanes = 64
    unrolled = 4

    def prepare(self, table: ir.Value) -> None:
        """Hold the table in four registers."""
        self.parts = [self.vectors.load(self.vectors.at(table, 64 * k), self.kind) for k in range(4)]

    def look_up(self, codes: list[ir.Value]) -> list[ir.Value]:
        """Use VPERMI2B twice per vector."""
        name, build = "llvm.x86.avx512.vpermi2var.qi.512", self.vectors.ir
        found = []
        for code in codes:
            low, high = (self.vectors.call(name, self.kind, self.parts[k], code, self.parts[k + 1]) for k in (0, 2))
            is_high = build.icmp_signed("<", code, splat(self.kind, 0))
            found.append(build.select(is_high, high, low))
        return found


class Avx2(ByteTable):
    """16 rows of 16 entries by PSHUFB, which gives 0 where an index has its top bit set.

    With y_r = code - 16 r modulo 256, r = 0 to 7, a code in row q < 8 has a clear top bit for all r <= q, and one in
    row q >= 8 for all r >= q - 7. Each half of the table holds differences (XOR) of neighbouring rows, so that the XOR
    of whatever takes part is the entry; the upper half starts from row 15. The code's top bit chooses the half.
    """

    lanes = 32
    unrolled = 2

    def prepare(self, table: ir.Value) -> None:
        """Form the differences of rows."""
        build = self.vectors.ir
        rows = [self.vectors.load(self.vectors.at(table, 16 * number), vector(8, 16)) for number in range(16)]
        low = [rows[0], *(build.xor(rows[r], rows[r - 1]) for r in range(1, 8))]
        high = [rows[15], *(build.xor(rows[r + 7], rows[r + 8]) for r in range(1, 8))]
        self.low, self.high = (
            [self.vectors.shuffle(row, row, [*range(16)] * 2) for row in half] for half in (low, high)
        )

    def look_up(self, codes: list[ir.Value]) -> list[ir.Value]:
        """Go through the rows, with all vectors at each."""
        build, index = self.vectors.ir, list(codes)
        low = [self._row(self.low[0], code) for code in codes]
        high = [self._row(self.high[0], build.and_(code, splat(self.kind, 15))) for code in codes]
        for r in range(1, 8):
            for k in range(len(codes)):
                index[k] = build.sub(index[k], splat(self.kind, 16))
                low[k] = build.xor(low[k], self._row(self.low[r], index[k]))
                high[k] = build.xor(high[k], self._row(self.high[r], index[k]))
        zero = splat(self.kind, 0)
        return [build.select(build.icmp_signed("<", code, zero), high[k], low[k]) for k, code in enumerate(codes)]

    def _row(self, row: ir.Value, index: ir.Value) -> ir.Value:
        return self.vectors.call("llvm.x86.avx2.pshuf.b", self.kind, row, index)


class Neon(ByteTable):
    """Four tables of 64 entries by TBL and TBX, which leave lanes alone whose index is out of range."""

    lanes = 16
    unrolled = 4

    def prepare(self, table: ir.Value) -> None:
        """Hold the table in sixteen registers."""
        self.parts = [self.vectors.load(self.vectors.at(table, 16 * k), self.kind) for k in range(16)]

    def look_up(self, codes: list[ir.Value]) -> list[ir.Value]:
        """Use one TBL and three TBX per vector."""
        found = []
        for code in codes:
            entries = self.vectors.call("llvm.aarch64.neon.tbl4.v16i8", self.kind, *self.parts[:4], code)
            for k in range(1, 4):
                index = self.vectors.ir.sub(code, splat(self.kind, 64 * k))
                parts = self.parts[4 * k : 4 * k + 4]
                entries = self.vectors.call("llvm.aarch64.neon.tbx4.v16i8", self.kind, entries, *parts, index)
            found.append(entries)
        return found


def emit(module: ir.Module, name: str, kind: type[ByteTable]) -> ir.Function:
    """Add the kernel to a module and return it.

    Notes
    -----
    The function's arguments: pointers to codes [n], table [256], out [n], then int64 n, at least ``kind.lanes``.
    The last vector, which may overlap the one before, is read before anything is written.
    """
    labels = [("codes", POINTER), ("table", POINTER), ("out", POINTER), ("n", I64)]
    function, given = define(module, name, labels, disjoint=False)
    build = ir.IRBuilder(function.append_basic_block("entry"))
    vectors = VectorBuilder(build)
    lanes = kind.lanes
    table = kind(vectors, given["table"])
    final = build.sub(given["n"], ir.Constant(I64, lanes))
    (last,) = table.look_up([vectors.load(vectors.at(given["codes"], final), table.kind)])

    def translate(start: ir.Value, count: int) -> None:
        places = [build.add(start, ir.Constant(I64, lanes * k)) for k in range(count)]
        codes = [vectors.load(vectors.at(given["codes"], place), table.kind) for place in places]
        for place, entries in zip(places, table.look_up(codes), strict=True):
            vectors.store(entries, vectors.at(given["out"], place))

    unrolled = lanes * kind.unrolled
    long_end = build.and_(given["n"], ir.Constant(I64, -unrolled))
    with vectors.loop(ir.Constant(I64, 0), long_end, unrolled) as start:
        translate(start, kind.unrolled)
    with vectors.loop(long_end, build.and_(given["n"], ir.Constant(I64, -lanes)), lanes) as start:
        translate(start, 1)
    vectors.store(last, vectors.at(given["out"], final))
    build.ret_void()
    return function
