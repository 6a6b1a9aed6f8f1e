"""The custom ops as model-local functions of standard integer ops: docs/ops.md.

Written into the model, they let stock ONNX Runtime, onnx.reference and other runtimes run it. The bodies are flat
and use int32 wherever the arithmetic fits; a right shift of a value known not to be negative is a Div by a power of
two, since BitShift takes no signed integers and Div truncates towards zero.

`RequantizeGelu` in 16-bit lanes has two bodies that return the same codes: one in integers for every plan, and one in
float32, which takes a third of the time on ONNX Runtime, for plans with short multipliers, which FFNs have
(docs/arithmetic.md, section 3).

Tables are read by ai.onnx.ml's ArrayFeatureExtractor: ONNX Runtime's Gather takes six times as long, and
onnx.reference's GatherElements cannot read from more than 64 entries.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

DOMAIN: Final = "qgelu"
VERSION: Final = 1
ML_DOMAIN: Final = "ai.onnx.ml"
ML_VERSION: Final = 1
MINIMUM_OPSET: Final = 14
"""ai.onnx version the bodies need: Reshape's allowzero."""

TABLE_OP: Final = "QGelu"
REQUANTIZE_OP: Final = "RequantizeGelu"

TABLE_INPUTS: Final = ("codes", "table", "first_code")
NARROW_INPUTS: Final = (
    "accumulator",
    "bias",
    "lower",
    "upper",
    "left_shift",
    "linear_shift",
    "linear_multiplier",
    "argument_shift",
    "argument_multiplier",
    "tail_multiplier",
    "offset",
    "coefficients",
    "code_minimum",
    "code_maximum",
)
WIDE_INPUTS: Final = (
    "accumulator",
    "bias",
    "lower",
    "upper",
    "left_shift",
    "argument_multiplier",
    "argument_shift",
    "linear_multiplier",
    "tail_multiplier",
    "offset",
    "output_shift",
    "coefficients",
    "code_minimum",
    "code_maximum",
)
WIDE_COEFFICIENTS: Final = 5
"""Columns of the wide coefficients in a model: degree 4, zero where the polynomial has degree 3."""


@dataclass(frozen=True)
class Opsets:
    """Versions of the standard domains that a model imports; a function in it must import the same."""

    onnx: int
    ml: int = ML_VERSION

    def imports(self) -> list[Any]:
        """Return the imports."""
        return [helper.make_opsetid("", self.onnx), helper.make_opsetid(ML_DOMAIN, self.ml)]


