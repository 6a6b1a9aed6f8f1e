"""Find the activations of a model: by what their nodes compute, not by how they are spelled.

From every node that can be a gate (Erf, Tanh, Sigmoid, ...; or a one-node Gelu), take the elementwise regions
that contain it and depend on one tensor alone, evaluate them in float64 on a grid, and compare with the four
activations. The largest region that equals one is a site.
"""

from collections import Counter
from collections.abc import Iterator
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
from qgelu.graph.names import every_node, graphs_of, subgraphs
from qgelu.graph.near_misses import Explainer
from qgelu.graph.quantized_tensors import codes_after, codes_before
from qgelu.graph.region import Region, Regions
from qgelu.graph.shapes import Shapes
from qgelu.graph.view import GraphView
from qgelu.graph.wellformed import check_wellformed

__all__ = ["Ffn", "Findings", "Linear", "NearMiss", "Site", "find_sites"]

_NO_COMPUTATION: Final = frozenset({"Cast", "CastLike", "Identity"})
_CONTROL_FLOW: Final = frozenset({"If", "Loop", "Scan"})
_BIASED: Final[dict[str, Activation]] = {"BiasGelu": "gelu", "FastGelu": "gelu_tanh"}


@dataclass(frozen=True, eq=False)
class _Match:
    activation: Activation
    alpha: float
    region: Region
    bias: NDArray[Any] | None = None


def find_sites(model: onnx.ModelProto) -> Findings:
    """Find every activation of a model, subgraphs included, and what comes near to one.

    Activations in If branches and in Loop and Scan bodies are sites; those in model-local functions are, if the
    function is nothing but the activation. Others in functions become sites in :func:`normal_form`, which also gives
    the tensors of subgraphs the unique names by which a site is told. The model is not changed.

    Raises
    ------
    QGeluError
        If the model is damaged, or a constant was not loaded.
    """
    check_wellformed(model)
    functions = LocalFunctions(model)
    shapes = Shapes(model)
    namer = _Namer(model)
    sites: list[Site] = []
    near_misses: list[NearMiss] = []
    for place in _places(GraphView.of_graph(model.graph)):
        matches, found = _scan(place.view, functions, shapes)
        obstacle = _obstacle(place)
        if obstacle:
            near_misses += _left_alone(matches, place.view, obstacle)
        else:
            matcher = FfnMatcher(place.view, shapes)
            sites += [_site(match, place, matcher, shapes, namer) for match in matches]
        near_misses += found
    for function in model.functions:
        body = GraphView.of_function(function)
        matches, found = _scan(body, functions, None)
        if not functions.treats_as_operator(function):
            where = f"inside the function {function.name!r}, which is of another opset than the model: inline it"
            near_misses += [*_left_alone(matches, body, where), *found]
    return Findings(tuple(sites), tuple(dict.fromkeys(near_misses)))


@dataclass(frozen=True)
class _Place:
    """A graph of the model, and the nodes around it: what they are, and in words."""

    view: GraphView
    around: tuple[str, ...] = ()
    subgraph: str = ""


def _places(view: GraphView, around: tuple[str, ...] = (), subgraph: str = "") -> Iterator[_Place]:
    yield _Place(view, around, subgraph)
    for index, node in enumerate(view.nodes):
        graphs = list(subgraphs(node))
        for attribute in node.attribute:
            for graph in graphs_of(attribute):
                where = attribute.name if len(graphs) > 1 else "body"
                inner = GraphView.of_graph(graph, view.constants)
                words = f"{where} of {node.op_type} {view.label(index)!r}"
                yield from _places(inner, (*around, node.op_type), words)


def _obstacle(place: _Place) -> str:
    """Return why activations of a graph cannot be calibrated, or an empty string."""
    for operator in place.around:
        if operator not in _CONTROL_FLOW:
            return f"in the {place.subgraph}: only those in If, Loop and Scan can be calibrated"
    inside_scan = place.around[place.around.index("Scan") :] if "Scan" in place.around else ()
    if set(inside_scan) - {"Scan"}:
        return f"in the {place.subgraph} inside a Scan, which hands out no values from there to calibrate with"
    return ""


def _left_alone(matches: list[_Match], view: GraphView, where: str) -> list[NearMiss]:
    return [NearMiss(view.label(view.place(match.region.output)), f"{match.activation} {where}") for match in matches]


def _scan(view: GraphView, functions: LocalFunctions, shapes: Shapes | None) -> tuple[list[_Match], list[NearMiss]]:
    """Return the activations of one graph and the near misses, both in topological order."""
    regions = Regions(view, functions)
    matches: list[_Match] = []
    near_misses: list[tuple[int, NearMiss]] = []
    explainer = Explainer(view, functions, regions)
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
        explanation = explainer.explain(place)
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

    def __init__(self, model: onnx.ModelProto) -> None:
        counts = Counter(node.name for node in every_node(model.graph.node))
        self._unique = {name for name, count in counts.items() if name and count == 1}

    def name(self, node: onnx.NodeProto, output: str) -> str:
        return node.name if node.name in self._unique else output


def _element_type(match: _Match, ffn: Ffn | None, view: GraphView, shapes: Shapes) -> int | None:
    """Return the element type of an activation's tensors.

    Where shape inference does not get to, operands have it: all inputs of an elementwise node or matmul are of one
    type. Failing that, what the model itself states.
    """
    region = match.region
    known = shapes.element_type(region.input) or shapes.element_type(region.output)
    if known:
        return known
    places = [*region.nodes, *(() if ffn is None else (view.place(name) for name in ffn.first.node_outputs))]
    nodes = [view.nodes[place] for place in places]
    if not any(node.op_type in {"Cast", "CastLike"} for node in nodes):
        for name in (name for node in nodes for name in node.input if view.constants.known(name)):
            value = view.constants.value(name)
            kind = None if value is None else onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            if kind in FLOAT_TYPES:
                return kind
    return shapes.stated_element_type(region.input) or shapes.stated_element_type(region.output)


def _site(match: _Match, place: _Place, matcher: FfnMatcher, shapes: Shapes, namer: _Namer) -> Site:
    view, region = place.view, match.region
    name = namer.name(view.nodes[view.place(region.output)], region.output)
    outputs = tuple(view.nodes[index].output[0] for index in region.nodes)
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
        element_type=_element_type(match, ffn, view, shapes),
        shape=shapes.dimensions(region.input),
        input_codes=codes_before(region.input, view, shapes) if match.bias is None else None,
        output_codes=codes_after(region.output, view),
        subgraph=place.subgraph,
    )
