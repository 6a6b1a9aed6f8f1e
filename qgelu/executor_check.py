"""Executor against executor: a site's custom op as the file has it, on ONNX Runtime, against the Numba kernel.

ONNX Runtime runs the function in the file and, where the native library is there, the native kernel.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from qgelu.activations import dip
from qgelu.dip_check import channel_array, dip_interval
from qgelu.errors import QGeluError
from qgelu.graph.functions import DOMAIN, NARROW_INPUTS, REQUANTIZE_OP, TABLE_INPUTS, TABLE_OP, WIDE_INPUTS
from qgelu.graph.names import every_node
from qgelu.graph.plan_nodes import plan_node, tensor_type
from qgelu.native.loader import is_built
from qgelu.plan import Plan
from qgelu.polynomial_plan import PolynomialPlan
from qgelu.sessions import ModelRunner

RANDOM_ACCUMULATORS: Final = 4096
"""Pseudo-random accumulators tried in each channel."""

_PLACES: Final = {"onnxruntime": "in the file", "native": "in the native library"}
_DIP_POINTS: Final = 64
_ROWS: Final = 128
_SEED: Final = 2021
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class ExecutorCheck:
    """Comparison of one site's executors.

    Attributes
    ----------
    op : str
        Custom op.
    compared : tuple of str
        What was held to the Numba kernel: "onnxruntime", the file's function; "native", the native library.
    inputs : int
        Codes or accumulators tried, over all channels.
    exhaustive : bool
        Whether that is every bit pattern of the input type.
    differences : int
        Inputs whose codes differ in one of them.
    failure : str
        What differs first, or why the comparison could not be made; empty if all agree.
    """

    op: str
    compared: tuple[str, ...]
    inputs: int
    exhaustive: bool
    differences: int
    failure: str


def custom_nodes(model: onnx.ModelProto) -> tuple[onnx.NodeProto, ...]:
    """Return the nodes of this package's custom ops."""
    return tuple(node for node in every_node(model.graph.node) if node.domain == DOMAIN)


def node_of_site(model: onnx.ModelProto, name: str) -> onnx.NodeProto | None:
    """Return the custom op's node of a site, or None if the file has none, or more than one."""
    pattern = re.compile(rf"qgelu/{re.escape(name)}/(activated|hidden)(/{TABLE_OP}|/{REQUANTIZE_OP})?(_\d+)?")
    found = [
        node
        for node in custom_nodes(model)
        if pattern.fullmatch(node.name) or (node.output and pattern.fullmatch(node.output[0]))
    ]
    return found[0] if len(found) == 1 else None


def _formal_names(node: onnx.NodeProto, plan: Plan) -> tuple[str, ...]:
    if node.op_type == TABLE_OP:
        return TABLE_INPUTS
    if isinstance(plan, PolynomialPlan) and plan.lanes == 32:
        return WIDE_INPUTS
    return NARROW_INPUTS


def node_parameters(model: onnx.ModelProto, node: onnx.NodeProto, plan: Plan) -> dict[str, NDArray[Any]]:
    """Return a node's initializers by their formal names.

    Raises
    ------
    QGeluError
        If the node has another number of inputs, or one of them is no initializer.
    """
    names = _formal_names(node, plan)
    if len(node.input) != len(names):
        raise QGeluError(f"node {node.name!r} has {len(node.input)} inputs instead of {len(names)}")
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for value in node.input[1:]:
        if value not in tensors:
            raise QGeluError(f"node {node.name!r} reads {value!r}, which is no initializer")
    actual = zip(names[1:], node.input[1:], strict=True)
    return {formal: numpy_helper.to_array(tensors[value]) for formal, value in actual}


