"""A fixed-size sample of a tensor's rows that does not depend on the split into batches or the order of merges.

Every distinct row gets a hash of its bits; the rows of the smallest hashes are kept. The smallest of a union are among
the smallest of its parts, so merging loses nothing.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibration.errors import CalibrationError
from calibration.fields import take_keys, take_text, take_whole

_MOST_ROWS: Final = 4096
_MOST_VALUES: Final = 1 << 20
"""Rows are kept up to 4 MB of float32: an FFN's weights are rounded for their covariance. docs/calibration.md has the
measurement."""

_SEED: Final = 0x9E3779B97F4A7C15


def row_limit(channels: int) -> int:
    """Return how many rows of that many channels are kept at most."""
    return max(1, min(_MOST_ROWS, _MOST_VALUES // channels))


def _hashes(rows: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Return one number for each row, from its bits: a random linear form modulo 2**64, then mixed."""
    weights = np.random.Generator(np.random.PCG64(_SEED)).integers(0, 1 << 63, rows.shape[1], dtype=np.uint64) * 2 + 1
    result = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), 4096):
        bits = rows[start : start + 4096].view(np.uint32).astype(np.uint64)
        result[start : start + 4096] = (bits * weights).sum(axis=1, dtype=np.uint64)
    result ^= result >> np.uint64(31)
    result *= np.uint64(0xBF58476D1CE4E5B9)  # the multiplier of the SplitMix64 generator (Steele et al. 2014)
    return result ^ (result >> np.uint64(27))


@dataclass(frozen=True, eq=False)
class RowSample:
    """Distinct rows of a tensor, in the order of their hashes.

    Parameters
    ----------
    rows : float32 array of shape [n, C]
        n is at most :func:`row_limit` of C.
    """

    rows: NDArray[np.float32]

    @classmethod
    def of(cls, rows: NDArray[np.floating[Any]]) -> "RowSample":
        """Return a sample of rows [n, C]."""
        # Adding 0 turns -0 into +0, so that equal rows have equal bits.
        values = np.ascontiguousarray(rows, dtype=np.float32) + np.float32(0.0)
        order = np.unique(_hashes(values), return_index=True)[1][: row_limit(rows.shape[1])]
        kept = values[order]
        kept.setflags(write=False)
        return cls(kept)

    def merge(self, other: "RowSample") -> "RowSample":
        """Return the sample of both sets of rows.

        Raises
        ------
        CalibrationError
            If the two differ in channels.
        """
        if self.rows.shape[1] != other.rows.shape[1]:
            raise CalibrationError(f"channels differ: {self.rows.shape[1]} and {other.rows.shape[1]}")
        return RowSample.of(np.concatenate([self.rows, other.rows]))

    def to_dict(self) -> dict[str, Any]:
        """Return the content in JSON's types: little-endian float32, base64."""
        content = base64.b64encode(self.rows.astype("<f4").tobytes()).decode()
        return {"channels": self.rows.shape[1], "float32": content}

    @classmethod
    def from_dict(cls, content: object) -> "RowSample":
        """Return the sample that :meth:`to_dict` described.

        Raises
        ------
        CalibrationError
            If it is damaged.
        """
        fields = take_keys(content, "rows", ("channels", "float32"))
        channels = take_whole(fields["channels"], "channels", 1, 1 << 31)
        try:
            raw = base64.b64decode(take_text(fields["float32"], "float32"), validate=True)
        except binascii.Error:
            raise CalibrationError("rows are not base64") from None
        if not raw or len(raw) % (4 * channels):
            raise CalibrationError(f"rows are not of {channels} channels")
        rows = np.frombuffer(raw, dtype="<f4").astype(np.float32).reshape(-1, channels)
        if len(rows) > row_limit(channels) or not np.isfinite(rows).all():
            raise CalibrationError("rows are too many, or not finite")
        return cls.of(rows)
