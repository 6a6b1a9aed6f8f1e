"""The search for the two ends of a range that make an error least."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Final

_SHORTEST: Final = -8.0  # log2 of the least part of an end that is tried: outliers can be that far out
_COARSE: Final = (*(-0.5 * step for step in range(17)), -math.inf)  # -inf: an end at 0
_FINE: Final = (2.0**-2, 2.0**-3, 2.0**-4, 2.0**-5, 2.0**-6)
_MOST_MOVES: Final = 8  # for each fine step; from the grid, two lead to its next point

Pair = tuple[float, float]


def search_range(error: Callable[[float, float], float], minimum: float, maximum: float) -> Pair:
    """Return (low, high) within [min(minimum, 0), max(maximum, 0)] that makes the error least.

    First every pair of ends on a coarse geometric grid, then steps of shrinking size around the best, since
    the rounding of zero points makes the error jagged. The result is never worse than the whole range, and
    a narrower range must be better to be taken.
    """
    floor, ceiling = min(minimum, 0.0), max(maximum, 0.0)
    if floor == ceiling:
        return floor, ceiling
    best, least = (0.0, 0.0), error(floor, ceiling)

    def improve(pairs: Iterator[Pair]) -> bool:
        nonlocal best, least
        before = best
        for low, high in pairs:
            value = error(floor * 2.0**low, ceiling * 2.0**high)
            if value < least:
                best, least = (low, high), value
        return best != before

    improve(_grid(floor, ceiling))
    for step in _FINE:
        for _ in range(_MOST_MOVES):
            if not improve(_around(best, step)):
                break
    return floor * 2.0 ** best[0] + 0.0, ceiling * 2.0 ** best[1]


def _grid(floor: float, ceiling: float) -> Iterator[Pair]:
    """Yield logarithms of parts of the ends; an end at 0 cannot move."""
    lows = _COARSE if floor < 0.0 else (-math.inf,)
    highs = _COARSE if ceiling > 0.0 else (-math.inf,)
    return (pair for pair in itertools.product(lows, highs) if max(pair) > -math.inf)


def _around(best: Pair, step: float) -> Iterator[Pair]:
    """Yield the pairs one step around the best; an end at 0 stays there."""
    choices = [[end] if end == -math.inf else [end, end - step, end + step] for end in best]
    pairs = itertools.product(*choices)
    next(pairs)  # the best itself
    return ((low, high) for low, high in pairs if all(_allowed(end) for end in (low, high)))


def _allowed(exponent: float) -> bool:
    return exponent == -math.inf or _SHORTEST <= exponent <= 0.0