def one_node_model(
    model: onnx.ModelProto, node: onnx.NodeProto, parameters: dict[str, NDArray[Any]], plan: Plan
) -> onnx.ModelProto:
    """Return the node alone, with the file's own initializers and function: input ``codes``, output ``output``."""
    call = onnx.NodeProto()
    call.CopyFrom(node)
    del call.input[:]
    call.input.extend(["codes", *parameters])
    call.output[0] = "output"
    shape = ["rows", "channels"]
    graph = helper.make_graph(
        [call],
        "site",
        [helper.make_tensor_value_info("codes", tensor_type(plan.input_dtype), shape)],
        [helper.make_tensor_value_info("output", tensor_type(plan.output.dtype), shape)],
        [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in parameters.items()],
    )
    functions = [function for function in model.functions if function.domain == DOMAIN]
    return helper.make_model(
        graph, opset_imports=list(model.opset_import), functions=functions, ir_version=model.ir_version
    )


def _all_codes(plan: Plan) -> NDArray[Any]:
    """Return every bit pattern of the input type, [patterns, 1]."""
    width = plan.input_dtype.itemsize
    return np.arange(1 << (8 * width)).astype(f"u{width}").view(plan.input_dtype)[:, None]


def _critical_sums(plan: PolynomialPlan, channels: int) -> NDArray[np.float64]:
    """Return accumulators plus bias [rows, channels] where the arithmetic changes."""
    scale = channel_array(plan.input.scale, channels)
    output_scale = channel_array(plan.output.scale, channels)
    zero = channel_array(plan.output.zero_point, channels)
    limit = channel_array(plan.integers.limit, channels)
    powers = 2.0 ** np.arange(32)
    places = [
        *np.concatenate([[0.0], powers, -powers]),
        limit,
        -limit,
        (plan.output.qmax - zero) * output_scale / scale,
        (plan.output.qmin - zero) * output_scale / scale,
        plan.tail.cutoff / scale,
        -plan.tail.cutoff / scale,
        dip(plan.activation, plan.alpha).x / scale,
    ]
    rows = np.stack([np.broadcast_to(np.rint(place), (channels,)) for place in places])
    around = (rows[:, None, :] + np.arange(-2.0, 3.0)[None, :, None]).reshape(-1, channels)
    across = np.rint(np.linspace(*dip_interval(plan), _DIP_POINTS)[:, None] / scale)
    return np.concatenate([around, across])


def _random_sums(plan: PolynomialPlan, channels: int) -> Iterator[NDArray[np.float64]]:
    """Yield pseudo-random accumulators plus bias: three in four where the codes change, the rest anywhere."""
    random = np.random.default_rng(_SEED)
    scale = channel_array(plan.input.scale, channels)
    reach = channel_array(plan.output.scale, channels) * float(plan.output.qmax - plan.output.qmin)
    active = 1.25 * np.maximum(plan.tail.cutoff, reach) / scale
    for start in range(0, RANDOM_ACCUMULATORS, _ROWS):
        if start % (4 * _ROWS) == 0:
            yield random.integers(_INT32.min, _INT32.max, (_ROWS, channels), endpoint=True).astype(np.float64)
        else:
            yield np.rint(random.uniform(-1.0, 1.0, (_ROWS, channels)) * active)


def _accumulators(plan: PolynomialPlan, bias: NDArray[np.int64], channels: int) -> Iterator[NDArray[np.int32]]:
    """Yield int32 accumulators [rows, channels] to try."""
    ends = np.concatenate([_INT32.min + np.arange(3), _INT32.max - np.arange(3)])
    yield np.repeat(ends.astype(np.int32)[:, None], channels, axis=1)
    for sums in (_critical_sums(plan, channels), *_random_sums(plan, channels)):
        yield np.clip(sums - bias, _INT32.min, _INT32.max).astype(np.int32)


def _tampered(parameters: dict[str, NDArray[Any]], plan: Plan) -> str:
    """Return which initializers are not those of the plan; empty if all are."""
    bias = parameters.get("bias")
    expected = plan_node(plan, None if bias is None else bias.astype(np.int32)).parameters
    wrong = [name for name, value in expected.items() if not np.array_equal(value, parameters[name])]
    if not wrong:
        return ""
    return f"{', '.join(repr(name) for name in wrong)} in the file {'is' if len(wrong) == 1 else 'are'} not the plan's"


