"""A plan as one node of a custom op with its integers as initializers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qgelu.errors import QGeluError
from qgelu.graph.functions import (
    DOMAIN,
    NARROW_INPUTS,
    REQUANTIZE_OP,
    TABLE_OP,
    VERSION,
    WIDE_COEFFICIENTS,
    WIDE_INPUTS,
    Opsets,
    narrow_function,
    short_narrow_function,
    table_function,
    wide_function,
)
from qgelu.narrow import SHORT_BIAS, NarrowParameters, is_short
from qgelu.plan import Plan
from qgelu.polynomial_plan import PolynomialPlan
from qgelu.qparams import AccumulatorParams
from qgelu.table_plan import TablePlan

_TENSOR_TYPES: Final = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
    "int32": TensorProto.INT32,
}


@dataclass(frozen=True)
class PlanNode:
    """A plan's node before its tensors have names.

    Attributes
    ----------
    op_type : str
        ``QGelu`` or ``RequantizeGelu``.
    parameters : dict of str to array
        Inputs after the first, by their formal names, in order.
    attributes : dict
    function : callable (Opsets) -> FunctionProto
    """

    op_type: str
    parameters: dict[str, NDArray[Any]]
    attributes: dict[str, Any]
    function: Callable[[Opsets], onnx.FunctionProto]


def tensor_type(dtype: np.dtype[Any]) -> int:
    """Return ONNX's number of an integer type of codes."""
    return _TENSOR_TYPES[dtype.name]


def _function(plan: PolynomialPlan, bias: NDArray[np.int32]) -> Callable[[Opsets], onnx.FunctionProto]:
    if plan.lanes == 32:
        return wide_function
    assert isinstance(plan.integers, NarrowParameters)
    within = bool(np.all(np.abs(bias.astype(np.int64)) <= SHORT_BIAS))
    return short_narrow_function if within and is_short(plan.integers) else narrow_function


def plan_node(plan: Plan, bias: NDArray[np.int32] | None = None) -> PlanNode:
    """Return the node of a plan.

    Parameters
    ----------
    plan : TablePlan or PolynomialPlan
        A polynomial plan must take accumulators.
    bias : int32 array of shape [C], optional
        Added to the accumulators.

    Raises
    ------
    QGeluError
        If no custom op runs this kind of plan.
    """
    if isinstance(plan, TablePlan):
        first_code = int(np.iinfo(plan.input_dtype).min)
        # By code instead of by bit pattern: the patterns of negative codes come last.
        table = np.roll(plan.table, -first_code)
        parameters = {"table": table, "first_code": np.array(first_code, np.int64)}
        return PlanNode(TABLE_OP, parameters, {"to": tensor_type(plan.output.dtype)}, table_function)
    if not isinstance(plan, PolynomialPlan) or not isinstance(plan.input, AccumulatorParams):
        raise QGeluError(f"a plan of kind {plan.kind!r} on codes has no custom op: make a table plan")
    integers = plan.integers.channel_arrays()
    width = max(integers["limit"].size, 1 if bias is None else bias.size)
    addend, lower, upper = plan.clamped_bias(width, bias)
    coefficients = plan.tail.coefficients
    if plan.lanes == 32:
        missing = WIDE_COEFFICIENTS - coefficients.shape[1]
        coefficients = np.pad(coefficients, ((0, 0), (0, missing)))
    values = {
        **integers,
        "bias": addend,
        "lower": lower,
        "upper": upper,
        "coefficients": coefficients,
        "code_minimum": np.array(plan.output.qmin, np.int32),
        "code_maximum": np.array(plan.output.qmax, np.int32),
    }
    names = NARROW_INPUTS if plan.lanes == 16 else WIDE_INPUTS
    function = _function(plan, addend)
    return PlanNode(
        REQUANTIZE_OP,
        {name: values[name] for name in names[1:]},
        {"to": tensor_type(plan.output.dtype)},
        function,
    )


def plan_model(plan: Plan, bias: NDArray[np.int32] | None = None, opset: int = 17, rank: int = 2) -> onnx.ModelProto:
    """Return a model of one node that runs a plan: input ``codes``, output ``output``, every axis dynamic.

    Parameters
    ----------
    plan, bias
        As for :func:`plan_node`.
    opset : int
        ai.onnx version.
    rank : int
        Number of axes of the codes.
    """
    node = plan_node(plan, bias)
    shape = [f"axis_{axis}" for axis in range(rank)]
    first = helper.make_tensor_value_info("codes", tensor_type(plan.input_dtype), shape)
    last = helper.make_tensor_value_info("output", tensor_type(plan.output.dtype), shape)
    names = list(node.parameters)
    call = helper.make_node(
        node.op_type, ["codes", *names], ["output"], domain=DOMAIN, name="activation", **node.attributes
    )
    initializers = [numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in node.parameters.items()]
    graph = helper.make_graph([call], "plan", [first], [last], initializers)
    return helper.make_model(
        graph,
        opset_imports=[*Opsets(opset).imports(), helper.make_opsetid(DOMAIN, VERSION)],
        functions=[node.function(Opsets(opset))],
        ir_version=8,
    )
