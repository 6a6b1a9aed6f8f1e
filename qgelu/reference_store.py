"""The float model's outputs on the test data, kept on disk."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from qgelu.evaluation import Feed, ReferenceBatch


def _samples(feed: Feed) -> int:
    """Return the longest first axis: inputs shared by all samples may have a first axis of 1."""
    return max((len(value) for value in feed.values() if value.ndim), default=1)


class ReferenceStore:
    """Batches with the float model's outputs, in a temporary folder; use it in a ``with`` statement."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="qgelu-reference-")
        self._batches: list[tuple[list[str], list[str]]] = []
        self.samples = 0
        self.has_classes = False
        """Whether an output is [samples, classes]."""

    def add(self, feed: Feed, outputs: Mapping[str, Any]) -> None:
        """Keep one batch; outputs that are no arrays are left out."""
        arrays = {name: value for name, value in outputs.items() if isinstance(value, np.ndarray)}
        values = [*feed.values(), *arrays.values()]
        path = self._path(len(self._batches))
        np.savez(path, *values)
        self.has_classes |= any(value.ndim == 2 and value.shape[1] > 1 for value in arrays.values())
        self._batches.append((list(feed), list(arrays)))
        self.samples += _samples(feed)

    def __iter__(self) -> Iterator[ReferenceBatch]:
        """Yield the batches; one at a time is in memory."""
        for number, (inputs, outputs) in enumerate(self._batches):
            with np.load(self._path(number)) as content:
                values = [content[f"arr_{index}"] for index in range(len(inputs) + len(outputs))]
            yield (
                dict(zip(inputs, values[: len(inputs)], strict=True)),
                dict(zip(outputs, values[len(inputs) :], strict=True)),
            )

    def first(self, samples: int | None) -> Iterator[ReferenceBatch]:
        """Yield batches until they hold so many samples; all of them if None."""
        seen = 0
        for feed, outputs in self:
            if samples is not None and seen >= samples:
                return
            seen += _samples(feed)
            yield feed, outputs

    def _path(self, number: int) -> Path:
        return Path(self._folder.name) / f"{number}.npz"

    def __enter__(self) -> "ReferenceStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()
