"""From measured candidates to the fewest bits that keep a tolerance."""

from collections.abc import Sequence

from qgelu.accuracy_metric import METRIC_NAMES, Metric, describe_loss
from qgelu.reporting.content import Candidate, Recommendation, Scope


def within(candidate: Candidate, tolerance: float) -> bool:
    """Return whether a candidate was measured whole and keeps the tolerance."""
    return not candidate.failures and candidate.loss is not None and candidate.loss <= tolerance


def recommend(candidates: Sequence[Candidate], scope: Scope, metric: Metric, tolerance: float) -> Recommendation:
    """Return the fewest bits of a scope from which on every width that ran in integers keeps the tolerance."""
    by_bits = sorted(
        (one for one in candidates if one.scope == scope and one.kind == "qgelu"), key=lambda candidate: -candidate.bits
    )
    chosen: Candidate | None = None
    refused: Candidate | None = None
    for candidate in by_bits:
        if not within(candidate, tolerance):
            refused = candidate
            break
        chosen = candidate
    name = METRIC_NAMES[metric]
    limit = describe_loss(tolerance, metric)
    if chosen is None:
        widest = by_bits[0]
        reason = (
            f"no measured width of scope {scope} keeps the tolerance of {limit}: at {widest.bits} bits the loss in "
            f"{name} is {describe_loss(widest.loss, metric)}"
        )
        return Recommendation(scope, None, None, reason)
    reason = (
        f"{chosen.bits} bits in scope {scope}: the loss in {name} is {describe_loss(chosen.loss, metric)}, "
        f"within the tolerance of {limit}"
    )
    if refused is not None:
        reason += f"; at {refused.bits} bits it is {describe_loss(refused.loss, metric)}"
    else:
        reason += "; fewer bits were not measured"
    return Recommendation(scope, chosen.bits, chosen.loss, reason)
