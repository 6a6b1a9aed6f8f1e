"""Every kernel that has several paths, and the choice between them."""

import functools
import importlib
from dataclasses import dataclass
from typing import Any, Final

from qgelu.kernels.cpu import PATHS, usable


@dataclass(frozen=True)
class Implementation:
    """One path of one kernel.

    Attributes
    ----------
    kernel : str
        ``table_8`` (256 entries of 8 bits), ``table_16`` (codes or entries of 16 bits), ``narrow`` (int32 to
        8 bits), ``wide`` (int32 to 16 bits), ``pack_4``, ``unpack_4`` (codes of 4 bits to two in a byte, and back).
    path : str
        A key of :data:`qgelu.kernels.cpu.PATHS`.
    module, table : str
        Where the compiled function is: under the path's name in a mapping of that module.
    more_features : frozenset of str
        Features of LLVM's that it needs beyond the path's.
    """

    kernel: str
    path: str
    module: str
    table: str
    more_features: frozenset[str] = frozenset()

    @property
    def features(self) -> frozenset[str]:
        """Everything the CPU must have."""
        return PATHS[self.path] | self.more_features

    def function(self) -> Any:
        """Return the Numba function; it compiles at its first call, and only where the CPU has the features."""
        return getattr(importlib.import_module(self.module), self.table)[self.path]


_VBMI: Final = frozenset({"avx512vbmi"})

IMPLEMENTATIONS: Final = (
    Implementation("table_8", "portable", "qgelu.kernels.table_vector", "LOOKUP"),
    Implementation("table_8", "neon", "qgelu.kernels.table_vector", "LOOKUP"),
    Implementation("table_8", "avx2", "qgelu.kernels.table_vector", "LOOKUP"),
    Implementation("table_8", "avx512", "qgelu.kernels.table_vector", "LOOKUP", _VBMI),
    Implementation("table_16", "portable", "qgelu.kernels.table_vector", "LOOKUP_16"),
    Implementation("narrow", "portable", "qgelu.kernels.narrow_vector", "REQUANTIZE"),
    Implementation("narrow", "avx2", "qgelu.kernels.narrow_vector", "REQUANTIZE"),
    Implementation("narrow", "avx512", "qgelu.kernels.narrow_vector", "REQUANTIZE"),
    Implementation("wide", "portable", "qgelu.kernels.wide_vector", "REQUANTIZE"),
    Implementation("wide", "avx2", "qgelu.kernels.wide_vector", "REQUANTIZE"),
    Implementation("wide", "avx512", "qgelu.kernels.wide_vector", "REQUANTIZE"),
    Implementation("wide", "avx512_ifma", "qgelu.kernels.wide_vector", "REQUANTIZE"),
    Implementation("pack_4", "portable", "qgelu.kernels.int4", "PACK"),
    Implementation("unpack_4", "portable", "qgelu.kernels.int4", "UNPACK"),
)

KERNELS: Final = tuple(dict.fromkeys(item.kernel for item in IMPLEMENTATIONS))


def choose(kernel: str, paths: list[str], features: frozenset[str]) -> Implementation:
    """Return a kernel's best implementation among ``paths`` (the best last) on a CPU with ``features``."""
    candidates = {item.path: item for item in IMPLEMENTATIONS if item.kernel == kernel and item.features <= features}
    return next(candidates[path] for path in reversed(paths) if path in candidates)


@functools.cache
def selected(kernel: str) -> Implementation:
    """Return the implementation that this process uses; decided once.

    Raises
    ------
    QGeluError
        If the environment asks for a path that this CPU does not offer.
    """
    return choose(kernel, *usable())
