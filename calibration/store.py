"""The calibration of a model, and its file: readable JSON, versioned, mergeable."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from calibration.errors import CalibrationError
from calibration.fields import take_keys, take_text, take_whole
from calibration.observers import TensorStatistics
from calibration.whole_file import replacing

FORMAT: Final = "qgelu-calibration"
VERSION: Final = 1
_KEYS: Final = ("format", "version", "model_digest", "mask", "samples", "tensors")


@dataclass(frozen=True)
class Calibration:
    """Statistics of a model's tensors over a set of data.

    Parameters
    ----------
    tensors : mapping of str to TensorStatistics
        By tensor name.
    model_digest : str
        :func:`calibration.model_digest` of the float model.
    samples : int
        Samples that were run (first axis of the data).
    mask : str or None
        The model input whose zeros left positions out.
    """

    tensors: Mapping[str, TensorStatistics]
    model_digest: str
    samples: int
    mask: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    def __reduce__(self) -> tuple[type["Calibration"], tuple[object, ...]]:
        """Pickle without the read-only view."""
        return Calibration, (dict(self.tensors), self.model_digest, self.samples, self.mask)

    def merge(self, other: "Calibration") -> "Calibration":
        """Return the calibration over both sets of data.

        Raises
        ------
        CalibrationError
            If the two are of different models, tensors, channels or masks; the message names the difference.
        """
        if self.model_digest != other.model_digest:
            raise CalibrationError(
                f"calibrations are of different models (model_digest {self.model_digest[:12]}... and "
                f"{other.model_digest[:12]}...): merge only those made from one model file"
            )
        if self.mask != other.mask:
            raise CalibrationError(
                f"calibrations were made with different masks ({self.mask} and {other.mask}): use one mask"
            )
        for name in sorted(self.tensors.keys() ^ other.tensors.keys()):
            raise CalibrationError(f"tensor {name!r} is in one calibration only: observe the same tensors")
        tensors = {}
        for name, statistics in self.tensors.items():
            try:
                tensors[name] = statistics.merge(other.tensors[name])
            except CalibrationError as error:
                raise CalibrationError(f"tensor {name!r}: {error}") from None
        return Calibration(tensors, self.model_digest, self.samples + other.samples, self.mask)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all.

        Raises
        ------
        CalibrationError
            If the file cannot be written.
        """
        target = Path(path)
        try:
            with replacing(target) as file:
                for line in self._lines():
                    file.write(line.encode())
        except OSError as error:
            raise CalibrationError(
                f"{target}: cannot be written ({error.strerror}): choose a file in a folder that is writable"
            ) from None

    def _lines(self) -> Iterator[str]:
        """Yield the file line by line: one value a line, with a histogram or the ranges as one value."""
        head = {
            "format": FORMAT,
            "version": VERSION,
            "model_digest": self.model_digest,
            "mask": self.mask,
            "samples": self.samples,
        }
        yield "{\n"
        for key, value in head.items():
            yield f"  {json.dumps(key)}: {json.dumps(value)},\n"
        yield '  "tensors": {'
        for place, (name, statistics) in enumerate(self.tensors.items()):
            yield f"{',' if place else ''}\n    {json.dumps(name)}: {{\n"
            items = statistics.to_dict().items()
            yield ",\n".join(f"      {json.dumps(key)}: {json.dumps(value)}" for key, value in items)
            yield "\n    }"
        yield "\n  }\n}\n"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Calibration":
        """Read a file that :meth:`save` wrote.

        Raises
        ------
        CalibrationError
            If it is missing, is not a calibration, is of another version, or is damaged.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise CalibrationError(f"{path}: cannot be read ({error.strerror}): give a calibration file") from None
        except UnicodeDecodeError:
            raise CalibrationError(f"{path}: is not a calibration file (not text): give one") from None
        try:
            return cls._from_json(text)
        except CalibrationError as error:
            raise CalibrationError(f"{path}: {error}") from None

    @classmethod
    def _from_json(cls, text: str) -> "Calibration":
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            raise CalibrationError("is not JSON, or is cut off: make the calibration again") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CalibrationError("is JSON, but not a calibration: give a file made by calibration")
        if content.get("version") != VERSION:
            raise CalibrationError(
                f"is of version {content.get('version')!r}, and this release reads {VERSION}: "
                "make the calibration again"
            )
        try:
            fields = take_keys(content, "calibration", _KEYS)
            mask = None if fields["mask"] is None else take_text(fields["mask"], "mask")
            digest = take_text(fields["model_digest"], "model_digest")
            samples = take_whole(fields["samples"], "samples")
            parts = fields["tensors"]
            if not isinstance(parts, dict):
                raise CalibrationError("tensors is not an object")
            tensors = {}
            for name, part in parts.items():
                try:
                    tensors[name] = TensorStatistics.from_dict(part)
                except CalibrationError as error:
                    raise CalibrationError(f"tensor {name!r}: {error}") from None
        except CalibrationError as error:
            raise CalibrationError(f"is damaged ({error}): make the calibration again") from None
        return cls(tensors, digest, samples, mask)
