"""Table kernels: one code in, one code out."""

from typing import Any

import numba

from qgelu.kernels.options import JIT


@numba.njit(**JIT)
def lookup(codes: Any, out: Any, table: Any) -> None:
    """Write ``out[i] = table[codes[i]]``.

    Parameters
    ----------
    codes : uint8 or uint16 array of shape [n]
        Bit patterns of the input codes (signed codes reinterpreted as unsigned).
    out : array of shape [n]
        Same dtype as ``table``.
    table : array of shape [256] or [65536]
        Output codes, indexed by bit pattern.
    """
    for i in range(codes.size):
        out[i] = table[codes[i]]
