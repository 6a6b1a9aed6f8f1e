"""The search for the two ends of a range that make an error least."""

from collections.abc import Callable
from typing import Final

_COARSE_STEPS: Final = 17  # ends shrink by sqrt 2, down to 1/256: outliers can be that far out
_FINE_STEPS: Final = (2.0**-2, 2.0**-3, 2.0**-4, 2.0**-5, 2.0**-6)  # in powers of two of an end


def search_range(error: Callable[[float, float], float], minimum: float, maximum: float) -> tuple[float, float]:
    """Return (low, high) within [min(minimum, 0), max(maximum, 0)] that makes the error least.

    First every pair of ends on a coarse geometric grid, then steps of shrinking size around the best, since
    the rounding of zero points makes the error jagged. The result is never worse than the whole range, and
    a narrower range must be better to be taken.
    """
    floor, ceiling = min(minimum, 0.0), max(maximum, 0.0)
    exponents = [-0.5 * step for step in range(_COARSE_STEPS)]
    best = (0.0, 0.0)
    least = error(floor, ceiling)

    def try_pair(low_exponent: float, high_exponent: float) -> bool:
        nonlocal best, least
        if low_exponent > 0.0 or high_exponent > 0.0:
            return False
        value = error(floor * 2.0**low_exponent, ceiling * 2.0**high_exponent)
        if value >= least:
            return False
        best, least = (low_exponent, high_exponent), value
        return True

    # An end at 0 cannot move.
    for low_exponent in exponents if floor < 0.0 else [0.0]:
        for high_exponent in exponents if ceiling > 0.0 else [0.0]:
            try_pair(low_exponent, high_exponent)
    for step in _FINE_STEPS:
        moved = True
        while moved:
            moved = False
            low_exponent, high_exponent = best
            for low_move in (-step, 0.0, step) if floor < 0.0 else (0.0,):
                for high_move in (-step, 0.0, step) if ceiling > 0.0 else (0.0,):
                    if try_pair(low_exponent + low_move, high_exponent + high_move):
                        moved = True
    return floor * 2.0 ** best[0], ceiling * 2.0 ** best[1]
