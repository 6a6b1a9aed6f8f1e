"""The range of every channel by the methods that serve whole tensors too."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.channel_windows import channel_windows
from calibration.errors import CalibrationError
from calibration.observers import observe
from calibration.pickers import DEFAULT_PERCENTILE, METHODS, Method, pick_range

_MEASURED: Final = 1 << 30


def pick_channel_ranges(
    rows: NDArray[np.float32],
    minimum: NDArray[np.float64],
    maximum: NDArray[np.float64],
    method: Method,
    bits: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the range (low, high) of every channel, float64 [C] each.

    Parameters
    ----------
    rows : float32 array of shape [n, C]
        Some of the values.
    minimum, maximum : float64 arrays of shape [C]
        Of all values.
    method : str
        As in :func:`calibration.pick_range`: ``minmax``, ``percentile`` (of the rows), ``mse`` (of the rows, over
        :class:`calibration.channel_windows.ChannelWindows`), ``entropy`` (of the rows).
    bits : int
        Width of the codes.

    Raises
    ------
    CalibrationError
        If method is not one of these.
    """
    if method not in METHODS:
        raise CalibrationError(f"method {method!r} is not known: use one of {', '.join(METHODS)}")
    if method == "minmax":
        return minimum, maximum
    if method == "percentile":
        rest = 0.5 * (100.0 - DEFAULT_PERCENTILE)
        low, high = np.percentile(rows.astype(np.float64), [rest, 100.0 - rest], axis=0)
        return low, high
    if method == "mse":
        windows = channel_windows(rows, minimum, maximum, _MEASURED, bits)
        width = windows.best(bits)
        low = windows.low_at(width)
        return low, low + width
    ranges = np.empty((2, rows.shape[1]))
    for channel in range(rows.shape[1]):
        seen = observe(rows[:, channel])
        assert seen is not None
        ranges[:, channel] = pick_range(seen, "entropy", bits, signed=False)
    return np.maximum(ranges[0], minimum), np.minimum(ranges[1], maximum)
