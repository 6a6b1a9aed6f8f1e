import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from flint import arb, ctx
from oracle import tail_ball

from qgelu.activations import tail
from qgelu.kernels import narrow as narrow_kernel
from qgelu.kernels import wide as wide_kernel
from qgelu.polynomial import DISTANCES, FORMATS, TailPolynomial, family_of, family_slope, tail_error, tail_polynomial
from qgelu.tail_coefficients import COEFFICIENTS

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "sigmoid": "silu"}
KEYS = sorted(COEFFICIENTS)

# What the polynomials must reach; the 16-bit figures of gelu and the sigmoids are those of the design.
LARGEST_ERROR = {
    ("gelu", 16): 7.6e-6,
    ("gelu_tanh", 16): 7.6e-6,
    ("sigmoid", 16): 6.1e-5,
    ("gelu", 32): 1e-6,
    ("gelu_tanh", 32): 1e-6,
    ("sigmoid", 32): 2.5e-6,
}


def fit_tails():
    """Return the fitting script as a module."""
    spec = importlib.util.spec_from_file_location("fit_tails", ROOT / "bench" / "fit_tails.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def every_argument(polynomial):
    """Return p(u) before and after its clamp, for every u, and all sums on the way, in exact integers."""
    form = polynomial.format
    u = np.arange(1 << form.argument_bits, dtype=np.int64)
    per_segment = 1 << (form.argument_bits - form.segment_bits)
    position = u % per_segment
    fraction = position * 2**form.fraction_bits // per_segment - 2 ** (form.fraction_bits - 1)
    rows = polynomial.coefficients.astype(np.int64)[u // per_segment]
    total, sums, products = rows[:, -1], [], []
    for column in range(rows.shape[1] - 2, -1, -1):
        product = total * fraction
        total = rows[:, column] + product // 2**form.fraction_bits  # floor
        products.append((int(product.min()), int(product.max())))
        sums.append((int(total.min()), int(total.max())))
    return total, sums, products


@pytest.mark.parametrize("key", KEYS)
def test_every_argument_stays_within_the_lanes(key):
    polynomial = tail_polynomial(*key)
    totals, sums, products = every_argument(polynomial)
    proof = polynomial.proof
    assert list(proof.horner_ranges) == sums
    assert np.array_equal(proof.values, np.maximum(totals, 0))
    for low, high in products:
        assert low >= -(2**31)
        assert high < 2**31
    if polynomial.lanes == 16:
        assert np.abs(polynomial.coefficients).max() <= 32767
        assert all(low >= -(2**15) and high < 2**15 for low, high in sums)


@pytest.mark.parametrize("key", KEYS)
def test_kernels_compute_the_same_tail(key):
    polynomial = tail_polynomial(*key)
    tail_value = (narrow_kernel if polynomial.lanes == 16 else wide_kernel).tail_value
    count = 1 << polynomial.format.argument_bits
    per_segment = count >> polynomial.format.segment_bits
    edges = np.arange(0, count, per_segment)
    for u in np.unique(np.concatenate([edges, edges + 1, edges + per_segment - 1, np.arange(0, count, 4099)])):
        assert tail_value(np.int64(u), polynomial.coefficients) == polynomial.proof.values[u]


@pytest.mark.parametrize(("kernel", "lanes"), [(narrow_kernel, 16), (wide_kernel, 32)])
def test_kernels_force_the_tail_not_to_be_negative(kernel, lanes):
    coefficients = np.zeros((1 << FORMATS[lanes].segment_bits, 4), np.int32)
    coefficients[:, 0] = -5
    assert kernel.tail_value(np.int64(70), coefficients) == 0
    assert TailPolynomial("gelu", lanes, 4.5, 1e5, coefficients).proof.values.max() == 0


@pytest.mark.parametrize("key", KEYS)
def test_the_largest_error_is_the_one_that_is_stated(key):
    polynomial = tail_polynomial(*key)
    count = 1 << polynomial.format.argument_bits
    argument = (np.arange(count) + polynomial.format.centre) * polynomial.cutoff / count
    error = np.abs(polynomial.proof.values / polynomial.gain - tail(argument, FAMILIES[key[0]]))
    assert polynomial.proof.max_error == pytest.approx(error.max(), abs=1e-15)
    assert error.max() <= LARGEST_ERROR[key]
    text = (ROOT / "qgelu" / "tail_coefficients.py").read_text(encoding="utf-8")
    stated = re.search(rf'argument: ([0-9.e-]+)\n    \("{key[0]}", {key[1]}\)', text)
    assert float(stated[1]) == pytest.approx(error.max(), rel=1e-3)
    # In arbitrary precision at the worst argument and a few others.
    for u in (int(np.argmax(error)), 0, 1, count // 3, count - 1):
        with ctx.workprec(120):
            t = (arb(u) + arb(polynomial.format.centre)) * arb(polynomial.cutoff) / count
            exact = tail_ball(t, FAMILIES[key[0]], 1.702) if u or polynomial.format.centre else arb(0)
            difference = abs(arb(int(polynomial.proof.values[u])) / arb(polynomial.gain) - exact)
        assert float(difference) == pytest.approx(error[u], abs=1e-15)


@pytest.mark.parametrize("key", KEYS)
def test_the_bound_holds_for_arguments_off_their_step(key):
    """|p(u) / gain - g(t)| for t anywhere within the distance of the centre of step u, and beyond the cut-off."""
    polynomial = tail_polynomial(*key)
    form, activation = polynomial.format, FAMILIES[key[0]]
    count = 1 << form.argument_bits
    u = np.arange(0, count, 1 if count < 1 << 17 else 7)
    values = polynomial.proof.values[u] / polynomial.gain
    for distance, bound in zip(DISTANCES, polynomial.proof.error_at, strict=True):
        reached = 0.0
        for direction in (-1, 1):
            off = direction * (distance + form.growth * u / count)
            argument = np.maximum((u + form.centre + off) * polynomial.step, 0.0)
            reached = max(reached, float(np.abs(values - tail(argument, activation)).max()))
        beyond = (count - 1 + np.geomspace(1e-3, 10 * count, 1000)) * polynomial.step
        beyond = beyond[beyond >= polynomial.cutoff]
        last = polynomial.proof.values[-1] / polynomial.gain
        reached = max(reached, float(np.abs(last - tail(beyond, activation)).max()))
        assert reached <= bound
        assert bound <= 1.5 * reached
        assert tail_error(polynomial, np.array([distance]))[0] == bound


@pytest.mark.parametrize("cutoff", [0.3, 0.7, 1.5])
def test_the_bound_covers_what_a_short_cut_off_leaves_out(cutoff):
    """g has its peak, 0.17, at 0.75: a cut-off before it must not hide it."""
    nothing = TailPolynomial("gelu", 16, cutoff, 1e5, np.zeros((16, 4), np.int32))
    largest = max(float(tail(t, "gelu")) for t in (cutoff, 0.7518) if t >= cutoff)
    assert min(nothing.proof.error_at) >= largest


@pytest.mark.parametrize("key", KEYS)
def test_the_bound_never_falls_with_the_distance(key):
    distance = np.array([0.0, 0.3, 0.5, 0.7, 1.0, 1.4, 1.5, 1.6, 3.0, 100.0])
    bounds = tail_error(tail_polynomial(*key), distance)
    assert np.all(np.diff(bounds) >= 0)
    assert np.all(np.diff(bounds)[distance[1:] > 0.5] > 0)


def test_families():
    assert [family_of(name) for name in ("gelu", "gelu_tanh", "quick_gelu", "silu")] == [
        "gelu",
        "gelu_tanh",
        "sigmoid",
        "sigmoid",
    ]
    assert [family_slope(name, 1.702) for name in ("gelu", "gelu_tanh", "quick_gelu", "silu")] == [1, 1, 1.702, 1]
    t = np.linspace(0, 8, 100)
    assert np.allclose(tail(t, "quick_gelu", 1.702), tail(1.702 * t, "silu") / 1.702, atol=1e-15)


@pytest.mark.parametrize("lanes", [16, 32])
def test_shapes(lanes):
    form = FORMATS[lanes]
    assert (form.inner_limit << (form.fraction_bits - 1)) < 2**31
    for family in FAMILIES:
        polynomial = tail_polynomial(family, lanes)
        assert polynomial.coefficients.shape[0] == 1 << form.segment_bits
        with pytest.raises(ValueError, match="read-only"):
            polynomial.coefficients[0, 0] = 1


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_committed_coefficients_are_those_of_the_fit(key):
    module = fit_tails()
    rows, worst = module.fit(*key)
    entry = COEFFICIENTS[key]
    assert [list(row) for row in entry["coefficients"]] == rows
    assert (entry["cutoff"], entry["gain"]) == module.SETTINGS[key][:2]
    assert worst == pytest.approx(tail_polynomial(*key).proof.max_error, rel=1e-9)
