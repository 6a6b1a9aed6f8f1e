"""Numbers as text for people: tables in the terminal and in reports."""


def number(value: float | None, digits: int = 4) -> str:
    """Return a number; "-" for None."""
    return "-" if value is None else f"{value:.{digits}g}"


def decimal(value: float | None, places: int) -> str:
    """Return a number with a fixed count of decimals; "-" for None."""
    return "-" if value is None else f"{value:.{places}f}"


def percent(value: float | None) -> str:
    """Return a share in percent; "-" for None."""
    return "-" if value is None else f"{100.0 * value:.2f} %"


def size(count: int) -> str:
    """Return a number of bytes for people."""
    return f"{count / 1024.0:.0f} KB" if count < (1 << 20) else f"{count / (1 << 20):.1f} MB"
