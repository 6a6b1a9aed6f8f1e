"""Data to run a model on, from files, functions or arrays, as checked batches."""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from calibration.array_file import brief, read_arrays
from calibration.errors import CalibrationError
from calibration.inputs import Feed, InputSpec, check_feed

DEFAULT_BATCH: Final = 32
"""Samples in a batch, where the model leaves that open."""

_MOST_TOKENS: Final = 4096  # per batch: what is observed is thousands of floats wide for each of them
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

Source = (
    str | os.PathLike[str] | Mapping[str, Any] | Iterable[Mapping[str, Any]] | Callable[[], Iterable[Mapping[str, Any]]]
)
"""What :func:`open_data` takes."""


class BatchSource:
    """Batches for a model, checked and cast; can be gone through any number of times.

    Attributes
    ----------
    count : int or None
        Number of batches, where it is known beforehand.
    """

    def __init__(
        self, start: Callable[[], Iterator[Feed]], count: int | None, names: Sequence[str] | None = None
    ) -> None:
        self._start = start
        self._names = names
        self.count = count

    def name_of(self, number: int) -> str:
        """Return what to call a batch, counted from 1: its file where it has one of its own."""
        return f"batch {number}" if self._names is None else self._names[number - 1]

    def __iter__(self) -> Iterator[Feed]:
        """Yield one feed after the other; holds no more than one file or batch."""
        return self._start()


def open_data(source: Source, inputs: Sequence[InputSpec]) -> BatchSource:
    """Return the batches of a data source.

    Parameters
    ----------
    source : path, str, mapping, iterable or callable
        - ``.npz`` file or mapping: one array per model input, the first axis being samples. It is cut into
          batches of the size that the model declares; where that is dynamic, of 32 samples, or fewer where
          samples have more than 128 tokens each (integers of rank 2). A last, smaller batch is run where the
          size is dynamic, and refused where it is fixed: nothing is dropped or padded in silence.
        - ``.npy`` file: the same, for a model with one input.
        - folder of such files: each is one batch, in the order of their names; lengths may differ. One file
          is in memory at a time.
        - ``package.module:function``: returns an iterable of feeds (mappings of input name to array), each
          a batch. The module is imported with the current folder first on the path.
        - iterable of feeds, or callable that returns one.
        - what this function returned before.
    inputs : sequence of InputSpec
        What the model takes.

    Raises
    ------
    CalibrationError
        If the source cannot be read or does not fit the model: here where that can be told at once, else on
        the way through it.
    """
    if isinstance(source, BatchSource):
        return source
    if not inputs:
        raise CalibrationError("the model has no inputs: there is nothing to feed")
    if isinstance(source, Mapping):
        return _samples(check_feed(source, inputs, "data", any_batch=True), inputs, "data")
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if isinstance(source, str) and not path.exists() and _FUNCTION.fullmatch(source):
            return _from_callable(_find_function(source), inputs, source)
        return _from_path(path, inputs)
    if callable(source):
        return _from_callable(source, inputs, "data")
    if isinstance(source, Iterable):
        return _from_iterable(source, inputs)
    raise CalibrationError(f"data of type {type(source).__name__} cannot be read: give a path or feeds")