class _Body:
    """Nodes of a function body; every method adds one node and returns its output's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._constants: dict[tuple[str, bytes], str] = {}

    def op(self, op_type: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        output = name or f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Any, dtype: str = "int32") -> str:
        array: NDArray[Any] = np.array(value, dtype=dtype)
        key = (f"{array.dtype}{array.shape}", array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.op("Constant", value=numpy_helper.from_array(array))
        return self._constants[key]

    def cast(self, value: str, to: int) -> str:
        return self.op("Cast", value, to=to)

    def power_of_two(self, exponent: str, to: int) -> str:
        """Return 2**exponent in the type ``to``; ``exponent`` holds int32 from 0 to 62."""
        one = self.constant([1], "uint64")
        return self.cast(self.op("BitShift", one, self.cast(exponent, TensorProto.UINT64), direction="LEFT"), to)

    def float32(self, value: float) -> str:
        return self.constant(value, "float32")

    def half(self, power: str, dtype: str = "int32") -> str:
        """Return power >> 1: what is added before a shift to round half up."""
        return self.op("Div", power, self.constant(2, dtype))

    def floor_shift(self, value: str, bits: int, magnitude_bits: int, dtype: str) -> str:
        """Return value >> bits, floor, of a signed value below 2**magnitude_bits in magnitude."""
        lifted = self.op("Add", value, self.constant(1 << magnitude_bits, dtype))
        shifted = self.op("Div", lifted, self.constant(1 << bits, dtype))
        return self.op("Sub", shifted, self.constant(1 << (magnitude_bits - bits), dtype))

    def look_up(self, table: str, index: str) -> str:
        """Return table[index], flat; ``table`` is of shape [n], ``index`` int64 and not empty."""
        return self.op("ArrayFeatureExtractor", table, index, domain=ML_DOMAIN)

    def lookup(self, table: str, index: str, shape_of: str) -> str:
        """Return table[index] in the shape of ``shape_of``; ``table`` is int32 of shape [n], ``index`` int64."""
        flat = self.op("Reshape", index, self.constant([-1], "int64"))
        # ONNX Runtime refuses an empty index: look one more up, and drop it.
        padded = self.op("Concat", flat, self.constant([0], "int64"), axis=0)
        output = self.look_up(table, padded)
        first, end, axis = (
            self.constant([0], "int64"),
            self.constant([-1], "int64"),
            self.constant([1], "int64"),
        )
        return self.op("Reshape", self.op("Slice", output, first, end, axis), self.op("Shape", shape_of), allowzero=1)

    def function(self, name: str, inputs: tuple[str, ...], attributes: list[str], opsets: Opsets) -> onnx.FunctionProto:
        return helper.make_function(DOMAIN, name, list(inputs), ["output"], self.nodes, opsets.imports(), attributes)


def _cast_to_attribute(body: _Body, value: str, name: str | None = None) -> str:
    """Return a value in the type that the function's attribute ``to`` names."""
    output = body.op("Cast", value, name=name)
    attribute = onnx.AttributeProto(name="to", type=onnx.AttributeProto.INT, ref_attr_name="to")
    body.nodes[-1].attribute.append(attribute)
    return output


def table_function(opsets: Opsets) -> onnx.FunctionProto:
    """Return ``QGelu(codes, table, first_code)``: output = table[codes - first_code]."""
    body = _Body()
    index = body.op("Sub", body.cast("codes", TensorProto.INT64), "first_code")
    value = body.lookup(body.cast("table", TensorProto.INT32), index, "codes")
    _cast_to_attribute(body, value, "output")
    return body.function(TABLE_OP, TABLE_INPUTS, ["to"], opsets)


def _clamp_and_scale(body: _Body) -> str:
    """Add the bias to the clamped accumulator and shift left: equations (10) and (11)."""
    clamped = body.op("Min", body.op("Max", "accumulator", "lower"), "upper")
    v = body.op("Add", clamped, "bias")
    return body.op("Mul", v, body.power_of_two("left_shift", TensorProto.INT32))


def _saturate_code(body: _Body, code: str, dtype: str) -> str:
    """Bring a code counted from 0 into the codes' range."""
    minimum, maximum = "code_minimum", "code_maximum"
    span = body.op("Sub", maximum, minimum)
    if dtype == "int64":
        code = body.cast(body.op("Min", code, body.cast(span, TensorProto.INT64)), TensorProto.INT32)
    else:
        code = body.op("Min", code, span)
    return body.op("Add", code, minimum)


def _narrow_tail_table(body: _Body) -> str:
    """Return p(u) of equation (15) for every u; it depends on constants alone, so runtimes fold it at load."""
    u = body.op("Range", body.constant(0), body.constant(65536), body.constant(1))
    segment = body.op("Div", u, body.constant(4096))
    within = body.op("Sub", u, body.op("Mul", segment, body.constant(4096)))
    fraction = body.op("Sub", body.op("Mul", within, body.constant(16)), body.constant(32768))
    columns = [
        body.op("Gather", body.op("Gather", "coefficients", body.constant(k, "int64"), axis=1), segment)
        for k in range(4)
    ]
    p = columns[3]
    for k in (2, 1, 0):
        p = body.op("Add", columns[k], body.floor_shift(body.op("Mul", p, fraction), 16, 30, "int32"))
    return body.op("Max", p, body.constant(0))


