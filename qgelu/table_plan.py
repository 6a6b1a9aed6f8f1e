"""Table plans: the correctly rounded answer for every code, computed once."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from qgelu.activations import Activation
from qgelu.certificate import Certificate, enumerate_inputs
from qgelu.correct_rounding import nearest
from qgelu.errors import QGeluError
from qgelu.kernels.rows import Kernel
from qgelu.plan import Plan
from qgelu.qparams import QParams


@dataclass(frozen=True, eq=False)
class TablePlan(Plan):
    """A table indexed by the input code's bit pattern.

    Attributes
    ----------
    table : array of shape [256] (inputs of up to 8 bits) or [65536]
        Output codes. Bit patterns beyond the input's bits hold the answer of the nearest code.
    """

    kind: ClassVar[str] = "table"

    table: NDArray[Any]

    def kernel(self, channels: int = 1) -> Kernel:
        """Return the lookup, a :class:`qgelu.kernels.binding.BoundTable`."""
        from qgelu.kernels.binding import BoundTable
        from qgelu.kernels.registry import selected

        bytes_only = self.table.size == 256 and self.table.itemsize == 1
        return BoundTable(selected("table_8" if bytes_only else "table_16"), self.table)

    def parameters(self) -> dict[str, Any]:
        """Return ``{"table": [...]}``."""
        return {"table": self.table.tolist()}


def codes_by_pattern(params: QParams) -> NDArray[np.int64]:
    """Return, for every bit pattern of the storage type, the code it stands for, saturated to the codes."""
    size = 1 << (8 * params.dtype.itemsize)
    patterns = np.arange(size).astype(f"u{params.dtype.itemsize}").view(params.dtype)
    return np.clip(patterns.astype(np.int64), params.qmin, params.qmax)


def check_per_tensor(input: QParams, output: QParams) -> None:
    """Raise QGeluError if either side is per channel."""
    if input.per_channel or output.per_channel:
        raise QGeluError("a table has one scale on each side: per channel needs method='polynomial'")


def make_table_plan(input: QParams, output: QParams, activation: Activation, alpha: float) -> TablePlan:
    """Return the plan whose every answer is correctly rounded.

    Raises
    ------
    QGeluError
        If either side is per channel.
    """
    check_per_tensor(input, output)
    codes = codes_by_pattern(input)
    distinct, inverse = np.unique(codes, return_inverse=True)
    low, high = output.qmin - output.zero_point, output.qmax - output.zero_point
    answers = nearest(distinct - input.zero_point, input.scale, output.scale, low, high, activation, alpha)
    table = (answers + output.zero_point).astype(output.dtype)[inverse]
    return table_plan_from_table(input, output, activation, alpha, table)


def table_plan_from_table(
    input: QParams, output: QParams, activation: Activation, alpha: float, table: NDArray[Any]
) -> TablePlan:
    """Return a plan of a given table, with a certificate found by trying every code."""
    table = np.array(table, dtype=output.dtype)
    table.setflags(write=False)
    size_mask = table.size - 1

    def run(values: NDArray[np.int64], channel: int) -> NDArray[Any]:
        return np.asarray(table[(values + input.zero_point) & size_mask], dtype=np.int64)

    found = enumerate_inputs(
        run,
        [(input.qmin - input.zero_point, input.qmax - input.zero_point)],
        np.array([input.scale]),
        output,
        activation,
        alpha,
    )
    certificate = Certificate(
        found.max_error_lsb,
        "enumerated",
        found.misrounded,
        found.inputs,
        found.worst_case,
        (input.qmin, input.qmax),
        (),
    )
    return TablePlan(input, output, activation, alpha, certificate, table)
