"""From scales to a plan: which method serves which input."""

from typing import Final, Literal, get_args

from qgelu.activations import DEFAULT_ALPHA, canonical_name, check_alpha
from qgelu.errors import QGeluError
from qgelu.ibert_plan import make_ibert_plan
from qgelu.plan import Plan
from qgelu.polynomial_plan import make_polynomial_plan
from qgelu.qparams import AccumulatorParams, QParams
from qgelu.table_plan import make_table_plan

Method = Literal["auto", "table", "polynomial", "ibert"]
METHODS: Final[tuple[str, ...]] = get_args(Method)


def make_plan(
    input: QParams | AccumulatorParams,
    output: QParams,
    activation: str = "gelu",
    alpha: float = DEFAULT_ALPHA,
    method: str = "auto",
) -> Plan:
    """Return a plan: the integers of one activation, and the proof of their error.

    Parameters
    ----------
    input : QParams or AccumulatorParams
        Codes of 2 to 16 bits, or int32 accumulators (scale per tensor, or per channel of the last axis).
    output : QParams
        Codes of 2 to 16 bits; per channel if its scale or zero point is an array of shape [C].
    activation : str
        ``gelu``, ``gelu_tanh``, ``quick_gelu``, ``silu``, or a framework's name of one of them.
    alpha : float
        Slope of ``quick_gelu``.
    method : str
        ``table`` (codes only, correctly rounded), ``polynomial``, ``ibert`` (a baseline), or ``auto``: a table
        for codes per tensor, a polynomial for everything else.

    Raises
    ------
    QGeluError
        If the method cannot serve these parameters, with the reason.
    """
    name = canonical_name(activation)
    slope = check_alpha(alpha)
    if not isinstance(input, QParams | AccumulatorParams):
        raise QGeluError(f"input must be QParams or AccumulatorParams, not {type(input).__name__}")
    if not isinstance(output, QParams):
        raise QGeluError(f"output must be QParams, not {type(output).__name__}")
    if method not in METHODS:
        raise QGeluError(f"method {method!r} is not known: use one of {', '.join(METHODS)}")
    if method == "ibert":
        return make_ibert_plan(input, output, name, slope)
    codes_per_tensor = isinstance(input, QParams) and not input.per_channel and not output.per_channel
    if method == "polynomial" or (method == "auto" and not codes_per_tensor):
        return make_polynomial_plan(input, output, name, slope)
    if isinstance(input, AccumulatorParams):
        raise QGeluError("a table needs codes: int32 accumulators need method='polynomial'")
    return make_table_plan(input, output, name, slope)
