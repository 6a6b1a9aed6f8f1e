import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qgelu import AccumulatorParams, QGeluError, QParams


@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("signed", [False, True])
def test_codes_and_types(bits, signed):
    params = QParams(0.5, 0, bits, signed)
    assert params.qmax - params.qmin == 2**bits - 1
    assert params.qmin == (-(2 ** (bits - 1)) if signed else 0)
    assert params.dtype == np.dtype(("int" if signed else "uint") + ("8" if bits <= 8 else "16"))
    assert not params.per_channel
    for zero_point in (params.qmin, params.qmax):
        assert QParams(0.5, zero_point, bits, signed).zero_point == zero_point
    for zero_point in (params.qmin - 1, params.qmax + 1):
        with pytest.raises(QGeluError, match=f"zero_point {zero_point}"):
            QParams(0.5, zero_point, bits, signed)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0.0,), "scale"),
        ((-1.0,), "scale"),
        ((float("nan"),), "scale"),
        ((float("inf"),), "scale"),
        ((1e-50,), "scale"),
        ((1e50,), "scale"),
        ((10**400,), "scale"),
        (("x",), "scale"),
        ((None,), "scale"),
        (([],), "scale"),
        (([[1.0]],), "scale"),
        (([1.0, 0.0],), "channel 1"),
        (([1.0, [2.0]],), "scale"),
        ((1.0, 0.5), "zero_point"),
        ((1.0, 1.0), "zero_point"),
        ((1.0, "0"), "zero_point"),
        ((1.0, True), "zero_point"),
        ((1.0, None), "zero_point"),
        ((1.0, 10**30), "zero_point"),
        ((1.0, [1, [2]]), "zero_point"),
        ((1.0, [[1]]), "zero_point"),
        ((1.0, []), "zero_point"),
        ((1.0, [1, 256]), "zero_point 256"),
        (([1.0, 2.0], [1, 2, 3]), "2 channels"),
        ((1.0, 0, 1), "bits"),
        ((1.0, 0, 17), "bits"),
        ((1.0, 0, 8.0), "bits"),
        ((1.0, 0, True), "bits"),
        ((1.0, 0, None), "bits"),
        ((1.0, 0, 8, "no"), "signed"),
        ((1.0, 0, 8, 1), "signed"),
    ],
)
def test_bad_parameters_are_refused_by_name(arguments, named):
    with pytest.raises(QGeluError, match=named) as caught:
        QParams(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), [1.0, -1.0], [], "x", None, [[1.0]], 1e-50])
def test_bad_accumulator_scales_are_refused(scale):
    with pytest.raises(QGeluError, match="accumulator scale"):
        AccumulatorParams(scale)


def test_per_channel_parameters_broadcast_and_cannot_be_changed():
    params = QParams([0.1, 0.2, 0.3], 5)
    assert params.per_channel
    assert params.zero_point.tolist() == [5, 5, 5]
    assert QParams(0.1, [1, 2]).scale.tolist() == [0.1, 0.1]
    for array in (params.scale, params.zero_point, AccumulatorParams([1.0]).scale):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 9
    scale = np.array([0.1, 0.2])
    kept = QParams(scale, np.array([1, 2]))
    scale[0] = 7.0
    assert kept.scale[0] == 0.1


def test_equality():
    assert QParams(0.1, 3) == QParams(0.1, np.int64(3), np.int32(8), np.False_)
    assert QParams(0.1, 3) != QParams(0.1, 4)
    assert QParams(0.1, 3) != QParams(0.2, 3)
    assert QParams(0.1, 3, 7) != QParams(0.1, 3, 8)
    assert QParams(0.1, 3, 8, True) != QParams(0.1, 3, 8, False)
    assert QParams([0.1, 0.2]) == QParams([0.1, 0.2])
    assert QParams(0.1) != AccumulatorParams(0.1)
    assert AccumulatorParams([0.1]) == AccumulatorParams([0.1])
    assert AccumulatorParams(0.1) != AccumulatorParams(0.2)


def test_quantize_rounds_half_to_even_and_saturates():
    params = QParams(0.5, 10, 8, False)
    x = [-1e300, -5.25, -0.25, 0.25, 0.75, 1.25, 0.0, -np.inf, np.inf, 1e300]
    assert params.quantize(x).tolist() == [0, 0, 10, 10, 12, 12, 10, 0, 255, 255]
    assert params.quantize(np.float32([122.5, 122.6])).tolist() == [255, 255]
    assert params.quantize([]).shape == (0,)
    assert params.quantize(1.0).dtype == np.uint8
    with pytest.raises(QGeluError, match="NaN"):
        params.quantize([1.0, np.nan])


def test_quantize_divides_float32_in_float32():
    """As ONNX Runtime: 0.35f / 0.1 is 3.5 in float32 arithmetic, which rounds to 4, and 3.49999994 in float64."""
    x, scale = np.float32(0.35), 0.1
    assert QParams(scale).quantize(x) == 4
    assert QParams(scale).quantize(np.float64(x)) == 3


def test_per_channel_quantize_and_dequantize():
    params = QParams([0.5, 0.25], [0, 100], 8, False)
    codes = params.quantize([[1.0, 1.0], [2.0, -1.0]])
    assert codes.tolist() == [[2, 104], [4, 96]]
    assert params.dequantize(codes).tolist() == [[1.0, 1.0], [2.0, -1.0]]


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        ("a", r"cannot quantize 'a': give an array of real numbers"),
        (["1.5"], "give an array of real numbers"),
        ([1j], "give an array of real numbers"),
        ([[1], [1, 2]], "give an array of real numbers"),
        ([object()], "give an array of real numbers"),
        (["a", 1.0], "give an array of real numbers"),
        ([1, 2, 3], r"cannot quantize shape \[3\]: the last axis must have 2 channels"),
    ],
)
def test_what_cannot_be_quantized_is_one_line(x, reason):
    params = QParams([0.1, 0.2])
    with pytest.raises(QGeluError, match=reason) as caught:
        params.quantize(x)
    assert "\n" not in str(caught.value)
    with pytest.raises(QGeluError, match=reason.replace("quantize", "dequantize")):
        params.dequantize(x)
    assert QParams([0.1]).quantize([1, 2, 3]).tolist() == [10, 20, 30]
    assert params.quantize([[1.0], [2.0]]).tolist() == [[10, 5], [20, 10]]


@given(st.floats(1e-6, 10.0), st.integers(2, 16), st.booleans(), st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1))
def test_every_code_survives_a_round_trip(scale, bits, signed, zero, code):
    low = -(2 ** (bits - 1)) if signed else 0
    params = QParams(scale, low + zero % 2**bits, bits, signed)
    code = low + code % 2**bits
    assert params.quantize(params.dequantize(code)) == code
