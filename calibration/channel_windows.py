"""What each channel loses when its codes cover a part of its values, all of them, or more: windows to choose from."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.out_of_sample import measure_tails

_PARTS: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Parts of the range that was seen."""

_MARGINS: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Margins beyond it, in mean excesses."""

_CLIPPING_WEIGHT: Final = 2.0
"""How many times the squared error of clipping counts: rounding errs both ways and averages out, clipping errs one way,
and by most in the samples that stand out. docs/calibration.md has the measurement."""

_WIDEST_RATIO: Final = 2.0**-16
"""Channels of less than this part of the largest width are treated as of that part: their error is far below the
others' already, and scales stay within float32."""

_SHIFT_PRECISION: Final = 2.0**-19
"""x / scale + zero_point is computed in float32 (24 bits): with windows of at least this part of |middle| for each
code, no zero point exceeds 2**19, and the sum is right to 2**-5 of a code."""


@dataclass(frozen=True, eq=False)
class ChannelWindows:
    """For every channel, windows [low, low + width] of growing width, and the squared error of clipping to each.

    Parameters
    ----------
    low, width, clipping : float64 arrays of shape [windows, C]
        Widths ascend strictly along the first axis. ``clipping`` is the mean squared error of clipping, that of values
        out of sample included, times a weight.
    anchored : bool
        Whether a wider window than the widest grows upward only, or to both sides.
    """

    low: NDArray[np.float64]
    width: NDArray[np.float64]
    clipping: NDArray[np.float64]
    anchored: bool

    def best(self, bits: int) -> NDArray[np.float64]:
        """Return, per channel, the width of the least error of clipping and of rounding to codes, [C]."""
        rounding = np.square(self.width / ((1 << bits) - 1)) / 12.0
        index = np.argmin(rounding + self.clipping, axis=0)
        return np.asarray(np.take_along_axis(self.width, index[None], axis=0)[0])

    def place(self, width: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return, per channel, the window below a width and the part of the way (in logarithms) to the next."""
        index = np.clip((self.width <= width).sum(axis=0) - 1, 0, len(self.width) - 2)
        channels = np.arange(width.size)
        below, above = self.width[index, channels], self.width[index + 1, channels]
        return index, np.clip(np.log(width / below) / np.log(above / below), 0.0, 1.0)

    def clipping_at(self, width: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return, per channel, the clipping error at a width, and its derivative by the width's logarithm."""
        index, part = self.place(width)
        channels = np.arange(width.size)
        below, above = self.clipping[index, channels], self.clipping[index + 1, channels]
        run = np.log(self.width[index + 1, channels] / self.width[index, channels])
        slope = np.where((part > 0.0) & (part < 1.0), (above - below) / run, 0.0)
        return below + part * (above - below), slope

    def low_at(self, width: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, per channel, the low end of the window of a width."""
        index, _ = self.place(width)
        channels = np.arange(width.size)
        low, high = self.low[index, channels], self.low[index + 1, channels]
        below, above = self.width[index, channels], self.width[index + 1, channels]
        inside = low + np.clip((width - below) / (above - below), 0.0, 1.0) * (high - low)
        # Beyond the ends of the list a window grows or shrinks about its middle.
        outside = np.maximum(width - above, 0.0) + np.minimum(width - below, 0.0)
        return np.asarray(inside if self.anchored else inside - 0.5 * outside)


def channel_windows(
    rows: NDArray[np.float32],
    minimum: NDArray[np.float64],
    maximum: NDArray[np.float64],
    count: float,
    bits: int,
    *,
    lowest: float | None = None,
) -> ChannelWindows:
    """Return the windows of every channel.

    Windows inside the range that was seen lie about its middle, and lose what the rows show; windows beyond it
    lose what :class:`calibration.out_of_sample.Tails` expects.

    Parameters
    ----------
    rows : float32 array of shape [n, C]
        Some of the values.
    minimum, maximum : float64 arrays of shape [C]
        Of all values.
    count : float
        Values seen in each channel.
    bits : int
        Width of the codes.
    lowest : float, optional
        The least value that there can be, 0 or less. Windows then include 0, keep their low end, and reach no lower.
    """
    tails = measure_tails(rows, count)
    anchored = lowest is not None
    if lowest is not None:
        minimum, maximum = np.clip(minimum, lowest, 0.0), np.maximum(maximum, 0.0)
    middle = 0.5 * minimum + 0.5 * maximum
    center = minimum if anchored else middle
    narrowest = np.abs(middle) * ((1 << bits) - 1) * _SHIFT_PRECISION
    low, width, clipping = [], [], []
    for part in _PARTS:
        below, above = center + part * (minimum - center), center + part * (maximum - center)
        if anchored:
            above = np.maximum(above, 0.0)
        lost = np.zeros_like(middle)
        if part < 1.0:
            over = np.maximum(rows - above.astype(np.float32), 0) + np.maximum(below.astype(np.float32) - rows, 0)
            lost = np.mean(np.square(over, out=over), axis=0, dtype=np.float64)
        still = np.zeros_like(middle)
        lost = lost + tails.risk(still, high=True) + (0.0 if anchored else tails.risk(still, high=False))
        low.append(below)
        width.append(above - below)
        clipping.append(lost)
    for margin in _MARGINS:
        above = maximum + margin * tails.high
        lost = tails.risk(margin * tails.high, high=True)
        below = minimum - margin * tails.low
        if lowest is not None:
            below = np.maximum(below, lowest)
        else:
            lost = lost + tails.risk(margin * tails.low, high=False)
        low.append(below)
        width.append(above - below)
        clipping.append(lost)
    widths = np.stack(width)
    narrowest = np.maximum(narrowest, _WIDEST_RATIO * (float(widths.max()) or 1.0))
    # Channels that hardly vary: windows of a least width, about the values.
    lifted = np.maximum(widths, narrowest)
    lows = np.stack(low) - (0.0 if anchored else 0.5) * (lifted - widths)
    last = np.maximum((widths <= narrowest).sum(axis=0) - 1, 0)
    lost = np.stack(clipping)
    lost = np.where(np.arange(len(lost))[:, None] < last, np.take_along_axis(lost, last[None], axis=0), lost)
    growing = lifted * (1.0 + 1e-9 * np.arange(len(lifted))[:, None])
    return ChannelWindows(lows, growing, _CLIPPING_WEIGHT * lost, anchored)
