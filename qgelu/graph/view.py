"""Read access to a graph: who makes a tensor, who reads it, in which order, and which tensors are constant."""

import graphlib
from collections.abc import Iterable, Sequence

import onnx
from onnx import TensorProto

from qgelu.errors import QGeluError
from qgelu.graph.constants import Constants
from qgelu.graph.names import used_by


class GraphView:
    """Nodes of one graph in topological order, with the links between them.

    Nodes are identified by their place in ``nodes``.
    """

    def __init__(
        self,
        nodes: Iterable[onnx.NodeProto],
        initializers: Iterable[TensorProto],
        inputs: Iterable[str],
        outputs: Iterable[str],
        outer: Constants | None = None,
    ) -> None:
        self.nodes: list[onnx.NodeProto] = _sorted(list(nodes))
        self.outputs = frozenset(outputs)
        self._inputs = frozenset(inputs)
        self._is_subgraph = outer is not None
        self._producers: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        for place, node in enumerate(self.nodes):
            for name in node.output:
                if name:
                    self._producers.setdefault(name, place)
            for name in used_by(node):
                self._readers.setdefault(name, []).append(place)
        shadowed = self._inputs | self._producers.keys()
        self.constants = Constants(initializers, self.nodes, outer, shadowed)

    @classmethod
    def of_graph(cls, graph: onnx.GraphProto, outer: Constants | None = None) -> "GraphView":
        """Return the view of a main graph or subgraph."""
        return cls(
            graph.node,
            graph.initializer,
            (value.name for value in graph.input),
            (value.name for value in graph.output),
            outer,
        )

    @classmethod
    def of_function(cls, function: onnx.FunctionProto) -> "GraphView":
        """Return the view of a model-local function."""
        return cls(function.node, (), function.input, function.output)

    def producer(self, tensor: str) -> int | None:
        """Return the node that makes a tensor; None for inputs, initializers and tensors from outside."""
        return self._producers.get(tensor)

    def readers(self, tensor: str) -> Sequence[int]:
        """Return the nodes that read a tensor, directly or in a subgraph; each once."""
        return self._readers.get(tensor, ())

    def is_from_outside(self, tensor: str) -> bool:
        """Say whether a subgraph takes a tensor from the graph around it."""
        return self._is_subgraph and tensor not in self._producers and tensor not in self._inputs

    def place(self, tensor: str) -> int:
        """Return the place of a tensor's producer, -1 if it has none: a topological order of tensors."""
        return self._producers.get(tensor, -1)

    def label(self, place: int) -> str:
        """Return the name of a node for people: its own, or its first output's."""
        node = self.nodes[place]
        return node.name or next((name for name in node.output if name), node.op_type)


def _sorted(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes in topological order; as they are, if they are in one already."""
    producers: dict[str, int] = {}
    for place, node in enumerate(nodes):
        for name in node.output:
            if name:
                producers.setdefault(name, place)
    needs = [{producers[name] for name in used_by(node) if name in producers} for node in nodes]
    if all(max(before, default=-1) < place for place, before in enumerate(needs)):
        return nodes
    try:
        return [nodes[place] for place in graphlib.TopologicalSorter(dict(enumerate(needs))).static_order()]
    except graphlib.CycleError as error:
        place = int(error.args[1][0])
        name = nodes[place].name or nodes[place].op_type
        raise QGeluError(f"node {name!r} depends on itself: the model is damaged") from error
