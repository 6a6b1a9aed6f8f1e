"""4-bit codes, two in a byte: the kernels that pack them, and plans that take or return them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.contestant import Contestant, equal
from bench.kernel_inputs import Job
from qgelu.kernels.cpu import target
from qgelu.kernels.registry import IMPLEMENTATIONS
from qgelu.packed import run_packed


def packing(job: Job, threads: int) -> Iterator[Contestant]:
    """Yield the kernel's paths, and the plan on packed codes. No peer has an activation for such codes."""
    source = job.source.reshape(-1)
    more = () if job.kernel == "pack_4" else (np.uint8(0),)
    for implementation in IMPLEMENTATIONS:
        if implementation.kernel == job.kernel and implementation.features <= target()[2]:
            function, out = implementation.function(), np.empty_like(job.expected)

            def run(function: Any = function, out: NDArray[Any] = out) -> NDArray[Any]:
                function(source, out.reshape(-1), *more)
                return out

            yield Contestant(f"qgelu kernel, {implementation.path}", run, equal(job.expected))
    rows, columns = job.source.shape
    if job.kernel == "pack_4":
        name, shape, q, codes = "8-bit codes to packed codes", (rows, columns), job.source, job.source
    else:
        name, shape, q, codes = "packed codes to packed codes", (rows, 2 * columns), source, job.expected
    answers = job.plan.table[codes]
    packed = np.asarray(answers[:, ::2] | (answers[:, 1::2] << 4)).reshape(-1)
    result = np.empty_like(packed)
    yield Contestant(
        f"qgelu plan, {name}",
        lambda: run_packed(job.plan, q, shape, out=result, threads=threads),
        equal(packed),
    )
