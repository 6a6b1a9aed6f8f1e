"""Everything that runs a plan on integers. Tests hold each of them to the same codes, bit for bit.

An executor takes a plan, accumulators (or codes) of shape [rows, C], a bias of shape [C] or None, and returns codes.
"""

import numpy as np
from random_plans import INT32


def _call(plan, source, bias):
    return plan(source, bias=bias)


def _call_two_threads(plan, source, bias):
    return plan(source, bias=bias, threads=2)


def plain_loop(plan, source, bias):
    """The scalar loop that certificates are enumerated with, channel by channel; it takes sums."""
    sums = source.astype(np.int64) + (0 if bias is None else np.asarray(bias, dtype=np.int64))
    sums = np.clip(sums, INT32.min, INT32.max)  # far beyond every clamp
    if plan.channels is None:
        return plan.run_values(sums.ravel(), 0).reshape(sums.shape)
    return np.stack([plan.run_values(sums[:, channel], channel) for channel in range(plan.channels)], axis=1)


EXECUTORS = {"kernel": _call, "kernel, two threads": _call_two_threads, "plain loop": plain_loop}
