"""One array in pieces on Numba's own threads, which wait by spinning: they start in a microsecond or two.

Threads that wait in the operating system (:mod:`qgelu.kernels.workers`) take 50 to 100 us to wake, as long as a kernel
takes for a megabyte. They remain for whatever cannot run here.
"""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Final

import numba
from numba.core import config, types
from numba.extending import overload
from numba.np.ufunc.parallel import threading_layer as _threading_layer

from qgelu.kernels.options import compiled, named
from qgelu.kernels.registry import IMPLEMENTATIONS, Implementation
from qgelu.kernels.version import VERSION

NUMBER_OF_THREADS: Final[int] = getattr(config, "NUMBA_NUM_THREADS")  # noqa: B009 (Numba sets it at run time)
"""Threads that Numba has."""

THREAD_SAFE_LAYERS: Final = frozenset({"omp", "tbb"})
"""Numba's threading layers that several threads may enter at once; the other one ends the process then."""


threading_layer: Any = _threading_layer  # untyped


def _label(number: int) -> str:
    return f"{IMPLEMENTATIONS[number].kernel}_{IMPLEMENTATIONS[number].path}"


def _call(number: int, source: Any, target: Any, arguments: Any) -> None:
    """Run the implementation of that number; only in compiled code."""
    raise NotImplementedError


@overload(_call, prefer_literal=True)
def _typed_call(number: Any, source: Any, target: Any, arguments: Any) -> Any:
    # The compiled function must not stand in a closure of what is cached: its pickle differs in every process.
    if not isinstance(number, types.IntegerLiteral):
        return None
    function = IMPLEMENTATIONS[number.literal_value].function()

    @named(_label(number.literal_value))
    def run(number: Any, source: Any, target: Any, arguments: Any) -> Any:
        function(source, target, *arguments)

    return run


@functools.cache
def _make(number: int, version: int) -> Any:
    @compiled(_label(number), parallel=True)
    def run(source: Any, target: Any, width: int, count: int, arguments: Any) -> int:
        """Run a kernel on ``count`` pieces of whole rows of ``width`` elements."""
        rows = source.size // width
        for piece in numba.prange(count):
            start, stop = rows * piece // count * width, rows * (piece + 1) // count * width
            _call(number, source[start:stop], target[start:stop], arguments)
        return version

    return run


class _Team:
    """Numba's threads as far as this process may use them.

    Attributes
    ----------
    usable : bool
        Whether the threading layer bears several callers, and this process is no fork of one that has used it.
    """

    def __init__(self) -> None:
        self.usable = True
        self.used = False
        self.lock = threading.Lock()

    def after_fork(self) -> None:
        """GNU OpenMP ends a forked process that enters it."""
        self.lock = threading.Lock()
        self.usable = self.usable and not self.used

    def run(self, function: Any, source: Any, target: Any, width: int, count: int, arguments: tuple[Any, ...]) -> bool:
        """Call a function that :func:`_make` made, unless somebody else does just now."""
        if not self.usable or not self.lock.acquire(blocking=False):
            return False
        try:
            self.used = True
            if count < NUMBER_OF_THREADS:
                self._run_on(count, function, source, target, width, arguments)
            else:
                function(source, target, width, count, arguments)
            self.usable = str(threading_layer()) in THREAD_SAFE_LAYERS
        finally:
            self.lock.release()
        return True

    @staticmethod
    def _run_on(count: int, function: Any, source: Any, target: Any, width: int, arguments: tuple[Any, ...]) -> None:
        before = numba.get_num_threads()
        numba.set_num_threads(min(count, before))
        try:
            function(source, target, width, count, arguments)
        finally:
            numba.set_num_threads(before)


_TEAM = _Team()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TEAM.after_fork)


def in_pieces(implementation: Implementation) -> Callable[[Any, Any, int, int, tuple[Any, ...]], bool]:
    """Return what runs a kernel on several threads.

    It takes source and target, contiguous arrays of shape [n]; the elements of a row, of which n is a multiple; the
    number of pieces, a thread each as far as there are; and the tuple of what follows source and target in a call of
    the kernel. It returns False, and does nothing, if Numba's threads are not to be had just now.
    """
    return functools.partial(_TEAM.run, _make(IMPLEMENTATIONS.index(implementation), VERSION))
