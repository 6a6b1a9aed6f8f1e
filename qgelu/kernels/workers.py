"""Threads that wait for pieces of work; kernels release the GIL, so they run at the same time.

A queue of the C library hands a piece over in 4 us; an executor of concurrent.futures takes 11 to 16, a fifth of what a
kernel takes for a megabyte.
"""

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

_Result = BaseException | None
_Task = tuple[Callable[..., None], tuple[Any, ...], SimpleQueue[_Result]]


class _Workers:
    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Forget threads that a fork did not copy, and a lock that one of them may have held."""
        self.lock = threading.Lock()
        self.tasks: SimpleQueue[_Task] = SimpleQueue()
        self.count = 0

    def ensure(self, wanted: int) -> None:
        """Have that many threads, or one per CPU if that is less."""
        with self.lock:
            for _ in range(min(wanted, os.cpu_count() or 1) - self.count):
                threading.Thread(target=_work, args=(self.tasks,), name="qgelu", daemon=True).start()
                self.count += 1


def _work(tasks: SimpleQueue[_Task]) -> None:
    while True:
        function, piece, results = tasks.get()
        try:
            function(*piece)
            results.put(None)
        except BaseException as error:
            results.put(error)


_WORKERS = _Workers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WORKERS.start_anew)


def run_pieces(function: Callable[..., None], pieces: Sequence[tuple[Any, ...]]) -> None:
    """Call ``function`` once per piece: the first in this thread, the others in threads kept for it.

    Raises
    ------
    BaseException
        What a piece raised, after all have ended.
    """
    others = pieces[1:]
    if others:
        _WORKERS.ensure(len(others))
    results: SimpleQueue[_Result] = SimpleQueue()
    for piece in others:
        _WORKERS.tasks.put((function, piece, results))
    failures: list[BaseException] = []
    try:
        function(*pieces[0])
    except BaseException as error:
        failures.append(error)
    failures += [failure for failure in (results.get() for _ in others) if failure is not None]
    if failures:
        raise failures[0]
