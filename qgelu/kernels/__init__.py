"""Numba kernels. They know integers and arrays only: parameters are prepared elsewhere, files and graphs are not theirs."""
