"""Strict reading of the values that a parsed JSON text holds."""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from calibration.errors import CalibrationError

_INT64_MAX = (1 << 63) - 1


def take_keys(value: object, what: str, keys: tuple[str, ...]) -> Mapping[str, object]:
    """Return an object that has exactly these keys, or raise CalibrationError."""
    if not isinstance(value, dict):
        raise CalibrationError(f"{what} is not an object")
    for key in keys:
        if key not in value:
            raise CalibrationError(f"{what} has no {key!r}")
    for key in value:
        if key not in keys:
            raise CalibrationError(f"{what} has an unknown {key!r}")
    return value


def take_text(value: object, what: str) -> str:
    """Return a string, or raise CalibrationError."""
    if not isinstance(value, str):
        raise CalibrationError(f"{what} is not a string")
    return value


def take_whole(value: object, what: str, low: int = 0, high: int = _INT64_MAX) -> int:
    """Return a whole number within [low, high], or raise CalibrationError."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise CalibrationError(f"{what} is not a whole number from {low} to {high}")
    return value


def take_number(value: object, what: str) -> float:
    """Return a finite number, or raise CalibrationError."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < math.inf:
        raise CalibrationError(f"{what} is not a finite number")
    try:
        return float(value)
    except OverflowError:
        raise CalibrationError(f"{what} is too large") from None


def take_whole_array(value: object, what: str) -> NDArray[np.int64]:
    """Return a list of whole numbers as int64 [n], or raise CalibrationError."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise CalibrationError(f"{what} is not a list of whole numbers")
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError:
        raise CalibrationError(f"{what} holds a number that is too large") from None


def take_number_array(value: object, what: str) -> NDArray[np.float64]:
    """Return a list of finite numbers as float64 [n], or raise CalibrationError."""
    if not isinstance(value, list):
        raise CalibrationError(f"{what} is not a list of numbers")
    return np.array([take_number(item, what) for item in value], dtype=np.float64)
