"""LLVM vector instructions by name, on top of llvmlite's builder. Knows neither Numba nor any kernel."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from llvmlite import ir

I8: Final = ir.IntType(8)
I16: Final = ir.IntType(16)
I32: Final = ir.IntType(32)
I64: Final = ir.IntType(64)
POINTER: Final = I8.as_pointer()

CACHE_LINE: Final = 64
"""Bytes that are fetched together."""

_LETTERS: Final = {1: "i1", 8: "i8", 16: "i16", 32: "i32", 64: "i64"}


def vector(bits: int, lanes: int) -> ir.VectorType:
    """Return the type of ``lanes`` integers of ``bits`` bits."""
    return ir.VectorType(ir.IntType(bits), lanes)


def splat(kind: ir.VectorType, value: int) -> ir.Constant:
    """Return a vector that holds one number in every lane."""
    return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)


def constants(kind: ir.VectorType, values: Sequence[int]) -> ir.Constant:
    """Return a vector of given numbers."""
    return ir.Constant(kind, [ir.Constant(kind.element, value) for value in values])


class VectorBuilder:
    """A builder of vector code in one function.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Positioned where code goes; also usable directly for plain arithmetic.
    """

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.ir = builder

    def call(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        """Call an LLVM intrinsic by its full name."""
        module = self.ir.module
        declared = module.globals.get(name)
        if declared is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            declared = ir.Function(module, kind, name)
        return self.ir.call(declared, arguments)

    def _lanewise(self, operation: str, *arguments: ir.Value) -> ir.Value:
        kind = arguments[0].type
        name = f"llvm.{operation}.v{kind.count}{_LETTERS[kind.element.width]}"
        return self.call(name, kind, *arguments)

    def smax(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Signed maximum."""
        return self._lanewise("smax", a, b)

    def smin(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Signed minimum."""
        return self._lanewise("smin", a, b)

    def umin(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Unsigned minimum."""
        return self._lanewise("umin", a, b)

    def add_saturating(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Unsigned sum that stops at the largest number."""
        return self._lanewise("uadd.sat", a, b)

    def subtract_saturating(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Unsigned difference that stops at 0."""
        return self._lanewise("usub.sat", a, b)

    def magnitude(self, a: ir.Value) -> ir.Value:
        """Absolute value; that of the smallest number is itself."""
        kind = a.type
        name = f"llvm.abs.v{kind.count}{_LETTERS[kind.element.width]}"
        # Told that the smallest number never occurs, LLVM masks the sign bit away before every product.
        return self.call(name, kind, a, ir.Constant(ir.IntType(1), 0))

    def product_of_low_halves(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Unsigned product of the lower halves of 64-bit lanes; LLVM makes one instruction of it."""
        low = splat(a.type, 0xFFFFFFFF)
        return self.ir.mul(self.ir.and_(a, low), self.ir.and_(b, low))

    def high_unsigned(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Upper half of the unsigned product; LLVM makes one instruction of it in 16-bit lanes."""
        return self._high(self.ir.zext, a, b)

    def high_signed(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Upper half of the signed product."""
        return self._high(self.ir.sext, a, b)

    def _high(self, extend: Any, a: ir.Value, b: ir.Value) -> ir.Value:
        kind = a.type
        double = vector(2 * kind.element.width, kind.count)
        product = self.ir.mul(extend(a, double), extend(b, double))
        return self.ir.trunc(self.ir.lshr(product, splat(double, kind.element.width)), kind)

    def shuffle(self, a: ir.Value, b: ir.Value, order: Sequence[int]) -> ir.Value:
        """Pick lanes of ``a`` and then ``b`` by number."""
        return self.ir.shuffle_vector(a, b, constants(vector(32, len(order)), order))

    def broadcast(self, scalar: ir.Value, lanes: int) -> ir.Value:
        """Repeat a scalar in every lane."""
        kind = ir.VectorType(scalar.type, lanes)
        first = self.ir.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.shuffle(first, first, [0] * lanes)

    def at(self, pointer: ir.Value, offset: ir.Value | int) -> ir.Value:
        """Return a byte pointer moved by ``offset`` bytes."""
        if isinstance(offset, int):
            offset = ir.Constant(I64, offset)
        return self.ir.gep(pointer, [offset])

    def load(self, pointer: ir.Value, kind: ir.Type) -> ir.Value:
        """Load from any address."""
        return self.ir.load(self.ir.bitcast(pointer, kind.as_pointer()), align=1)

    def store(self, value: ir.Value, pointer: ir.Value) -> None:
        """Store to any address."""
        self.ir.store(value, self.ir.bitcast(pointer, value.type.as_pointer()), align=1)

    def variable(self, value: ir.Value) -> ir.Value:
        """Return a place for a value that loops change, with its first value in it; LLVM keeps it in a register."""
        place = self.ir.alloca(value.type)
        self.ir.store(value, place)
        return place

    def any_bits(self, a: ir.Value) -> ir.Value:
        """Return the bits that any lane has."""
        name = f"llvm.vector.reduce.or.v{a.type.count}{_LETTERS[a.type.element.width]}"
        return self.call(name, a.type.element, a)

    def prefetch(self, pointer: ir.Value) -> None:
        """Ask for a cache line that will be read; any address will do."""
        reading, all_levels, data = (ir.Constant(I32, number) for number in (0, 3, 1))
        self.call("llvm.prefetch.p0", ir.VoidType(), pointer, reading, all_levels, data)

    @contextmanager
    def loop(self, start: ir.Value, stop: ir.Value, step: int) -> Iterator[ir.Value]:
        """Emit a loop over the int64 numbers from ``start`` up to ``stop``; yields the number."""
        before = self.ir.block
        head = self.ir.append_basic_block("loop.head")
        body = self.ir.append_basic_block("loop.body")
        after = self.ir.append_basic_block("loop.after")
        self.ir.branch(head)
        self.ir.position_at_end(head)
        index = self.ir.phi(I64)
        index.add_incoming(start, before)
        self.ir.cbranch(self.ir.icmp_signed("<", index, stop), body, after)
        self.ir.position_at_end(body)
        yield index
        following = self.ir.add(index, ir.Constant(I64, step))
        index.add_incoming(following, self.ir.block)
        self.ir.branch(head)
        self.ir.position_at_end(after)

    @contextmanager
    def fold(
        self, start: ir.Value, last: ir.Value, values: Sequence[ir.Value]
    ) -> Iterator[tuple[ir.Value, list[ir.Value]]]:
        """Emit a loop over the int64 numbers from ``start`` to ``last``, one at least, that carries values along.

        Yields the number and a list of the values so far, the elements of which the body replaces by the next ones.
        After the loop the list holds the final values.
        """
        before = self.ir.block
        body = self.ir.append_basic_block("fold.body")
        after = self.ir.append_basic_block("fold.after")
        self.ir.branch(body)
        self.ir.position_at_end(body)
        index = self.ir.phi(I64)
        carried = [self.ir.phi(value.type) for value in values]
        index.add_incoming(start, before)
        for phi, value in zip(carried, values, strict=True):
            phi.add_incoming(value, before)
        results = list(carried)
        yield index, results
        following = self.ir.add(index, ir.Constant(I64, 1))
        index.add_incoming(following, self.ir.block)
        for phi, value in zip(carried, results, strict=True):
            phi.add_incoming(value, self.ir.block)
        self.ir.cbranch(self.ir.icmp_signed("<=", following, last), body, after)
        self.ir.position_at_end(after)


def define(
    module: ir.Module,
    name: str,
    arguments: Sequence[tuple[str, ir.Type]],
    disjoint: bool = True,
    result: ir.Type | None = None,
) -> tuple[ir.Function, dict[str, ir.Value]]:
    """Add a function to a module; return it with its arguments by name.

    Parameters
    ----------
    disjoint : bool
        Whether no two pointers lead to the same bytes.
    result : ir.Type, optional
        What it returns; nothing if None.
    """
    kind_of_function = ir.FunctionType(result or ir.VoidType(), [kind for _, kind in arguments])
    function = ir.Function(module, kind_of_function, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    named = {}
    for argument, (label, kind) in zip(function.args, arguments, strict=True):
        argument.name = label
        if disjoint and kind is POINTER:
            argument.add_attribute("noalias")
        named[label] = argument
    return function, named
