"""Everything that runs a plan on integers. Tests hold each of them to the same codes, bit for bit.

An executor takes a plan, accumulators (or codes) of shape [rows, C], a bias of shape [C] or None, and returns codes.
"""


def _call(plan, source, bias):
    return plan(source, bias=bias)


def _call_two_threads(plan, source, bias):
    return plan(source, bias=bias, threads=2)


EXECUTORS = {"kernel": _call, "kernel, two threads": _call_two_threads}
