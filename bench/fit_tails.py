"""Fit the integer polynomials of the tails and write ``qgelu/tail_coefficients.py``.

    python bench/fit_tails.py            # rewrite the file
    python bench/fit_tails.py --check    # only compare; exit 1 if it would change

Per segment: weighted least squares, re-weighted towards the smallest maximum error (Lawson 1961); the real
coefficients are rounded with half a unit added for each floor that follows, and then moved by single units in
every combination while the largest error over the whole segment falls.
"""

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np
from numpy.polynomial import polynomial

from qgelu.activations import tail
from qgelu.polynomial import _REPRESENTATIVE, FORMATS, horner

TARGET = Path(__file__).resolve().parent.parent / "qgelu" / "tail_coefficients.py"

# (family, lanes): cut-off, gain, degree. The cut-off is where the tail no longer matters at the finest output scale
# that the lanes serve; the gain is the largest that keeps the coefficients and the Horner sums within the lanes.
SETTINGS = {
    ("gelu", 16): (4.5, 191_000.0, 3),
    ("gelu_tanh", 16): (4.5, 191_000.0, 3),
    ("sigmoid", 16): (12.0, 107_000.0, 3),
    ("gelu", 32): (5.0, 1_780_000.0, 3),
    ("gelu_tanh", 32): (5.0, 1_780_000.0, 3),
    ("sigmoid", 32): (18.0, 540_000.0, 4),
}


def fit_segment(target, fraction, fraction_bits, degree):
    """Return integer coefficients of one segment, lowest degree first."""
    phi = fraction / float(1 << (fraction_bits - 1))  # -1 to 1: well conditioned
    weight = np.ones(fraction.size)
    best = (np.inf, None)
    for _ in range(20):
        real = polynomial.polyfit(phi, target, degree, w=np.sqrt(weight))
        residual = np.abs(polynomial.polyval(phi, real) - target)
        best = min(best, (residual.max(), tuple(real)))
        weight = weight * (residual + 1e-9)
        weight /= weight.mean()
    real = np.array(best[1]) * 2.0 ** np.arange(degree + 1)
    current = np.floor(real + np.where(np.arange(degree + 1) < degree, 1.0, 0.5)).astype(np.int64)

    def largest_error(coefficients):
        return np.abs(np.maximum(horner(coefficients, fraction, fraction_bits)[0], 0) - target).max()

    error, improved = largest_error(current), True
    while improved:
        improved = False
        for move in itertools.product((-1, 0, 1), repeat=degree + 1):
            candidate = current + np.array(move)
            candidate_error = largest_error(candidate)
            if candidate_error < error:
                error, current, improved = candidate_error, candidate, True
    return current, error


def fit(family, lanes):
    """Return the integer coefficients [segments, degree + 1] and the largest error in real units."""
    cutoff, gain, degree = SETTINGS[family, lanes]
    form = FORMATS[lanes]
    offset_bits = form.argument_bits - form.segment_bits
    position = np.arange(1 << offset_bits, dtype=np.int64)
    fraction = (position << (form.fraction_bits - offset_bits)) - (1 << (form.fraction_bits - 1))
    rows, worst = [], 0.0
    for segment in range(1 << form.segment_bits):
        argument = (segment * position.size + position + form.centre) * cutoff / (1 << form.argument_bits)
        target = tail(argument, _REPRESENTATIVE[family]) * gain
        row, error = fit_segment(target, fraction, form.fraction_bits, degree)
        inner = [abs(v) for low_high in horner(row, fraction, form.fraction_bits)[1][:-1] for v in low_high]
        if max(abs(int(row[-1])), *inner) > form.inner_limit:
            sys.exit(f"{family}, {lanes} lanes: a Horner sum beyond {form.inner_limit}: lower the gain")
        rows.append(row.tolist())
        worst = max(worst, error)
    return rows, worst / gain


def render():
    """Return the text of the generated module."""
    lines = [
        '"""Integer coefficients of the tails\' polynomials. Written by bench/fit_tails.py: do not edit.',
        "",
        "Row k belongs to segment k: p = c0 + c1 phi + c2 phi^2 + c3 phi^3 ... in units of 1 / gain, phi in",
        "[-1/2, 1/2) over the segment. Behind each row: the real number that its first coefficient encodes, near g at",
        "the segment's middle.",
        '"""',
        "",
        "from typing import Any, Final",
        "",
        "COEFFICIENTS: Final[dict[tuple[str, int], dict[str, Any]]] = {",
    ]
    for (family, lanes), (cutoff, gain, degree) in SETTINGS.items():
        rows, worst = fit(family, lanes)
        print(f"{family:10} {lanes} lanes, degree {degree}: largest error {worst:.3g}", file=sys.stderr)
        lines += [
            f"    # largest |p / gain - g| over every argument: {worst:.3e}",
            f'    ("{family}", {lanes}): {{',
            f'        "cutoff": {cutoff},',
            f'        "gain": {gain},',
            '        "coefficients": (',
        ]
        lines += [f"            ({', '.join(map(str, row))}),  # {row[0] / gain:.8f}" for row in rows]
        lines += ["        ),", "    },"]
    lines += ["}", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    text_now = render()
    if parser.parse_args().check:
        sys.exit(0 if TARGET.read_text() == text_now else "qgelu/tail_coefficients.py would change")
    TARGET.write_text(text_now)


if __name__ == "__main__":
    main()
