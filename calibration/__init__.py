"""Calibration: what values a model's tensors take on real data, and the scales that follow from them.

Everything here is loaded at first use, so that the import costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibration.activation_range import negligible_below, pick_activation_input_range
    from calibration.capturing import TensorRequest, capture
    from calibration.channel_ranges import pick_channel_ranges
    from calibration.data import BatchSource, open_data
    from calibration.digest import model_digest
    from calibration.equalization import ChannelScales, equalize
    from calibration.errors import CalibrationError
    from calibration.held_out import held_out_samples, hold_out
    from calibration.histogram import Histogram
    from calibration.inputs import InputSpec, input_specs
    from calibration.observers import TensorObserver, TensorStatistics, observe
    from calibration.pickers import pick_range, qparams_from_range
    from calibration.store import Calibration

_HOMES = {
    "BatchSource": "data",
    "Calibration": "store",
    "CalibrationError": "errors",
    "ChannelScales": "equalization",
    "Histogram": "histogram",
    "InputSpec": "inputs",
    "TensorObserver": "observers",
    "TensorRequest": "capturing",
    "TensorStatistics": "observers",
    "capture": "capturing",
    "equalize": "equalization",
    "held_out_samples": "held_out",
    "hold_out": "held_out",
    "input_specs": "inputs",
    "model_digest": "digest",
    "negligible_below": "activation_range",
    "observe": "observers",
    "open_data": "data",
    "pick_activation_input_range": "activation_range",
    "pick_channel_ranges": "channel_ranges",
    "pick_range": "pickers",
    "qparams_from_range": "pickers",
}

__all__ = [
    "BatchSource",
    "Calibration",
    "CalibrationError",
    "ChannelScales",
    "Histogram",
    "InputSpec",
    "TensorObserver",
    "TensorRequest",
    "TensorStatistics",
    "capture",
    "equalize",
    "held_out_samples",
    "hold_out",
    "input_specs",
    "model_digest",
    "negligible_below",
    "observe",
    "open_data",
    "pick_activation_input_range",
    "pick_channel_ranges",
    "pick_range",
    "qparams_from_range",
]


def __getattr__(name: str) -> Any:
    """Load a public name's module when the name is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'calibration' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"calibration.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
