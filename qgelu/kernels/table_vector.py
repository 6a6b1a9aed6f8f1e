"""Lookups in a table of 256 bytes, many codes at a time: the paths of the 8-bit table kernel."""

from typing import Any, Final

from numba.core import types
from numba.extending import intrinsic

from qgelu.kernels.options import compiled
from qgelu.kernels.table import lookup as portable_lookup
from qgelu.kernels.table_ir import Avx2, Avx512Vbmi, ByteTable, Neon, emit
from qgelu.kernels.vector_ir import POINTER
from qgelu.kernels.version import VERSION

KINDS: Final[dict[str, type[ByteTable]]] = {"avx2": Avx2, "avx512": Avx512Vbmi, "neon": Neon}
_NAMES: Final = tuple(KINDS)


def _typed_run(typing_context: Any, version: Any, path: Any, codes: Any, table: Any, out: Any, n: Any) -> Any:
    """Run the kernel of one instruction set: qgelu.kernels.table_ir.emit."""
    signature = types.void(version, path, codes, table, out, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointers = [
            builder.bitcast(context.make_array(kind)(context, builder, value).data, POINTER)
            for kind, value in zip(signature.args[2:5], arguments[2:5], strict=True)
        ]
        label = _NAMES[path.literal_value]
        name = f"qgelu_table_{label}"
        function = builder.module.globals.get(name) or emit(builder.module, name, KINDS[label])
        builder.call(function, [*pointers, arguments[5]])
        return context.get_dummy_value()

    return signature, generate


_run: Any = intrinsic(prefer_literal=True)(_typed_run)


def _make(path: int, version: int) -> Any:
    lanes = KINDS[_NAMES[path]].lanes

    @compiled(_NAMES[path])
    def lookup(codes: Any, out: Any, table: Any) -> None:
        """Write ``out[i] = table[codes[i]]``.

        Parameters
        ----------
        codes : uint8 array of shape [n], contiguous
            Bit patterns of the input codes.
        out : array of shape [n], contiguous
            Same dtype as ``table``; may be ``codes``.
        table : (u)int8 array of shape [256], contiguous
        """
        if codes.size >= lanes:
            _run(version, path, codes, table, out, codes.size)
        else:
            for i in range(codes.size):
                out[i] = table[codes[i]]

    return lookup


LOOKUP: Final = {"portable": portable_lookup, **{name: _make(number, VERSION) for number, name in enumerate(_NAMES)}}
"""The kernel by path."""

LOOKUP_16: Final = {"portable": portable_lookup}
"""The kernel for codes or entries of 16 bits, by path."""
