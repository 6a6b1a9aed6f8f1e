"""Threads that wait for pieces of work; kernels release the GIL, so they run at the same time."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class _Workers:
    def __init__(self) -> None:
        self.pool: ThreadPoolExecutor | None = None

    def forget(self) -> None:
        """Leave threads behind that a fork did not copy."""
        self.pool = None

    def run(self, function: Callable[..., None], pieces: Sequence[tuple[Any, ...]]) -> None:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="qgelu")
        futures = [self.pool.submit(function, *piece) for piece in pieces[1:]]
        function(*pieces[0])
        for future in futures:
            future.result()


_WORKERS = _Workers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WORKERS.forget)


def run_pieces(function: Callable[..., None], pieces: Sequence[tuple[Any, ...]]) -> None:
    """Call ``function`` once per piece: the first in this thread, the others in threads kept for it."""
    _WORKERS.run(function, pieces)
