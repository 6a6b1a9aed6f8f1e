"""Element-wise erfc in float64. NumPy has none; Numba compiles the C library's."""

import math

import numba


@numba.vectorize(cache=True)  # type: ignore[no-untyped-call]
def erfc(x):  # type: ignore[no-untyped-def]
    """Return the complementary error function of each element (float64)."""
    return math.erfc(x)
