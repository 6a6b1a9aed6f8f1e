"""Elementwise regions: the nodes that compute a tensor from one other, and the function they compute."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray

from qgelu.graph.elementwise import CONTRIB_DOMAIN, STANDARD_DOMAINS, Operation, operation
from qgelu.graph.identify import grid
from qgelu.graph.local_functions import LocalFunctions
from qgelu.graph.view import GraphView

Values = NDArray[np.float64]

_MAX_NODES: Final = 48
"""More nodes than any spelling of an activation has."""
_MAX_VECTOR: Final = 1 << 20


@dataclass(frozen=True)
class Region:
    """The nodes (places in the view, topological order) through which ``output`` depends on ``input``."""

    input: str
    output: str
    nodes: tuple[int, ...]


def is_quantization(node: onnx.NodeProto) -> bool:
    """Say whether a node turns floats into codes or back."""
    named = node.op_type in {"QuantizeLinear", "DequantizeLinear"}
    return named and (node.domain in STANDARD_DOMAINS or node.domain == CONTRIB_DOMAIN)


def _unchanged(x: Values) -> Values:
    return x


class Regions:
    """The elementwise regions of a graph.

    Parameters
    ----------
    view : GraphView
    functions : LocalFunctions
        Model-local functions; a call of one that is elementwise counts as one node.
    with_vectors : bool
        Also accept constants of more than one element, by their mean: to tell what a region would be
        if they were single values. Their names are then in :meth:`vectors`.
    through_codes : bool
        Also pass QuantizeLinear and DequantizeLinear, as if they did nothing: to tell what a region would be
        without them.
    """

    def __init__(
        self, view: GraphView, functions: LocalFunctions, with_vectors: bool = False, through_codes: bool = False
    ) -> None:
        self.view = view
        self._functions = functions
        self._with_vectors = with_vectors
        self._through_codes = through_codes
        self._operations: dict[int, Operation | None] = {}
        self._variables: dict[int, tuple[str, ...] | None] = {}
        self._values: dict[str, dict[str, Values]] = {}

    def variables(self, place: int) -> tuple[str, ...] | None:
        """Return the inputs of an elementwise node that are not constant; None if it is no such node."""
        if place not in self._variables:
            self._variables[place] = self._find_variables(self.view.nodes[place], place)
        return self._variables[place]

    def _find_variables(self, node: onnx.NodeProto, place: int) -> tuple[str, ...] | None:
        if not node.output or not node.output[0]:
            return None
        constants = self.view.constants
        variables = []
        for name in self._inputs(node):
            if not name:
                continue
            if not constants.known(name):
                variables.append(name)
            elif constants.elements(name) != 1 and not self._is_vector(name):
                return None
        if node.op_type == "CastLike":
            variables = variables[:1] if node.input and node.input[0] in variables else []
        if not variables or self._operation(place) is None:
            return None
        return tuple(dict.fromkeys(variables))

    def _inputs(self, node: onnx.NodeProto) -> list[str]:
        return list(node.input[:1] if self._through_codes and is_quantization(node) else node.input)

    def _is_vector(self, name: str) -> bool:
        return self._with_vectors and 0 < self.view.constants.elements(name) <= _MAX_VECTOR

    def vectors(self, region: Region) -> tuple[str, ...]:
        """Return the constants of more than one element that a region uses."""
        constants = self.view.constants
        return tuple(
            name
            for place in region.nodes
            for name in self.view.nodes[place].input
            if name and constants.known(name) and constants.elements(name) != 1
        )

    def _operation(self, place: int) -> Operation | None:
        if place not in self._operations:
            node = self.view.nodes[place]
            found = self._functions.operation(node)
            if self._through_codes and is_quantization(node):
                found = _unchanged
            self._operations[place] = operation(node) if found is None else found
        return self._operations[place]

    def ending_at(self, output: str) -> Iterator[Region]:
        """Yield every region that ends at a tensor, the smallest first.

        Walks from the output towards the inputs, latest producer first. Whenever one tensor alone is left,
        everything that was passed depends on it only.
        """
        frontier = {output}
        heap = [(-self.view.place(output), output)]
        passed: list[int] = []
        while heap and len(passed) < _MAX_NODES:
            if len(heap) == 1 and passed:
                yield Region(heap[0][1], output, tuple(reversed(passed)))
            _, tensor = heapq.heappop(heap)
            place = self.view.producer(tensor)
            variables = None if place is None else self.variables(place)
            if place is None or variables is None or tensor != self.view.nodes[place].output[0]:
                return
            passed.append(place)
            for name in variables:
                if name not in frontier:
                    frontier.add(name)
                    heapq.heappush(heap, (-self.view.place(name), name))

    def through(self, anchor: int) -> Iterator[Region]:
        """Yield every region that contains a node, ending there or farther on."""
        start = next(iter(self.view.nodes[anchor].output), "")
        heap = [(self.view.place(start), start)]
        seen = {start}
        for _ in range(_MAX_NODES):
            if not heap:
                return
            _, tensor = heapq.heappop(heap)
            regions = [region for region in self.ending_at(tensor) if anchor in region.nodes]
            if not regions:
                continue  # it depends on a second tensor, and so does all that is made from it
            yield from regions
            for reader in self.view.readers(tensor):
                output = self.view.nodes[reader].output
                if self.variables(reader) is not None and output[0] not in seen:
                    seen.add(output[0])
                    heapq.heappush(heap, (self.view.place(output[0]), output[0]))

    def evaluate(self, region: Region) -> Values | None:
        """Return the values of ``output`` where ``input`` is :func:`qgelu.graph.identify.grid`."""
        values = self._values.setdefault(region.input, {region.input: grid()})
        with np.errstate(all="ignore"):
            for place in region.nodes:
                node = self.view.nodes[place]
                if node.output[0] in values:
                    continue
                function = self._operation(place)
                names = self._inputs(node)
                arguments = [values[name] if name in values else self._constant(name) for name in names]
                missing = any(name and each is None for name, each in zip(names, arguments, strict=True))
                if function is None or missing:
                    return None
                result = np.asarray(function(*arguments), dtype=np.float64)
                if result.shape != grid().shape:
                    return None
                values[node.output[0]] = result
        return values[region.output]

    def _constant(self, name: str) -> Values | None:
        if not name:
            return None
        scalar = self.view.constants.scalar(name)
        if scalar is not None:
            return np.asarray(scalar)
        value = self.view.constants.value(name) if self._is_vector(name) else None
        return None if value is None or value.dtype.kind in "USOc" else np.asarray(np.mean(value.astype(np.float64)))
