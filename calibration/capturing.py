"""Running a model over data and gathering statistics of its tensors, batch by batch."""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibration.data import BatchSource, open_data
from calibration.digest import model_digest
from calibration.errors import CalibrationError
from calibration.inputs import Feed, input_specs
from calibration.observers import TensorObserver
from calibration.reader import one_line, tensor_reader
from calibration.store import Calibration

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class TensorRequest:
    """A tensor to observe: an input of the model, or a result of a node of its graph or subgraphs.

    Parameters
    ----------
    name : str
        The tensor's name; unique in the model, subgraphs included.
    per_channel : bool
        Whether to keep the range of each channel of the last axis too.
    sample_rows : bool
        Whether to keep some rows along the last axis too; goes with ``per_channel``.
    """

    name: str
    per_channel: bool = False
    sample_rows: bool = False


def capture(
    model: "onnx.ModelProto",
    requests: Iterable[TensorRequest],
    batches: BatchSource | Iterable[Mapping[str, Any]],
    *,
    mask: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    threads: int | None = None,
) -> Calibration:
    """Run the model over the batches with ONNX Runtime, on the CPU, and return what was seen.

    Memory does not grow with the number of batches. The model is not changed; of it, only what the requested
    tensors need is run.

    Parameters
    ----------
    model : onnx.ModelProto
        The float model, its external data loaded.
    requests : iterable of TensorRequest
        What to observe. A tensor that is named twice is observed once, per channel if either says so.
    batches : BatchSource or iterable of feeds
        The data, from :func:`calibration.open_data`; anything else is opened with it.
    mask : str, optional
        Leave out the positions where this input is 0. An input of shape [batch, sequence] is matched with a
        tensor's leading axes, or with a first axis of batch * sequence. A tensor of shape [batch, C] has one
        row for each sample (as behind a pooling), and is observed whole.
    progress : callable, optional
        Called after each batch with the batches done, and how many there are or None.
    threads : int, optional
        Threads of ONNX Runtime; its own choice if left out.

    Raises
    ------
    CalibrationError
        If a tensor cannot be observed, the data does not fit, a batch cannot be run, the mask does not match
        a tensor or leaves nothing, or a tensor holds NaN or infinity. Names the tensor, and the batch: by its
        file if it has one of its own, else by its number from 1.
    """
    wanted: dict[str, tuple[bool, bool]] = {}
    for request in requests:
        per_channel, sample_rows = wanted.get(request.name, (False, False))
        wanted[request.name] = (per_channel or request.per_channel, sample_rows or request.sample_rows)
    if not wanted:
        raise CalibrationError("no tensor was asked for: there is nothing to observe")
    specs = input_specs(model)
    names = [spec.name for spec in specs]
    if threads is not None and threads < 1:
        raise CalibrationError(f"threads must be at least 1, not {threads}")
    if mask is not None and mask not in names:
        raise CalibrationError(f"mask {mask!r} is not an input of the model: it takes {', '.join(names)}")
    source = batches if isinstance(batches, BatchSource) else open_data(batches, specs)
    observers = {
        name: TensorObserver(per_channel=per_channel, sample_rows=sample_rows)
        for name, (per_channel, sample_rows) in wanted.items()
    }
    samples = number = 0
    ran: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        computed = [name for name in wanted if name not in names]
        read = tensor_reader(model, computed, Path(folder), threads)
        for feed in source:
            number += 1
            for name in names:
                if name not in feed:
                    raise CalibrationError(f"{source.name_of(number)}: has no {name!r}: give an array for each input")
            try:
                values = read(feed)
            except Exception as error:  # ONNX Runtime's have no common base
                where = source.name_of(number)
                raise CalibrationError(f"{where}: ONNX Runtime cannot run it: {one_line(error)}") from None
            kept = None if mask is None else feed[mask] != 0
            for name, observer in observers.items():
                arrays = values[name] if name in values else [feed[name]]
                if arrays:
                    ran.add(name)
                _observe(observer, arrays, kept, f"{source.name_of(number)}: tensor {name!r}")
            samples += _samples(feed)
            del feed, values, arrays, kept  # before the next batch is read
            if progress is not None:
                progress(number, source.count)
    for name in wanted:
        if samples and name not in ran:
            raise CalibrationError(
                f"tensor {name!r} was never computed: its branch or loop did not run on the data: "
                "add data that it runs on, or leave the site out"
            )
    statistics = {}
    for name, observer in observers.items():
        try:
            statistics[name] = observer.statistics
        except CalibrationError as error:
            raise CalibrationError(f"tensor {name!r} {error}") from None
    return Calibration(statistics, model_digest(model), samples, mask)


def _observe(observer: TensorObserver, arrays: list[NDArray[Any]], kept: NDArray[np.bool_] | None, where: str) -> None:
    for array in arrays:
        try:
            observer.update(array, None if kept is None else _positions(kept, array.shape))
        except CalibrationError as error:
            raise CalibrationError(f"{where} {error}") from None


def _samples(feed: Feed) -> int:
    """Return the longest first axis: inputs shared by all samples may have a first axis of 1."""
    return max((len(array) for array in feed.values() if array.ndim), default=1)


def _positions(kept: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    """Return which leading positions of a tensor to observe; None for all of them."""
    if len(shape) > kept.ndim and shape[: kept.ndim] == kept.shape:
        return kept
    if len(shape) >= 2 and shape[0] == kept.size:
        return kept.reshape(-1)
    if kept.ndim == 2 and len(shape) == 2 and shape[0] == kept.shape[0]:
        return None
    raise CalibrationError(
        f"has shape {list(shape)}, which the mask's {list(kept.shape)} does not match: calibrate without mask"
    )
