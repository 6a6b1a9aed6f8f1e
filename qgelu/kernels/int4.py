"""Codes of 4 bits, two to a byte, as ONNX stores INT4 and UINT4: the first in the lower half.

Plain loops: LLVM makes vector code of them that runs at the speed of memory.
"""

from typing import Any, Final

import numpy as np

from qgelu.kernels.options import compiled
from qgelu.kernels.version import VERSION


def _make_pack(version: int) -> Any:
    @compiled("portable")
    def pack(codes: Any, packed: Any) -> int:
        """Write two codes to a byte; the upper half of an odd last byte is 0.

        Parameters
        ----------
        codes : uint8 array of shape [n], contiguous
            Bit patterns; the lower 4 bits count.
        packed : uint8 array of shape [(n + 1) // 2], contiguous
            Shares no memory with ``codes``.
        """
        pairs = codes.size // 2
        for k in range(pairs):
            packed[k] = (codes[2 * k] & np.uint8(15)) | (codes[2 * k + 1] << np.uint8(4))
        if codes.size % 2:
            packed[pairs] = codes[2 * pairs] & np.uint8(15)
        return version

    return pack


def _make_unpack(version: int) -> Any:
    @compiled("portable")
    def unpack(packed: Any, codes: Any, sign: Any) -> int:
        """Write one code to a byte.

        Parameters
        ----------
        packed : uint8 array of shape [(n + 1) // 2], contiguous
        codes : uint8 array of shape [n], contiguous
            Receives bit patterns; shares no memory with ``packed``.
        sign : uint8
            8 if codes are signed, 0 if not: (c ^ 8) - 8 extends the sign of 4 bits.
        """
        pairs = codes.size // 2
        for k in range(pairs):
            byte = packed[k]
            codes[2 * k] = ((byte & np.uint8(15)) ^ sign) - sign
            codes[2 * k + 1] = ((byte >> np.uint8(4)) ^ sign) - sign
        if codes.size % 2:
            codes[2 * pairs] = ((packed[pairs] & np.uint8(15)) ^ sign) - sign
        return version

    return unpack


PACK: Final = {"portable": _make_pack(VERSION)}
"""The kernel by path."""

UNPACK: Final = {"portable": _make_unpack(VERSION)}
"""The kernel by path."""
