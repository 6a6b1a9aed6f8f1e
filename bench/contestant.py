"""One way to do a job, and how its result is checked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Contestant:
    """One way to do a job (or what bounds it).

    Attributes
    ----------
    name : str
    run : callable
        Does the job once and returns the result.
    check : callable
        Takes a result; returns None, or what is wrong with it.
    """

    name: str
    run: Callable[[], Any]
    check: Callable[[Any], str | None]


def equal(expected: NDArray[Any]) -> Callable[[Any], str | None]:
    def check(result: Any) -> str | None:
        wrong = int(np.count_nonzero(result != expected))
        return f"{wrong} of {expected.size} differ" if wrong else None

    return check