def narrow_function(opsets: Opsets) -> onnx.FunctionProto:
    """Return ``RequantizeGelu`` in the 16-bit-lane arithmetic: equations (10) to (18)."""
    body = _Body()
    v = _clamp_and_scale(body)
    top = body.constant(65535)

    def shift_and_scale(value: str, shift: str, multiplier: str) -> str:
        divisor = body.power_of_two(shift, TensorProto.INT32)
        rounded = body.op("Div", body.op("Add", value, body.half(divisor)), divisor)
        saturated = body.op("Min", rounded, top)
        scaled = body.op("Div", body.op("Mul", saturated, multiplier), body.constant(1 << 15))
        return body.op("Add", saturated, scaled)

    linear = shift_and_scale(body.op("Max", v, body.constant(0)), "linear_shift", "linear_multiplier")
    argument = shift_and_scale(body.op("Abs", v), "argument_shift", "argument_multiplier")
    u = body.op("Min", argument, top)
    p = body.lookup(_narrow_tail_table(body), body.cast(u, TensorProto.INT64), u)
    tail = body.op("Div", body.op("Mul", p, "tail_multiplier"), body.constant(1 << 16))
    positive = body.op("Min", body.op("Add", linear, "offset"), top)
    difference = body.op("Max", body.op("Sub", positive, tail), body.constant(0))
    code = _saturate_code(body, body.op("Div", difference, body.constant(1 << 7)), "int32")
    _cast_to_attribute(body, code, "output")
    return body.function(REQUANTIZE_OP, NARROW_INPUTS, ["to"], opsets)


def _scaled_sum(body: _Body, scale: str) -> str:
    """Return (accumulator + bias) * scale, float32; ``scale`` holds powers of two.

    ONNX Runtime makes MatMulInteger, Cast, Mul, Add one operator if the Mul is by a product of two scales that it
    does not fold. An element of a sequence is not folded.
    """
    sequence = body.op("SequenceConstruct", body.float32(1.0))
    element = body.op("SequenceAt", sequence, body.constant(0, "int64"))
    one = body.op("Reshape", element, body.constant([1], "int64"))  # shape inference knows no shape of an element
    product = body.op("Mul", body.cast("accumulator", TensorProto.FLOAT), body.op("Mul", one, scale))
    return body.op("Add", product, body.op("Mul", body.cast("bias", TensorProto.FLOAT), scale))


def _with_a_row_more(body: _Body, value: str, shape: str) -> str:
    """Return float32 [..., C] as [rows + 1, C], the last row zeros: ONNX Runtime looks up no empty index."""
    end = body.constant([1 << 62], "int64")
    last = body.op("Slice", shape, body.constant([-1], "int64"), end)
    channels = body.op("Max", last, body.constant([1], "int64"))
    rows = body.op("Reshape", value, body.op("Concat", body.constant([-1], "int64"), channels, axis=0))
    return body.op("Pad", rows, body.constant([0, 0, 1, 0], "int64"))


