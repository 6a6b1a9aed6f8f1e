"""The float model's outputs on the test data, and a sample of what enters each activation."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray

from calibration import BatchSource
from calibration.reader import tensor_reader
from qgelu.evaluation import kept_rows
from qgelu.graph.findings import Site
from qgelu.pipeline import Progress
from qgelu.reference_store import ReferenceStore
from qgelu.sessions import ModelRunner

RECORDED_VALUES: Final = 1 << 17
"""Values of x kept for each site."""

_SEED: Final = 1606


class _Reservoir:
    """An even random sample of the rows of a tensor, of fixed size."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(_SEED)
        self._order = np.empty(0)
        self.rows: NDArray[np.float32] | None = None

    def add(self, rows: NDArray[np.float32]) -> None:
        most = max(1, RECORDED_VALUES // max(1, rows.shape[1]))
        order = np.concatenate([self._order, self._random.random(len(rows))])
        both = rows if self.rows is None else np.concatenate([self.rows, rows])
        keep = np.argsort(order)[:most]
        self._order, self.rows = order[keep], both[keep]


def record_reference(
    model: onnx.ModelProto,
    sites: Sequence[Site],
    source: BatchSource,
    store: ReferenceStore,
    *,
    mask: str | None,
    progress: Progress,
    threads: int | None,
) -> dict[str, NDArray[np.float32]]:
    """Run the float model over the data; fill the store and return values of x, [rows, channels], by site name."""
    inputs = {value.name for value in model.graph.input}
    names = list(dict.fromkeys(site.input for site in sites if site.input not in inputs))
    reservoirs = {site.name: _Reservoir() for site in sites}
    with (
        ModelRunner(model, "the float model", threads=threads) as runner,
        tempfile.TemporaryDirectory(prefix="qgelu-report-") as folder,
    ):
        read = tensor_reader(model, names, Path(folder), threads)
        for number, feed in enumerate(source, start=1):
            store.add(feed, runner.run(feed))
            seen = read(feed)
            for site in sites:
                for array in seen[site.input] if site.input in seen else [feed[site.input]]:
                    x = kept_rows(array, None if mask is None else feed[mask]).astype(np.float32)
                    reservoirs[site.name].add(x if site.bias is None else x + site.bias.astype(np.float32))
            progress("run float model", number, source.count)
    return {name: reservoir.rows for name, reservoir in reservoirs.items() if reservoir.rows is not None}
