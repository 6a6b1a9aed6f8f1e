import math

import flint
import numpy as np
import pytest
from flint import arb
from oracle import ACTIVATIONS, DIP, Rounder, rational, tail_ball, value, value_ball

from qgelu.activations import canonical_name, check_alpha, derivative, dip, evaluate, tail
from qgelu.errors import QGeluError

POINTS = np.concatenate(
    [np.linspace(-6, 6, 121), [0.0, 1e-300, -1e-300, 1e-8, -1e-8, 37.5, -36.0, 700.0, -700.0, 1e10, -1e10]]
)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("alpha", [1.702, 0.01, 30.0])
def test_value_and_tail_agree_with_arbitrary_precision(activation, alpha):
    slope = alpha if activation == "quick_gelu" else 1.0
    x = POINTS / slope
    got = evaluate(x, activation, alpha)
    got_tail = tail(np.abs(x), activation, alpha)
    for place, f, g in zip(x, got, got_tail, strict=True):
        exact = value(place, activation, alpha)
        # The condition number of erfc(t) and exp(z) is about x^2 (x^3 for the tanh form).
        tolerance = 1e-15 * (4.0 + min(abs(place * slope), 40.0) ** 3)
        assert f == pytest.approx(exact, rel=tolerance, abs=1e-300)
        exact_tail = max(place, 0.0) - exact if abs(place) < 3 else -value(-abs(place), activation, alpha)
        assert g == pytest.approx(exact_tail, rel=tolerance, abs=1e-15 * abs(place) + 1e-300)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("alpha", [1.702, 0.01, 30.0])
def test_derivative_agrees_with_arbitrary_precision(activation, alpha):
    slope = alpha if activation == "quick_gelu" else 1.0
    x = np.concatenate([np.linspace(-8, 8, 161), [0.0, 40.0, -40.0]]) / slope
    h = rational(2.0**-100)
    for place, got in zip(x, derivative(x, activation, alpha), strict=True):
        with flint.ctx.workprec(600):
            centre = rational(float(place))
            above, below = (value_ball(centre + d, activation, alpha) for d in (h, -h))
            exact = float((above - below) / arb(2 * h))
        assert got == pytest.approx(exact, abs=2e-13)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("alpha", [1.702, 0.05, 1.0, 44.0])
def test_dip_is_the_minimum(activation, alpha):
    found = dip(activation, alpha)
    slope = alpha if activation == "quick_gelu" else 1.0
    assert found.x * slope == pytest.approx(DIP[activation], rel=1e-14)
    assert found.y == pytest.approx(value(found.x, activation, alpha), rel=1e-14)
    with flint.ctx.workprec(400):
        lowest = value_ball(rational(DIP[activation]) / rational(slope), activation, alpha)
        for factor in (1 - 1e-6, 1 + 1e-6):
            beside = value_ball(rational(DIP[activation] * factor) / rational(slope), activation, alpha)
            assert lowest < beside


def test_dips_as_published():
    assert dip("gelu").x == pytest.approx(-0.75179, abs=5e-6)
    assert dip("gelu").y == pytest.approx(-0.16997, abs=5e-6)
    assert dip("gelu_tanh").y == pytest.approx(-0.17004, abs=5e-6)
    assert dip("silu").x == pytest.approx(-1.27846, abs=5e-6)
    assert dip("silu").y == pytest.approx(-0.27846, abs=5e-6)
    assert dip("quick_gelu").x == pytest.approx(-1.27846 / 1.702, abs=5e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_limits_and_nan(activation):
    x = np.array([np.inf, -np.inf, np.nan, 1e200, -1e200, 1e308, -1e308])
    assert np.array_equal(evaluate(x, activation), [np.inf, 0.0, np.nan, 1e200, 0.0, 1e308, 0.0], equal_nan=True)
    assert np.array_equal(derivative(x, activation), [1, 0, np.nan, 1, 0, 1, 0], equal_nan=True)
    assert np.array_equal(tail([0.0, np.inf, 1e200], activation), [0.0, 0.0, 0.0])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_shapes_and_types_pass_through(activation):
    assert evaluate(1, activation).shape == ()
    assert evaluate([[1, 2]], activation).shape == (1, 2)
    assert evaluate(np.zeros((0, 3), np.float32), activation).shape == (0, 3)
    assert evaluate(np.float32(0.5), activation).dtype == np.float64


def test_family_identities():
    x = np.linspace(-10, 10, 201)
    assert np.allclose(evaluate(x, "quick_gelu", 1.0), evaluate(x, "silu"), rtol=1e-15)
    for activation in ACTIVATIONS:  # f(x) + g(|x|) = max(x, 0), and f(x) - f(-x) = x
        assert np.allclose(evaluate(x, activation) + tail(np.abs(x), activation), np.maximum(x, 0), atol=1e-15)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gelu", "gelu"),
        ("Gelu", "gelu"),
        ("none", "gelu"),
        ("tanh", "gelu_tanh"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_fast", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("quick_gelu", "quick_gelu"),
        ("swish", "silu"),
        ("silu", "silu"),
    ],
)
def test_framework_names(name, expected):
    assert canonical_name(name) == expected


def test_unknown_name_and_bad_alpha_are_refused():
    with pytest.raises(QGeluError, match="relu"):
        canonical_name("relu")
    with pytest.raises(QGeluError, match=r"'gelu_10' is gelu, then a clip to \[-10, 10\]: use 'gelu'"):
        canonical_name("gelu_10")
    for name in (None, 7, ["gelu"]):
        with pytest.raises(QGeluError, match="activation must be a name, not"):
            canonical_name(name)
    for alpha in (0.0, -1.0, math.nan, math.inf, 1e-320, 1e300, "steep", None):
        with pytest.raises(QGeluError, match="alpha"):
            check_alpha(alpha)
    assert check_alpha("1.5") == 1.5


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_oracle_of_the_tests_agrees_with_the_definition(activation):
    """The oracle decomposes f; here f(x) = x s(x) is rounded directly."""
    rng = np.random.default_rng(5)
    for _ in range(100):
        input_scale, output_scale, k = (
            float(rng.uniform(0.001, 0.1)),
            float(rng.uniform(0.001, 0.1)),
            int(rng.integers(-300, 300)),
        )
        with flint.ctx.workprec(300):
            x = arb(rational(input_scale)) * k
            if activation == "gelu":
                f = x * (1 + (x / arb(2).sqrt()).erf()) / 2
            elif activation == "gelu_tanh":
                z = (2 / arb.pi()).sqrt() * (x + arb(0.044715) * x**3)
                f = x * (1 + z.tanh()) / 2
            else:
                f = x / (1 + (-x * (1.702 if activation == "quick_gelu" else 1)).exp())
            direct = int((f / arb(rational(output_scale)) + arb(0.5)).floor().unique_fmpz())
        assert Rounder(input_scale, output_scale, activation, 1.702)(k) == direct


def test_oracle_of_the_tests_decides_ties_of_the_linear_part():
    rounder = Rounder(1.0, 2.0, "gelu", 1.702)
    assert [rounder(k) for k in (1001, 65535, 1002, -1001)] == [500, 32767, 501, 0]
    with flint.ctx.workprec(100):
        assert tail_ball(arb(65535), "gelu", 1.702) >= 0