def check_executors(model: onnx.ModelProto, name: str, plan: Plan, *, threads: int | None = None) -> ExecutorCheck:
    """Compare a site's node, run on ONNX Runtime with the file's own initializers, with the Numba kernel.

    Once by the file's own function and, where the native library is there, once by that.

    Every bit pattern of 8 and 16-bit codes; for int32 accumulators, in each channel, the ends of int32, the
    places where the arithmetic changes and powers of two (each +-2), the dip, and 4,096 pseudo-random ones.
    """
    node = node_of_site(model, name)
    if node is None:
        return ExecutorCheck("", (), 0, False, 0, "the file has no custom op for it")
    try:
        return _compare(model, node, plan, threads)
    except (QGeluError, ValueError, IndexError, KeyError) as error:  # whatever a damaged file leads to
        reason = str(error) if isinstance(error, QGeluError) else f"{type(error).__name__}: {error}"
        return ExecutorCheck(node.op_type, (), 0, False, 0, f"its custom op cannot be run: {reason}")


def _compare(model: onnx.ModelProto, node: onnx.NodeProto, plan: Plan, threads: int | None) -> ExecutorCheck:
    if node.op_type not in {TABLE_OP, REQUANTIZE_OP}:
        raise QGeluError(f"op {node.op_type!r} is not known")
    parameters = node_parameters(model, node, plan)
    bias: NDArray[np.int32] | None = None
    channels = plan.channels or 1
    if node.op_type == REQUANTIZE_OP:
        bias = parameters["bias"].astype(np.int32).reshape(-1)
        channels = max(channels, bias.size)
    blocks: Iterator[NDArray[Any]]
    if isinstance(plan, PolynomialPlan) and bias is not None:
        blocks = _accumulators(plan, bias.astype(np.int64), channels)
    else:
        blocks = iter([_all_codes(plan)])
    tried = differences = 0
    failure = _tampered(parameters, plan)
    alone = one_node_model(model, node, parameters, plan)
    with ExitStack() as stack:
        runners = {"onnxruntime": stack.enter_context(ModelRunner(alone, "its custom op", threads=threads))}
        if is_built():
            runners["native"] = stack.enter_context(_native_runner(alone, threads))
        for codes in blocks:
            expected = plan(codes, bias=bias, threads=threads)
            unequal = np.zeros(codes.shape, bool)
            for executor, runner in runners.items():
                actual = np.asarray(runner.run({"codes": codes})["output"])
                if actual.dtype != expected.dtype or actual.shape != expected.shape:
                    raise QGeluError(f"gives {actual.dtype} {list(actual.shape)} for {list(codes.shape)} codes")
                if not unequal.any() and differences == 0 and not np.array_equal(actual, expected):
                    failure = _first_difference(codes, actual, expected, _PLACES[executor], failure)
                unequal |= actual != expected
            tried += codes.size
            differences += int(np.count_nonzero(unequal))
    return ExecutorCheck(node.op_type, tuple(runners), tried, bias is None, differences, failure)


def _native_runner(alone: onnx.ModelProto, threads: int | None) -> ModelRunner:
    """Return a runner of the node without its function: nothing but the native library can run it."""
    bare = onnx.ModelProto()
    bare.CopyFrom(alone)
    del bare.functions[:]
    return ModelRunner(bare, "the native library", threads=threads, native=True)


def _first_difference(codes: NDArray[Any], actual: NDArray[Any], expected: NDArray[Any], where: str, found: str) -> str:
    row, channel = (int(index[0]) for index in np.nonzero(actual != expected))
    place = f" in channel {channel}" if codes.shape[1] > 1 else ""
    difference = (
        f"input {int(codes[row, channel])}{place} gives {int(actual[row, channel])} {where} and "
        f"{int(expected[row, channel])} in the kernel"
    )
    return f"{found}; {difference}" if found else difference
