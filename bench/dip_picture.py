"""Draw docs/dip.svg: the dip at 4 bits, the correctly rounded integers beside i-GELU as published.

python bench/dip_picture.py
"""

import matplotlib as mpl
import numpy as np
from marked import ROOT

from qgelu import QParams, make_plan
from qgelu.activations import dip, evaluate

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "qgelu"
from matplotlib import pyplot  # noqa: E402  (after the backend is chosen)


def main():
    """Write the picture."""
    source = QParams(6.0 / 15, 10, 4, signed=False)
    target = QParams(2.2 / 15, 1, 4, signed=False)
    real = np.linspace(-4.2, 2.2, 1500)
    bottom = dip("gelu")
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, (method, title) in zip(axes, [("table", "qgelu"), ("ibert", "i-GELU as published")], strict=True):
        plan = make_plan(source, target, "gelu", method=method)
        step = target.dequantize(plan(source.quantize(real)))
        axis.plot(real, evaluate(real), color="0.55", label="float GELU")
        axis.step(real, step, where="mid", color="#0b6e99", label="4-bit codes in, 4-bit codes out")
        axis.axvline(bottom.x, color="0.8", linestyle=":")
        certificate = plan.certificate
        axis.set_title(f"{title}: at most {certificate.max_error_lsb:.2f} LSB from the real answer", fontsize=9)
        axis.set_xlabel("x")
        axis.set_ylim(-0.6, 2.2)
    axes[0].legend(loc="upper left", frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "dip.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
