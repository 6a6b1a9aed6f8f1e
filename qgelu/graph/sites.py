"""Find the activations of a model: by what their nodes compute, not by how they are spelled.

From every node that can be a gate (Erf, Tanh, Sigmoid, ...; or a one-node Gelu), take the elementwise regions
that contain it and depend on one tensor alone, evaluate them in float64 on a grid, and compare with the four
activations. The largest region that equals one is a site.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import onnx
from numpy.typing import NDArray

from qgelu.activations import DEFAULT_ALPHA, Activation
from qgelu.graph.elementwise import CONTRIB_DOMAIN, FLOAT_TYPES, STANDARD_DOMAINS
from qgelu.graph.findings import Ffn, Findings, Linear, NearMiss, Site
from qgelu.graph.identify import Comparison, compare
from qgelu.graph.linear import FfnMatcher, NotFfnError
from qgelu.graph.local_functions import LocalFunctions
from qgelu.graph.names import subgraphs
from qgelu.graph.near_misses import explain
from qgelu.graph.region import Region, Regions
from qgelu.graph.shapes import Shapes
from qgelu.graph.view import GraphView
from qgelu.graph.wellformed import check_wellformed

__all__ = ["Ffn", "Findings", "Linear", "NearMiss", "Site", "find_sites"]

_NO_COMPUTATION: Final = frozenset({"Cast", "CastLike", "Identity"})
_BIASED: Final[dict[str, Activation]] = {"BiasGelu": "gelu", "FastGelu": "gelu_tanh"}


@dataclass(frozen=True, eq=False)
class _Match:
    activation: Activation
    alpha: float
    region: Region
    bias: NDArray[Any] | None = None


def find_sites(model: onnx.ModelProto) -> Findings:
    """Find every activation of a model's main graph, and what comes near to one.

    Activations inside If, Loop and Scan bodies and inside model-local functions that are more than the
    activation itself are near misses. The model is not changed.

    Raises
    ------
    QGeluError
        If the model is damaged, or a constant was not loaded.
    """
    check_wellformed(model)
    functions = LocalFunctions(model)
    shapes = Shapes(model)
    view = GraphView.of_graph(model.graph)
    matches, near_misses = _scan(view, functions, shapes)
    namer = _Namer(view)
    matcher = FfnMatcher(view, shapes)
    sites = [_site(match, view, matcher, namer) for match in matches]
    near_misses += _in_subgraphs(view, functions)
    inside = [(function, _in_function(function, functions)) for function in model.functions]
    for function, found in inside:
        if not functions.treats_as_operator(function):
            near_misses += found
    return Findings(tuple(sites), tuple(dict.fromkeys(near_misses)))


def _in_function(function: onnx.FunctionProto, functions: LocalFunctions) -> list[NearMiss]:
    where = f"inside the function {function.name!r}: inline the model's functions first"
    return _elsewhere(GraphView.of_function(function), functions, where)


def _in_subgraphs(view: GraphView, functions: LocalFunctions) -> list[NearMiss]:
    found: list[NearMiss] = []
    for place, node in enumerate(view.nodes):
        for graph in subgraphs(node):
            inner = GraphView.of_graph(graph, view.constants)
            where = f"inside a subgraph of {node.op_type} {view.label(place)!r}"
            found += _elsewhere(inner, functions, f"{where}: only the main graph is rewritten")
            found += _in_subgraphs(inner, functions)
    return found


def _elsewhere(view: GraphView, functions: LocalFunctions, where: str) -> list[NearMiss]:
    matches, near_misses = _scan(view, functions, None)
    found = [NearMiss(view.label(view.place(match.region.output)), f"{match.activation} {where}") for match in matches]
    return found + near_misses


def _scan(view: GraphView, functions: LocalFunctions, shapes: Shapes | None) -> tuple[list[_Match], list[NearMiss]]:
    """Return the activations of one graph and the near misses, both in topological order."""
    regions = Regions(view, functions)
    matches: list[_Match] = []
    near_misses: list[tuple[int, NearMiss]] = []
    with_vectors = Regions(view, functions, with_vectors=True)
    explained: set[int] = set()
    taken: set[int] = set()
    unmatched: list[int] = []
    for place, node in enumerate(view.nodes):
        if _adds_bias(node):
            match = _biased(view, place)
            if isinstance(match, NearMiss):
                near_misses.append((place, match))
            else:
                matches.append(match)
        elif functions.is_anchor(node) and place not in taken:
            found = _matches(regions, place)
            for match in found:
                wider = _with_casts(match, view, shapes)
                reason = _rejection(wider, view, shapes)
                taken.update(wider.region.nodes)
                if reason:
                    near_misses.append((place, NearMiss(view.label(place), reason)))
                else:
                    matches.append(wider)
            if not found:
                unmatched.append(place)
    for place in unmatched:
        if place in taken or place in explained:
            continue
        explanation = explain(regions, with_vectors, place)
        if explanation is not None:
            explained.update(explanation.nodes)
            near_misses.append((place, NearMiss(view.label(place), explanation.reason)))
    matches.sort(key=lambda match: view.place(match.region.output))
    near_misses.sort(key=lambda entry: entry[0])
    return matches, [near_miss for _, near_miss in near_misses]


def _matches(regions: Regions, anchor: int) -> list[_Match]:
    """Return the activations through an anchor: of each, the region that computes most."""
    accepted: list[tuple[Region, Comparison]] = []
    for region in regions.through(anchor):
        values = regions.evaluate(region)
        comparison = None if values is None else compare(values)
        if comparison is not None and comparison.accepted:
            accepted.append((region, comparison))
    nodes = regions.view.nodes

    def size(entry: tuple[Region, Comparison]) -> tuple[int, int]:
        places = entry[0].nodes
        computing = sum(nodes[place].op_type not in _NO_COMPUTATION for place in places)
        return -computing, len(places)

    accepted.sort(key=size)
    chosen: list[_Match] = []
    covered: set[int] = set()
    ends: set[int] = set()
    for region, comparison in accepted:
        if region.nodes[-1] in covered or ends & set(region.nodes):
            continue
        covered.update(region.nodes)
        ends.add(region.nodes[-1])
        chosen.append(_Match(comparison.activation, comparison.alpha, region))
    return chosen


def _adds_bias(node: onnx.NodeProto) -> bool:
    fused = node.domain == CONTRIB_DOMAIN and node.op_type in _BIASED
    return fused and len(node.input) == 2 and len(node.output) == 1 and all((*node.input, *node.output))


def _biased(view: GraphView, place: int) -> _Match | NearMiss:
    node = view.nodes[place]
    bias = view.constants.value(node.input[1])
    if bias is None:
        return NearMiss(view.label(place), f"the bias {node.input[1]!r} of {node.op_type} is not constant")
    if bias.ndim > 1:
        return NearMiss(view.label(place), f"the bias {node.input[1]!r} of {node.op_type} has {bias.ndim} dimensions")
    region = Region(node.input[0], node.output[0], (place,))
    return _Match(_BIASED[node.op_type], DEFAULT_ALPHA, region, bias)


def _with_casts(match: _Match, view: GraphView, shapes: Shapes | None) -> _Match:
    """Take in the Casts around an activation that is computed in another type than the layers beside it."""
    region = match.region
    readers = view.readers(region.output)
    if len(readers) != 1 or region.output in view.outputs:
        return match
    after = view.nodes[readers[0]]
    if not _is_cast(after) or shapes is None:
        return match
    target = shapes.element_type(after.output[0])
    producer = view.producer(region.input)
    nodes = (*region.nodes, readers[0])
    if target == shapes.element_type(region.input):
        return _Match(match.activation, match.alpha, Region(region.input, after.output[0], nodes), match.bias)
    if producer is None or not _is_cast(view.nodes[producer]) or target not in FLOAT_TYPES:
        return match
    source = view.nodes[producer].input[0]
    if shapes.element_type(source) != target:
        return match
    return _Match(match.activation, match.alpha, Region(source, after.output[0], (producer, *nodes)), match.bias)


def _is_cast(node: onnx.NodeProto) -> bool:
    return node.domain in STANDARD_DOMAINS and node.op_type == "Cast" and len(node.output) == 1


def _rejection(match: _Match, view: GraphView, shapes: Shapes | None) -> str:
    """Return why a region that equals an activation cannot be replaced by it, or an empty string."""
    if shapes is None:
        return ""
    region = match.region
    types = shapes.element_type(region.input), shapes.element_type(region.output)
    if None not in types and types[0] != types[1]:
        known = onnx.TensorProto.DataType
        names = [known.Name(kind).lower() if kind in known.values() else str(kind) for kind in types]
        return f"{match.activation} from {names[0]} {region.input!r} to {names[1]} {region.output!r}"
    rank = shapes.rank(region.input)
    for place in region.nodes:
        for name in view.nodes[place].input:
            if rank is not None and view.constants.known(name):
                value = view.constants.value(name)
                if value is not None and value.ndim > rank:
                    return f"constant {name!r} has {value.ndim} dimensions, {region.input!r} has {rank}"
    return ""


class _Namer:
    """Gives every site a unique name that does not depend on the other sites."""

    def __init__(self, view: GraphView) -> None:
        counts = Counter(node.name for node in view.nodes)
        self._unique = {name for name, count in counts.items() if name and count == 1}

    def name(self, node: onnx.NodeProto, output: str) -> str:
        return node.name if node.name in self._unique else output


def _site(match: _Match, view: GraphView, matcher: FfnMatcher, namer: _Namer) -> Site:
    region = match.region
    name = namer.name(view.nodes[view.place(region.output)], region.output)
    outputs = tuple(view.nodes[place].output[0] for place in region.nodes)
    ffn: Ffn | None = None
    reason = ""
    try:
        ffn = matcher.match(region.input, region.output, region.nodes, match.bias)
    except NotFfnError as error:
        reason = str(error)
    return Site(
        name=name,
        activation=match.activation,
        alpha=match.alpha,
        input=region.input,
        output=region.output,
        scope="activation" if ffn is None else "ffn",
        reason=reason,
        region=outputs,
        ffn=ffn,
        bias=match.bias,
    )