def short_narrow_function(opsets: Opsets) -> onnx.FunctionProto:
    """Return ``RequantizeGelu`` in float32, for plans with short multipliers: equations (10) to (18), exactly.

    Whatever can decide a code is a multiple of a power of two within 24 bits. What rounds is beyond saturation, but
    for the factor 1 + 2**-23: it makes every half a little more, so that Round's half to even rounds it up.
    """
    body = _Body()
    left, linear_power, argument_power = (
        body.power_of_two(name, TensorProto.FLOAT) for name in ("left_shift", "linear_shift", "argument_shift")
    )
    nudge = body.float32(1.0 + 2.0**-23)

    def one_and(fraction: str) -> str:
        part = body.op("Mul", body.cast(fraction, TensorProto.FLOAT), body.float32(2.0**-15))
        return body.op("Add", body.float32(1.0), part)

    scaled = _scaled_sum(body, body.op("Div", left, linear_power))
    shape = body.op("Shape", scaled)
    rows = _with_a_row_more(body, scaled, shape)
    positive = body.op("Clip", rows, body.float32(0.0), body.float32(65536.0))
    linear = body.op("Round", body.op("Mul", positive, nudge))
    linear = body.op("Mul", linear, one_and("linear_multiplier"))
    to_argument = body.op("Mul", body.op("Div", linear_power, argument_power), nudge)
    argument = body.op("Round", body.op("Mul", body.op("Abs", rows), to_argument))
    argument = body.op("Mul", argument, one_and("argument_multiplier"))
    u = body.cast(body.op("Min", argument, body.float32(65535.0)), TensorProto.INT64)
    table = body.cast(_narrow_tail_table(body), TensorProto.FLOAT)
    p = body.op("Reshape", body.look_up(table, u), body.op("Shape", u))
    to_result = body.op("Mul", body.cast("tail_multiplier", TensorProto.FLOAT), body.float32(2.0**-16))
    tail = body.op("Floor", body.op("Mul", p, to_result))
    # Rounding (r - 64) / 128 with 2**-8 on top is a floor of r / 128, since r counts in steps of 2**-7: never a tie.
    offset = body.op("Add", body.cast("offset", TensorProto.FLOAT), body.float32(2.0**-8 - 64.0))
    result = body.op("Add", body.op("Sub", linear, tail), offset)
    minimum, maximum = (_cast_to_attribute(body, name) for name in ("code_minimum", "code_maximum"))
    code = body.op("Clip", body.op("QuantizeLinear", result, body.float32(128.0), minimum), minimum, maximum)
    kept = body.op("Slice", code, body.constant([0], "int64"), body.constant([-1], "int64"))
    body.op("Reshape", kept, shape, allowzero=1, name="output")
    return body.function(REQUANTIZE_OP, NARROW_INPUTS, ["to"], opsets)


def wide_function(opsets: Opsets) -> onnx.FunctionProto:
    """Return ``RequantizeGelu`` in the wide arithmetic: equations (20) to (25)."""
    body = _Body()
    v = _clamp_and_scale(body)
    magnitude = body.cast(body.op("Abs", v), TensorProto.INT64)
    divisor = body.power_of_two("argument_shift", TensorProto.INT64)
    product = body.op("Mul", magnitude, body.cast("argument_multiplier", TensorProto.INT64))
    rounded = body.op("Div", body.op("Add", product, body.half(divisor, "int64")), divisor)
    u = body.cast(body.op("Min", rounded, body.constant((1 << 20) - 1, "int64")), TensorProto.INT32)
    segment = body.op("Div", u, body.constant(1 << 15))
    index = body.cast(segment, TensorProto.INT64)
    within = body.op("Sub", u, body.op("Mul", segment, body.constant(1 << 15)))
    fraction = body.cast(body.op("Sub", within, body.constant(1 << 14)), TensorProto.INT64)
    columns = [
        body.cast(
            body.lookup(body.op("Gather", "coefficients", body.constant(k, "int64"), axis=1), index, u),
            TensorProto.INT64,
        )
        for k in range(WIDE_COEFFICIENTS)
    ]
    p = columns[-1]
    for k in range(WIDE_COEFFICIENTS - 2, -1, -1):
        p = body.op("Add", columns[k], body.floor_shift(body.op("Mul", p, fraction), 15, 40, "int64"))
    p = body.op("Max", p, body.constant(0, "int64"))
    positive = body.cast(body.op("Max", v, body.constant(0)), TensorProto.INT64)
    linear = body.op("Mul", positive, body.cast("linear_multiplier", TensorProto.INT64))
    tail = body.op("Mul", p, body.cast("tail_multiplier", TensorProto.INT64))
    result = body.op("Sub", body.op("Add", linear, "offset"), tail)
    saturated = body.op("Max", result, body.constant(0, "int64"))
    shifted = body.op("Div", saturated, body.power_of_two("output_shift", TensorProto.INT64))
    _cast_to_attribute(body, _saturate_code(body, shifted, "int64"), "output")
    return body.function(REQUANTIZE_OP, WIDE_INPUTS, ["to"], opsets)
