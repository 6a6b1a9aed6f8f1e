"""Timing in turn: every contestant once, then all of them again, so that a change of the machine's mood hits all."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_SHORTEST = 200e-6
"""Seconds; what takes less is repeated within one measurement."""

_PAUSE = 5e-3
"""Seconds; OpenMP's and ONNX Runtime's threads give up spinning in less."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: the median of all measurements, and the quartiles around it."""

    median: float
    lower: float
    upper: float


def in_turn(runs: Sequence[Callable[[], Any]], rounds: int, threads: int = 1) -> list[Timing]:
    """Time functions in turn (A B C A B C ...).

    Threads that have worked spin for a while, each library's own: with several threads there is a pause between two
    functions, or one's would keep a core from the next one's.
    """
    repeats = []
    for run in runs:
        run()
        start = time.perf_counter()
        run()
        repeats.append(max(1, int(_SHORTEST / max(time.perf_counter() - start, 1e-7))))
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, count, taken in zip(runs, repeats, seconds, strict=True):
            if threads > 1:
                time.sleep(_PAUSE)
            run()  # brings this one's arrays back into the caches
            start = time.perf_counter()
            for _ in range(count):
                run()
            taken.append((time.perf_counter() - start) / count)
    timings = []
    for taken in seconds:
        lower, median, upper = statistics.quantiles(taken, n=4)
        timings.append(Timing(median, lower, upper))
    return timings
