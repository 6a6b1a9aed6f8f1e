"""Numba kernels. They know integers and arrays only; parameters are prepared elsewhere, and files are not theirs."""
