"""What a plan adds to a bare call of its Numba function, on inputs so small that nothing else counts."""

from typing import Any

import numpy as np

from bench.timing import in_turn
from qgelu import AccumulatorParams, QParams, make_plan

ELEMENTS = 256


def small_calls(rounds: int) -> list[dict[str, Any]]:
    """Return microseconds of bare calls and of plans: ``call``, ``bare``, ``plan``."""
    codes, accumulators = np.zeros((1, ELEMENTS), np.uint8), np.zeros((1, ELEMENTS), np.int32)
    bias = np.zeros(ELEMENTS, np.int32)
    output = QParams(0.02, 10)
    cases = [
        ("8-bit table", make_plan(QParams(0.05, 128), output), codes, None, 1),
        ("narrow, per tensor", make_plan(AccumulatorParams(1e-4), output), accumulators, None, 1),
        ("narrow, per channel, bias", make_plan(AccumulatorParams([1e-4] * 256), output), accumulators, bias, 256),
    ]
    rows = []
    for name, plan, source, addend, channels in cases:
        kernel, out = plan.kernel(channels), np.empty(source.size, np.uint8)
        function, arguments, flat = kernel.function, kernel.arguments(addend), source.reshape(-1)
        bare, called = in_turn(
            [
                lambda function=function, flat=flat, out=out, arguments=arguments: function(flat, out, *arguments),
                lambda plan=plan, source=source, addend=addend: plan(source, addend),
            ],
            rounds,
        )
        rows.append({"call": name, "bare": 1e6 * bare.median, "plan": 1e6 * called.median})
    return rows
