"""What the kernel benchmark runs on: a kind of activation, its plan, and data of an FFN's shape."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qgelu import AccumulatorParams, QParams, make_plan
from qgelu.activations import evaluate
from qgelu.kernels.binding import BoundKernel, BoundNarrow, BoundTable, BoundWide
from qgelu.kernels.registry import Implementation
from qgelu.plan import Plan

SHAPES = {
    "BERT-base": (128, 3072),
    "MiniLM": (128, 1536),
    "ViT-B": (197, 3072),
    "GPT-2": (1024, 3072),
    "one row": (1, 3072),
}

TITLES = {
    "table_8": "8-bit codes to 8-bit codes",
    "narrow": "int32 accumulators to 8-bit codes, per channel",
    "table_16": "16-bit codes to 16-bit codes",
    "wide": "int32 accumulators to 16-bit codes, per channel",
    "pack_4": "bytes to 4-bit codes, two in a byte",
    "unpack_4": "4-bit codes, two in a byte, to bytes",
}


@dataclass(frozen=True, eq=False)
class Job:
    """One kernel's work on one shape.

    Attributes
    ----------
    source : array of shape [rows, channels]
        Codes or accumulators; they stand for normal numbers of deviation 2.
    bias : int32 array of shape [channels], or None
    x : float32 array of shape [rows, channels]
        The real numbers that source and bias stand for.
    expected : array of shape [rows, channels]
        The plan's codes by its plain loops; for ``pack_4`` and ``unpack_4`` the kernel's own result, with half as many
        bytes or twice as many.
    scale : float
        Input scale of the per-tensor chains of other libraries.
    """

    kernel: str
    plan: Plan
    source: NDArray[Any]
    bias: NDArray[np.int32] | None
    x: NDArray[np.float32]
    expected: NDArray[Any]
    scale: float

    @property
    def real(self) -> NDArray[np.float64]:
        """The activation of x, in float64."""
        return evaluate(self.x.astype(np.float64), "gelu")


def make_job(kernel: str, shape: tuple[int, int]) -> Job:
    """Return a kernel's job on a shape, reproducible."""
    rng = np.random.default_rng(3)
    channels = shape[1]
    if kernel.endswith("pack_4"):
        return _packing_job(kernel, rng.integers(0, 256, shape).astype(np.uint8))
    x = rng.normal(0, 2, shape)
    if kernel.startswith("table"):
        bits = int(kernel.removeprefix("table_"))
        scale = 20.0 / 2**bits
        plan = make_plan(QParams(scale, 1 << (bits - 1), bits), QParams(scale / 2, 1 << (bits - 4), bits))
        source = plan.input.quantize(x)
        x = plan.input.dequantize(source)
        return Job(kernel, plan, source, None, x.astype(np.float32), plan.table[source], scale)
    bits = 8 if kernel == "narrow" else 16
    scale = 3e-5
    scales = scale * np.exp(rng.uniform(-0.5, 0.5, channels))
    output = QParams(
        10.0 / 2**bits * np.exp(rng.uniform(-0.5, 0.5, channels)), np.full(channels, 1 << (bits - 4)), bits
    )
    plan = make_plan(AccumulatorParams(scales), output)
    bias = rng.integers(-20000, 20000, channels).astype(np.int32)
    source = np.rint(x / scales - bias).astype(np.int32)
    x = (source.astype(np.int64) + bias) * scales
    totals = source.astype(np.int64) + bias
    columns = [plan.run_values(totals[:, channel], channel) for channel in range(channels)]
    expected = np.stack(columns, axis=1).astype(output.dtype)
    return Job(kernel, plan, source, bias, x.astype(np.float32), expected, scale)


def _packing_job(kernel: str, source: NDArray[np.uint8]) -> Job:
    """Return the work of a kernel that packs or unpacks, and a plan with 4 bits where it has them."""
    wide, narrow = QParams(20.0 / 256, 128), QParams(10.0 / 16, 1, 4)
    if kernel == "pack_4":
        plan = make_plan(wide, narrow)
        expected = (source[:, ::2] & 15) | (source[:, 1::2] << 4)
    else:
        plan = make_plan(QParams(20.0 / 16, 8, 4), narrow)
        expected = np.stack([source & 15, source >> 4], axis=-1).reshape(source.shape[0], -1)
    return Job(kernel, plan, source, None, np.zeros((0, 0), np.float32), expected, 1.0)


def bind(job: Job, implementation: Implementation) -> BoundKernel:
    """Return a job's kernel by a chosen path."""
    plan = job.plan
    if job.kernel.startswith("table"):
        return BoundTable(implementation, plan.table)
    arrays, coefficients = plan.integers.channel_arrays(), plan.integers.coefficients
    codes = (plan.output.qmax - plan.output.qmin, plan.output.qmin)
    if job.kernel == "narrow":
        return BoundNarrow(implementation, arrays, coefficients, *codes)
    return BoundWide(implementation, arrays, coefficients, *codes)
