"""The observers of :mod:`calibration.capturing` as tasks on a Dask cluster; needs the extra ``qgelu[dask]``.

Each part of the data is a task that returns its statistics; parts are merged in pairs, in their order, by tasks too. No
worker holds more than a few parts' statistics, each of fixed size.
"""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from calibration.capturing import TensorRequest, capture
from calibration.data import BatchSource, Source, folder_files, open_data, open_files
from calibration.errors import CalibrationError
from calibration.inputs import input_specs
from calibration.model_size import model_bytes
from calibration.store import Calibration

if TYPE_CHECKING:
    import onnx
    from distributed import Client

_PARTS_PER_THREAD: Final = 4
"""Parts that a folder is cut into, for each thread of the cluster: few sessions, and an even load at the end."""

_LARGEST_MODEL: Final = (1 << 31) - (1 << 20)  # protobuf ends at 2 GB
_CONNECT_SECONDS: Final = 10.0
_EXTRA: Final = "install qgelu[dask]"


@contextlib.contextmanager
def connected(cluster: "str | Client") -> Iterator["Client"]:
    """Give a client of the scheduler at an address, such as ``tcp://host:8786``; or the client that is given.

    Raises
    ------
    CalibrationError
        If Dask is not installed, or no scheduler answers.
    """
    if not isinstance(cluster, str):
        yield cluster
        return
    try:
        from distributed import Client
    except ImportError:
        raise CalibrationError(f"Dask is not installed: {_EXTRA}") from None
    try:
        client = Client(cluster, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, ImportError) as error:
        raise CalibrationError(
            f"no Dask scheduler answers at {cluster} ({type(error).__name__}): check the address"
        ) from None
    with client:
        yield client


def calibrate_with_dask(
    model: "onnx.ModelProto",
    requests: Iterable[TensorRequest],
    parts: Source | Sequence[Source],
    client: "Client",
    *,
    mask: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    threads: int | None = None,
) -> Calibration:
    """Run the model over all parts on the workers of a cluster and return what was seen.

    Counts, ranges, histograms and rows are exactly those of :func:`calibration.capture` over all of the data; the two
    sums agree to float64 rounding, and are the same for any number of workers.

    Parameters
    ----------
    model : onnx.ModelProto
        The float model, its external data loaded; less than 2 GB. Sent to the workers once.
    requests : iterable of TensorRequest
        What to observe.
    parts : path of a folder, or sequence of sources
        A folder of batches is cut into groups of files. Of a sequence, each is a part: what
        :func:`calibration.open_data` takes. Paths must mean the same to every worker.
    client : distributed.Client
    mask : str, optional
        As for :func:`calibration.capture`.
    progress : callable, optional
        Called after each part with the parts done, and how many there are.
    threads : int, optional
        ONNX Runtime's threads in each task; 1 if left out, since a worker runs a task on each of its threads.

    Raises
    ------
    CalibrationError
        As :func:`calibration.capture`, naming the part; if workers die on a part again and again; or if the model is
        too large to be sent.
    """
    from distributed import as_completed

    specs = input_specs(model)
    wanted = tuple(requests)
    pieces = _pieces(parts, client)
    content = _content(model)
    run = uuid4().hex
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph")
        # As a task, not scattered: it can be made again when the workers that had it are gone.
        sent = client.submit(_itself, content, key=f"qgelu-model-{run}")
    names = {}
    leaves = []
    for number, piece in enumerate(pieces):
        key = f"qgelu-part-{run}-{number}"
        names[key] = piece.name
        leaves.append(client.submit(_observe, sent, wanted, piece, specs, mask, threads or 1, key=key))
    total = _merged(client, leaves, run)
    waiting = as_completed(leaves, loop=client.loop)
    del leaves  # a part's statistics are let go once they are merged
    try:
        for done, future in enumerate(waiting, start=1):
            if future.status == "error":
                raise _failure(future.exception(), names[future.key])
            if future.status != "finished":
                raise CalibrationError(f"{names[future.key]}: the cluster gave up on it ({future.status}): start again")
            if progress is not None:
                progress(done, len(pieces))
            del future
        found = total.result()
    except CalibrationError:
        raise
    except Exception as error:  # the scheduler went away, or merging failed
        raise _failure(error, "merging") from None
    finally:
        total.cancel()
        waiting.clear()
    assert isinstance(found, Calibration)
    return found


class _Piece:
    """What one task runs: files of a folder, each a batch, or any other source."""

    def __init__(self, name: str, source: Any, files: tuple[Path, ...] = ()) -> None:
        self.name = name
        self.source = source
        self.files = files

    def open(self, specs: Any) -> BatchSource:
        return open_files(self.files, specs) if self.files else open_data(self.source, specs)


def _pieces(parts: Any, client: "Client") -> list[_Piece]:
    if isinstance(parts, str | os.PathLike):
        files = folder_files(Path(parts))
        threads = max(1, sum(client.nthreads().values()))
        count = min(len(files), _PARTS_PER_THREAD * threads)
        cuts = [len(files) * number // count for number in range(count + 1)]
        groups = [tuple(files[first:last]) for first, last in zip(cuts, cuts[1:], strict=False)]
        return [
            _Piece(str(group[0]) if len(group) == 1 else f"{group[0]} to {group[-1].name}", None, group)
            for group in groups
        ]
    if not isinstance(parts, Sequence) or not parts:
        raise CalibrationError("with Dask, data is a folder of batches, or a sequence of parts: give one")
    return [
        _Piece(str(part) if isinstance(part, str | os.PathLike) else f"part {number}", part)
        for number, part in enumerate(parts, start=1)
    ]


def _content(model: "onnx.ModelProto") -> bytes:
    if model_bytes(model) >= _LARGEST_MODEL:
        raise CalibrationError(
            "the model is too large to be sent to workers (2 GB): run 'qgelu calibrate' on each machine, then --merge"
        )
    return bytes(model.SerializeToString())


def _itself(content: bytes) -> bytes:
    return content


def _observe(
    content: bytes, requests: tuple[TensorRequest, ...], piece: _Piece, specs: Any, mask: str | None, threads: int
) -> Calibration:
    """Run on a worker: the statistics of one part."""
    import onnx

    model = onnx.ModelProto.FromString(content)
    try:
        return capture(model, requests, piece.open(specs), mask=mask, threads=threads)
    except CalibrationError as error:
        named = any(str(file) in str(error) for file in piece.files) or str(error).startswith(piece.name)
        raise CalibrationError(str(error) if named else f"{piece.name}: {error}") from None


def _merge(first: Calibration, second: Calibration) -> Calibration:
    return first.merge(second)


def _merged(client: "Client", futures: Sequence[Any], run: str) -> Any:
    """Return the future of all parts merged: neighbours in pairs, so that the order is that of the data."""
    level, row = 0, list(futures)
    while len(row) > 1:
        level += 1
        pairs = zip(row[::2], row[1::2], strict=False)
        merged = [
            client.submit(_merge, *pair, key=f"qgelu-merge-{run}-{level}-{place}") for place, pair in enumerate(pairs)
        ]
        row = merged + row[len(row) - len(row) % 2 :]
    return row[0]


def _failure(error: BaseException | None, name: str) -> CalibrationError:
    """Return an error of the cluster in one line that names the part."""
    from distributed.scheduler import KilledWorker

    if isinstance(error, CalibrationError):
        return error
    if isinstance(error, KilledWorker):
        return CalibrationError(f"{name}: workers died while they ran it: give them more memory, or cut it smaller")
    text = " ".join(str(error).split())[:200]
    return CalibrationError(f"{name}: the cluster failed ({type(error).__name__}: {text})")
