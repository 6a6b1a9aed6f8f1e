"""How well a plan serves the values that enter its activation."""

import numpy as np
from numpy.typing import NDArray

from qgelu.activations import evaluate
from qgelu.dip_check import check_dip
from qgelu.output_comparison import decibels
from qgelu.pipeline import QuantizedSite
from qgelu.plan import Plan
from qgelu.qparams import QParams
from qgelu.reporting.content import SiteQuality

_INT32 = np.iinfo(np.int32)


def integer_answer(plan: Plan, x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return what a plan makes of real inputs [rows, channels]: quantized, run in integers, dequantized."""
    if isinstance(plan.input, QParams):
        codes = plan.input.quantize(x)
    else:
        sums = np.rint(np.asarray(x, dtype=np.float64) / plan.input.scale)
        codes = np.clip(sums, _INT32.min, _INT32.max).astype(np.int32)
    return plan.output.dequantize(plan(codes))


def site_quality(site: QuantizedSite, x: NDArray[np.float32] | None) -> SiteQuality:
    """Measure one site of a quantized model on recorded values of x, [rows, channels]."""
    sqnr = None
    if x is not None and x.size:
        exact = evaluate(x, site.plan.activation, site.plan.alpha)
        noise = integer_answer(site.plan, x) - exact
        sqnr = decibels(float(np.square(exact).sum()), float(np.square(noise).sum()))
    return SiteQuality(
        site.name,
        site.scope,
        site.note,
        site.plan.kind,
        sqnr,
        site.plan.certificate.max_error_lsb,
        check_dip(site.plan).max_error_lsb,
    )
