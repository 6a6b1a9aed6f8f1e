"""The one exception for data and calibrations that cannot be used."""


class CalibrationError(ValueError):
    """Input that cannot be used; the message is one line with the thing's name and the remedy."""
