"""The fewest bits for each site that keep an accuracy goal, found by running the integer models.

1. Single widths: every site at 8 bits (where that does not do and wider tables exist, 16), then ever fewer, until the
   goal is missed.
2. Sensitivity: each site alone at each width, all else in float: the relative error e of the outputs. Errors of
   several sites add up about as squares.
3. A path from the widest down: the next step is the one that adds the least e^2 for each bit that it saves. Bisection
   finds the last place on it that keeps the goal.
4. From there, sites go down one width at a time, the least added e^2 first, as long as the goal is kept.

Every combination in 1, 3 and 4 is run end to end on all samples, and so is the one that is returned. Of sensitivity
nothing is taken on trust: it only says what to try next. docs/calibration.md has the words for users.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qgelu.accuracy_goal import AccuracyGoal
from qgelu.errors import QGeluError
from qgelu.evaluation import evaluate_model
from qgelu.output_comparison import OutputErrors
from qgelu.reference_store import ReferenceStore
from qgelu.sessions import ModelRunner

LEAST_BITS: Final = 2
SENSITIVITY_SAMPLES: Final = 64
"""Samples, in whole batches, that sensitivities are measured on: they only rank what is tried next."""

_TRIES_PER_SITE: Final = 2
"""Combinations that step 4 may try, for each site."""

Bits = Mapping[str, int]
Progress = Callable[[str, int, int | None], None]
BuildModel = Callable[[Bits], onnx.ModelProto]
"""Returns the model with the named sites in integers at these bits, and the others in float."""


@dataclass(frozen=True)
class SiteTrade:
    """One site in the trade.

    Attributes
    ----------
    name : str
    bits : int
        That it got.
    alone : dict of int to float
        Relative error of the model's outputs with this site alone in integers, by its bits; measured until it missed
        the goal by itself.
    """

    name: str
    bits: int
    alone: dict[int, float]


@dataclass(frozen=True)
class BitTrade:
    """What was traded for what.

    Attributes
    ----------
    goal : str
        In words.
    metric : str
        What ``reached`` and ``single_width`` are in: a name of :data:`qgelu.accuracy_goal.TARGET_METRICS`, or the drop
        in words.
    limit : float
    reached : float or None
        Measured on the model that is returned; None for an SQNR without any error.
    mean_bits : float
        Over the sites.
    single_width : dict of int to (float or None)
        The same metric with all sites at one width.
    samples : int
        That it was measured on.
    measurements : int
        Models that were run.
    sites : tuple of SiteTrade
    """

    goal: str
    metric: str
    limit: float
    reached: float | None
    mean_bits: float
    single_width: dict[int, float | None]
    samples: int
    measurements: int
    sites: tuple[SiteTrade, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)


@dataclass
class _Measurer:
    """Runs combinations, and keeps what they gave."""

    build: BuildModel
    store: ReferenceStore
    goal: AccuracyGoal
    mask: str | None
    labels: NDArray[np.int64] | None
    threads: int | None
    progress: Progress
    known: dict[tuple[tuple[str, int], ...], float] = field(default_factory=dict)
    count: int = 0
    stage: tuple[str, int | None, int] = ("", None, 0)

    def begin(self, stage: str, most: int | None = None) -> None:
        """Start a stage of so many measurements at most."""
        self.stage = (stage, most, self.count)

    def outputs(self, bits: Bits, samples: int | None = None) -> tuple[OutputErrors, ...]:
        self.count += 1
        stage, most, before = self.stage
        self.progress(stage, self.count - before, most)
        # Without the labels of samples that are not run, or none at all.
        labels = self.labels if samples is None else None
        with ModelRunner(self.build(bits), "the quantized model", threads=self.threads) as runner:
            found = evaluate_model(self.store.first(samples), runner, mask=self.mask, labels=labels)
        if found.failures:
            raise QGeluError(f"the quantized model cannot be measured: {found.failures[0]}")
        return found.outputs

    def value(self, bits: Bits) -> float:
        """Return the goal's metric of a combination, on all samples."""
        key = tuple(sorted(bits.items()))
        if key not in self.known:
            outputs = self.outputs(bits)
            self.goal = self.goal.settled(outputs)
            value = self.goal.value(outputs)
            if value is None:
                raise QGeluError(f"no output of the model has the metric {self.goal.name!r}: choose another")
            self.known[key] = value
        return self.known[key]

    def keeps(self, bits: Bits) -> bool:
        return self.goal.is_met(self.value(bits))


def _relative_error(outputs: Sequence[OutputErrors]) -> float:
    known = [output.relative_error for output in outputs if output.relative_error is not None]
    return max(known, default=0.0)


def _single_widths(measurer: _Measurer, names: Sequence[str], widest: int) -> dict[int, float]:
    """Measure one width for all sites, from the widest down to the first that misses the goal."""
    found = {}
    for width in range(widest, LEAST_BITS - 1, -1):
        bits = dict.fromkeys(names, width)
        found[width] = measurer.value(bits)
        if not measurer.keeps(bits):
            break
    return found


