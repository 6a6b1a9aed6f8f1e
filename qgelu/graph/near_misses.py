"""Why something that looks like an activation is none."""

from dataclasses import dataclass

import numpy as np

from qgelu.graph.elementwise import STANDARD_DOMAINS
from qgelu.graph.identify import TOLERANCE, Comparison, compare, grid, is_gated, without_gain
from qgelu.graph.local_functions import LocalFunctions
from qgelu.graph.region import Region, Regions, is_quantization
from qgelu.graph.view import GraphView


@dataclass(frozen=True)
class Explanation:
    """A near miss: the nodes it is about (places in the view), and the reason."""

    nodes: tuple[int, ...]
    reason: str


class Explainer:
    """Explains what the nodes of one graph have to do with activations."""

    def __init__(self, view: GraphView, functions: LocalFunctions, regions: Regions) -> None:
        self._regions = regions
        self._with_vectors = Regions(view, functions, with_vectors=True)
        self._through_codes = Regions(view, functions, through_codes=True)
        self._is_quantized = any(is_quantization(node) for node in view.nodes)

    def explain(self, anchor: int) -> Explanation | None:
        """Return why the node is not part of an activation, None if it has nothing to do with one."""
        return (
            _other_function(self._regions, anchor)
            or _vector_constants(self._with_vectors, anchor)
            or (_codes_inside(self._through_codes, anchor) if self._is_quantized else None)
            or _two_inputs(self._regions, anchor)
        )


def _closest(regions: Regions, anchor: int) -> tuple[Region, Comparison] | None:
    """Return the region through a node that is closest to an activation, if it is worth mentioning."""
    best: tuple[Region, Comparison] | None = None
    for region in regions.through(anchor):
        values = regions.evaluate(region)
        comparison = None if values is None else compare(values)
        if values is None or comparison is None or not (comparison.near or is_gated(values)):
            continue
        if best is None or comparison.error < best[1].error:
            best = region, comparison
    return best


def _other_function(regions: Regions, anchor: int) -> Explanation | None:
    found = _closest(regions, anchor)
    if found is None:
        return None
    region, comparison = found
    closest = (
        f"{comparison.activation} with alpha {comparison.alpha:.6g}"
        if comparison.activation == "quick_gelu"
        else comparison.activation
    )
    if comparison.rival is not None:
        reason = f"function of {region.input!r} is as close to {comparison.rival} as to {comparison.activation}"
    else:
        reason = (
            f"function of {region.input!r} is closest to {closest}, but off by {comparison.error:.3g} "
            f"at x = {comparison.at:.4g}; at most {TOLERANCE:g} is accepted"
        )
    return Explanation(region.nodes, reason)


def _vector_constants(regions: Regions, anchor: int) -> Explanation | None:
    found = _closest(regions, anchor)
    if found is None:
        return None
    region, comparison = found
    vectors = regions.vectors(region)
    if not vectors:
        return None
    return Explanation(
        region.nodes,
        f"like {comparison.activation} of {region.input!r}, but constant {vectors[0]!r} has "
        f"{regions.view.constants.elements(vectors[0])} elements, not one",
    )


def _codes_inside(regions: Regions, anchor: int) -> Explanation | None:
    found = _closest(regions, anchor)
    if found is None:
        return None
    region, comparison = found
    inside = [place for place in region.nodes if is_quantization(regions.view.nodes[place])]
    if not inside:
        return None
    return Explanation(
        region.nodes,
        f"like {comparison.activation} of {region.input!r}, but quantized inside, at "
        f"{regions.view.label(inside[0])!r}: give the float model",
    )


def _two_inputs(regions: Regions, anchor: int) -> Explanation | None:
    """Explain y * gate(x), unless the gate is a plain sigmoid: that is a gated unit, not an activation."""
    view = regions.view
    for region in regions.through(anchor):
        values = regions.evaluate(region)
        if values is None:
            continue
        with np.errstate(all="ignore"):
            product = without_gain(values * grid())
        comparison = compare(product)
        if comparison is None or not comparison.accepted or comparison.activation == "silu":
            continue
        for reader in view.readers(region.output):
            node = view.nodes[reader]
            if node.op_type != "Mul" or node.domain not in STANDARD_DOMAINS:
                continue
            other = next((name for name in node.input if name != region.output), region.output)
            if other != region.input and not view.constants.known(other):
                return Explanation(
                    (*region.nodes, reader),
                    f"multiplies {other!r} by the {comparison.activation} gate of {region.input!r}: "
                    "two different inputs",
                )
    return None
