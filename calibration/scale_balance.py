"""Scales of a matmul's input channels that make the error of its output least."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibration.channel_windows import ChannelWindows
from calibration.equalization import ChannelScales

_STEPS: Final = 300
_RATE: Final = 0.03
_FIRST_MOMENT: Final = 0.9
_SECOND_MOMENT: Final = 0.999
"""Adam's (Kingma and Ba 2015); the rate, in logarithms of scales, falls to 0 along half a cosine."""


def balance_scales(
    windows: ChannelWindows,
    weight: NDArray[Any],
    importance: NDArray[np.float64],
    remainder: NDArray[np.float64],
    bits: int,
    weight_limit: int,
) -> ChannelScales:
    """Return scales and zero points of a matmul's input that share the error between it and its weight.

    With s_j the scale of input channel j, c_j its clipping error and w its weight, g_n the importance of output n,
    L the weight's largest code and S_n its scale, the error to make least is

        sum over j of (s_j**2 / 12 + c_j(s_j)) * sum over n of g_n w_jn**2
          + sum over n of g_n S_n**2 / 12 * sum over j of v_j / s_j**2,      S_n = max over j of s_j |w_jn| / L

    Rounding to codes errs by s_j**2 / 12, and rounding to weights by S_n**2 / 12 times the square of the codes that no
    later weight makes up for: v_j, the variance of channel j given the channels after it. The descent is on log s_j,
    from the scales that are best without weights in mind; the best step is kept.

    Parameters
    ----------
    windows : ChannelWindows
        Of the input, K channels.
    weight : array of shape [K, N]
    importance : float64 array of shape [N]
    remainder : float64 array of shape [K]
        v_j.
    bits : int
        Of the input's codes.
    weight_limit : int
        Largest code of the weight.
    """
    last_code = float((1 << bits) - 1)
    magnitude = np.ascontiguousarray(np.abs(weight).T, dtype=np.float32)  # [N, K]
    loudness = np.square(weight.astype(np.float64)) @ importance
    outputs = np.arange(len(magnitude))
    product = np.empty_like(magnitude)

    def error_and_gradient(log_scale: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scale = np.exp(log_scale)
        np.multiply(magnitude, scale.astype(np.float32), out=product)
        largest = product.argmax(axis=1)
        weight_step = np.square(product[outputs, largest].astype(np.float64) / weight_limit) / 12.0 * importance
        share = remainder / np.square(scale)
        clipping, slope = windows.clipping_at(scale * last_code)
        rounding = np.square(scale) / 12.0
        total_step, total_share = float(weight_step.sum()), float(share.sum())
        error = float(((rounding + clipping) * loudness).sum()) + total_step * total_share
        gradient = (2.0 * rounding + slope) * loudness - 2.0 * share * total_step
        gradient += 2.0 * total_share * np.bincount(largest, weight_step, minlength=gradient.size)
        return error, gradient

    narrowest = np.log(windows.width[0] / last_code)
    current = np.log(windows.best(bits) / last_code)
    best, least = current, np.inf
    first, second = np.zeros_like(current), np.zeros_like(current)
    for step in range(_STEPS):
        error, gradient = error_and_gradient(current)
        if error < least:
            best, least = current, error
        if error <= 0.0:
            break
        gradient /= error
        first = _FIRST_MOMENT * first + (1.0 - _FIRST_MOMENT) * gradient
        second = _SECOND_MOMENT * second + (1.0 - _SECOND_MOMENT) * np.square(gradient)
        rate = 0.5 * _RATE * (1.0 + np.cos(np.pi * step / _STEPS))
        mean = first / (1.0 - _FIRST_MOMENT ** (step + 1))
        spread = np.sqrt(second / (1.0 - _SECOND_MOMENT ** (step + 1)))
        # Narrower windows than the list has are not known to lose no more.
        current = np.maximum(current - rate * mean / (spread + 1e-8), narrowest)
    scale = np.exp(best)
    return ChannelScales(scale, -windows.low_at(scale * last_code) / scale)