def _sensitivity(measurer: _Measurer, name: str, widest: int) -> dict[int, float]:
    """Return the relative error of one site alone, by bits, down to the first width that misses the goal by itself.

    Shares of samples need more of them than sensitivities are measured on: for such goals all widths are measured.
    """
    alone: dict[int, float] = {}
    for width in range(widest, LEAST_BITS - 1, -1):
        outputs = measurer.outputs({name: width}, SENSITIVITY_SAMPLES)
        alone[width] = _relative_error(outputs)
        value = None if measurer.goal.counts_answers else measurer.goal.value(outputs)
        if value is not None and not measurer.goal.is_met(value):
            break
    return alone


def _steps_down(alone: Mapping[str, Mapping[int, float]], widest: int) -> list[dict[str, int]]:
    """Return combinations, each with fewer bits than the one before, the least added squared error first."""
    squared = {}
    for name, errors in alone.items():
        # Fewer bits are never better but by luck: the largest error down to each width counts.
        widths = sorted(errors, reverse=True)
        squared[name] = dict(zip(widths, np.maximum.accumulate([errors[width] ** 2 for width in widths]), strict=True))
    path = [dict.fromkeys(alone, widest)]
    while True:
        now = path[-1]
        candidates = [
            ((added - squared[name][now[name]]) / (now[name] - width), order, width, name)
            for order, name in enumerate(alone)
            for width, added in squared[name].items()
            if width < now[name]
        ]
        if not candidates:
            return path
        _, _, width, name = min(candidates)
        path.append({**now, name: width})


def _last_that_keeps(measurer: _Measurer, path: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return the last combination of the path that keeps the goal, by bisection; the first one does."""
    low, high = 0, len(path)
    while high - low > 1:
        middle = (low + high) // 2
        if measurer.keeps(path[middle]):
            low = middle
        else:
            high = middle
    return path[low]


def _refined(measurer: _Measurer, bits: dict[str, int], alone: Mapping[str, Mapping[int, float]]) -> dict[str, int]:
    """Return a combination with sites one width lower wherever the goal is kept."""
    tries = _TRIES_PER_SITE * len(bits)
    done = dict(bits)
    stuck: set[str] = set()
    while True:
        candidates = [
            (alone[name][width - 1] ** 2 - alone[name][width] ** 2, order, name)
            for order, (name, width) in enumerate(done.items())
            if name not in stuck and width - 1 in alone[name]
        ]
        if not candidates or tries == 0:
            return done
        name = min(candidates)[2]
        lower = {**done, name: done[name] - 1}
        tries -= 1
        if measurer.keeps(lower):
            done = lower
        else:
            stuck.add(name)


def search_bits(
    build: BuildModel,
    names: Sequence[str],
    goal: AccuracyGoal,
    store: ReferenceStore,
    *,
    widths: Sequence[int],
    mask: str | None = None,
    labels: NDArray[np.int64] | None = None,
    threads: int | None = None,
    progress: Progress,
) -> tuple[dict[str, int], BitTrade]:
    """Return the bits of each site, and the trade that was made.

    Parameters
    ----------
    build : callable
        See :data:`BuildModel`.
    names : sequence of str
        Of the sites.
    goal : AccuracyGoal
    store : ReferenceStore
        Samples that calibration did not see, with the float model's outputs.
    widths : sequence of int
        Widest widths to start from; the next is taken if the goal is missed with the one before.
    mask, labels, threads
        As for :func:`qgelu.quantize`; labels of the store's samples.
    progress : callable
        Called with a stage's name and the models that were run.

    Raises
    ------
    QGeluError
        If the goal is missed at the widest width, with what was reached.
    """
    measurer = _Measurer(build, store, goal, mask, labels, threads, progress)
    measurer.begin("measure single widths", len(widths) + widths[-1] - LEAST_BITS)
    single: dict[int, float] = {}
    for widest in widths:
        if measurer.keeps(dict.fromkeys(names, widest)):
            single |= _single_widths(measurer, names, widest)
            break
        single[widest] = measurer.value(dict.fromkeys(names, widest))
    else:
        reached = single[widths[-1]]
        raise QGeluError(
            f"{measurer.goal} is not reached: {widths[-1]} bits at every site give {reached:.10g} on {store.samples} "
            "samples that calibration did not see: ask for less, or calibrate on more data"
        )
    measurer.begin("measure each site alone", len(names) * (widest - LEAST_BITS + 1))
    alone = {name: _sensitivity(measurer, name, widest) for name in names}
    path = _steps_down(alone, widest)
    measurer.begin("measure combinations", len(path).bit_length() + _TRIES_PER_SITE * len(names))
    bits = _last_that_keeps(measurer, path)
    narrowest = min(width for width, value in single.items() if measurer.goal.is_met(value))
    if narrowest * len(names) < sum(bits.values()):
        bits = dict.fromkeys(names, narrowest)
    bits = _refined(measurer, bits, alone)
    value = measurer.value(bits)
    return bits, BitTrade(
        str(measurer.goal),
        measurer.goal.name,
        measurer.goal.limit,
        _finite(value),
        sum(bits.values()) / len(bits),
        {width: _finite(found) for width, found in single.items()},
        store.samples,
        measurer.count,
        tuple(SiteTrade(name, bits[name], alone[name]) for name in names),
    )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