def _samples(feed: Feed, inputs: Sequence[InputSpec], where: str) -> BatchSource:
    """Cut arrays, whose first axis is samples, into batches."""
    sizes = {}
    for name, array in feed.items():
        if array.ndim == 0:
            raise CalibrationError(f"{where}: {name!r} is a scalar, and has no axis of samples: give batches")
        sizes[name] = len(array)
    samples = next(iter(sizes.values()))
    for name, size in sizes.items():
        if size != samples:
            first = next(iter(sizes))
            raise CalibrationError(f"{where}: {first!r} has {samples} samples and {name!r} {size}: make them equal")
    if samples == 0:
        raise CalibrationError(f"{where}: has no samples: give at least one")
    declared = {spec.shape[0] for spec in inputs if spec.shape and spec.shape[0] is not None}
    if len(declared) > 1:
        raise CalibrationError(
            f"{where}: the model's inputs differ in their first axis, so samples cannot be told: "
            "give a folder of batches, one file each"
        )
    size = next(iter(declared)) if declared else _batch_size(feed)
    if declared and (size == 0 or samples % size):
        raise CalibrationError(
            f"{where}: has {samples} samples, and the model takes exactly {size} at a time: "
            f"give a multiple of that, for example {samples - samples % max(size, 1) or size}"
        )

    def start() -> Iterator[Feed]:
        for first in range(0, samples, size):
            yield {name: array[first : first + size] for name, array in feed.items()}

    return BatchSource(start, -(-samples // size))


def _batch_size(feed: Feed) -> int:
    tokens = [int(array.shape[1]) for array in feed.values() if array.ndim == 2 and array.dtype.kind in "iu"]
    return max(1, min(DEFAULT_BATCH, _MOST_TOKENS // max([1, *tokens])))


def _from_path(path: Path, inputs: Sequence[InputSpec]) -> BatchSource:
    if not path.exists():
        raise CalibrationError(
            f"{path}: does not exist: give a .npz, a .npy, a folder of them, or package.module:function"
        )
    if not path.is_dir():
        arrays = _read(path, inputs)
        return _samples(check_feed(arrays, inputs, str(path), any_batch=True), inputs, str(path))
    return open_files(folder_files(path), inputs)


def folder_files(path: Path) -> list[Path]:
    """Return the .npz and .npy files of a folder, in the order of their names.

    Raises
    ------
    CalibrationError
        If it cannot be read, or has none.
    """
    try:
        names = sorted(item.name for item in path.iterdir() if not item.name.startswith("."))
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read ({error.strerror}): give a folder of batches") from None
    files = [path / name for name in names if name.endswith((".npz", ".npy"))]
    if not files:
        raise CalibrationError(f"{path}: has no .npz or .npy files: give a folder of batches, one file each")
    return files


def open_files(files: Sequence[Path], inputs: Sequence[InputSpec]) -> BatchSource:
    """Return files as batches, one each, read one at a time."""

    def start() -> Iterator[Feed]:
        for file in files:
            yield _not_empty(check_feed(_read(file, inputs), inputs, str(file)), str(file))

    return BatchSource(start, len(files), [str(file) for file in files])


def _not_empty(feed: Feed, where: str) -> Feed:
    for name, array in feed.items():
        if array.size == 0:
            raise CalibrationError(f"{where}: {name!r} is empty (shape {list(array.shape)}): give samples")
    return feed


def _read(path: Path, inputs: Sequence[InputSpec]) -> dict[str, Any]:
    """Return the arrays of one file, of any type but pickled objects."""
    if path.suffix == ".npy" and len(inputs) > 1:
        takes = ", ".join(spec.name for spec in inputs)
        raise CalibrationError(f"{path}: holds one array, and the model takes {takes}: give a .npz with these")
    arrays = read_arrays(path)
    return {inputs[0].name: arrays[""]} if path.suffix == ".npy" else dict(arrays)


def _find_function(reference: str) -> Callable[[], Iterable[Mapping[str, Any]]]:
    module_name, function_name = reference.split(":")
    # Permanently, as `python -m` does: the function may import more from there when it runs.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module may raise
        raise CalibrationError(f"{reference}: module {module_name!r} cannot be imported ({brief(error)})") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise CalibrationError(f"{reference}: module {module_name!r} has no function {function_name!r}: check the name")
    return function  # type: ignore[no-any-return]


def _from_callable(
    function: Callable[[], Iterable[Mapping[str, Any]]], inputs: Sequence[InputSpec], where: str
) -> BatchSource:
    def start() -> Iterator[Feed]:
        try:
            batches = function()
        except Exception as error:  # whatever a user's function may raise
            raise CalibrationError(f"{where}: the function failed ({brief(error)})") from error
        return _feeds(batches, inputs, where)

    return BatchSource(start, None)


def _from_iterable(batches: Iterable[Mapping[str, Any]], inputs: Sequence[InputSpec]) -> BatchSource:
    spent = False

    def start() -> Iterator[Feed]:
        nonlocal spent
        if spent and isinstance(batches, Iterator):
            raise CalibrationError("data is an iterator, and it is used up: give a function that makes it")
        spent = True
        return _feeds(batches, inputs, "data")

    return BatchSource(start, len(batches) if isinstance(batches, Sequence) else None)


def _feeds(batches: Any, inputs: Sequence[InputSpec], where: str) -> Iterator[Feed]:
    """Yield the feeds of a user's iterable, checked; errors name the batch, from 1."""
    if isinstance(batches, Mapping) or not isinstance(batches, Iterable):
        raise CalibrationError(
            f"{where}: gives a {type(batches).__name__} instead of feeds: yield mappings of input to array"
        )
    number = 0
    iterator = iter(batches)
    while True:
        number += 1
        batch = f"{where}, batch {number}"
        try:
            feed = next(iterator)
        except StopIteration:
            break
        except Exception as error:  # whatever a user's generator may raise
            raise CalibrationError(f"{batch}: the data failed ({brief(error)})") from error
        if not isinstance(feed, Mapping):
            raise CalibrationError(
                f"{batch}: is a {type(feed).__name__} instead of a feed: yield mappings of input to array"
            )
        checked = _not_empty(check_feed(feed, inputs, batch), batch)
        del feed
        yield checked
        del checked  # before the next batch is made: one at a time in memory
    if number == 1:
        raise CalibrationError(f"{where}: has no batches: give at least one")
