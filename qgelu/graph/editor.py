"""A copy of a model that is being rewritten: fresh names, new nodes in place, dead nodes out."""

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qgelu.errors import QGeluError
from qgelu.graph.functions import DOMAIN, ML_DOMAIN, ML_VERSION, VERSION
from qgelu.graph.names import all_graphs, subgraphs, used_by, used_names

_INT4_OPSET, _INT4_IR, _INT4_LIMIT = 21, 10, 7


class GraphEditor:
    """Edits a copy of a model: one of its graphs at a time, the main graph at first.

    Constants go into the main graph, where subgraphs see them too.

    Parameters
    ----------
    model : ModelProto
        Not changed. Tensors have unique names, in subgraphs too.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self.opset = next(entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"})
        self._names = used_names(self.graph)
        self._functions: dict[str, onnx.FunctionProto] = {}
        self._sort_all(self.graph)
        self._dead_before = self._dead()
        self._used_before = self._used()
        self._pending: list[onnx.NodeProto] = []
        ml = (entry.version for entry in model.opset_import if entry.domain == ML_DOMAIN)
        self.ml_version = next(ml, ML_VERSION)
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def enter(self, tensor: str) -> None:
        """Edit the graph from now on in which a node makes the tensor."""
        for graph in all_graphs(self.model.graph):
            if any(tensor in node.output for node in graph.node):
                self.graph = graph
                return
        raise KeyError(tensor)

    def fresh(self, hint: str) -> str:
        """Return a name that nothing in the model has, made from a hint."""
        name, number = hint, 1
        while name in self._names:
            name, number = f"{hint}_{number}", number + 1
        self._names.add(name)
        return name

    def constant(self, value: NDArray[Any], hint: str) -> str:
        """Add an initializer and return its name; equal constants are added once."""
        array = np.asarray(value, order="C")
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.fresh(hint)
            self.model.graph.initializer.append(numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

    def weight(self, codes: NDArray[np.int8], hint: str) -> str:
        """Return an int8 tensor of a weight's codes.

        Codes of 4 bits are stored as INT4 where the opset has it (21), and brought to int8 by a Cast, which ONNX
        Runtime does once, when it loads the model: MatMulInteger takes no INT4. Every runtime with that opset reads
        IR version 10, which INT4 needs: ONNX 1.16 brought both.
        """
        if self.opset < _INT4_OPSET or np.abs(codes).max(initial=0) > _INT4_LIMIT:
            return self.constant(codes, hint)
        self.model.ir_version = max(self.model.ir_version, _INT4_IR)
        name = self.fresh(f"{hint}_int4")
        nibbles = np.append(codes.reshape(-1), np.zeros(codes.size % 2, np.int8)).astype(np.uint8) & 15
        packed = (nibbles[0::2] | nibbles[1::2] << 4).astype(np.uint8).tobytes()
        self.graph.initializer.append(helper.make_tensor(name, TensorProto.INT4, codes.shape, packed, raw=True))
        return self.node("Cast", [name], hint, to=TensorProto.INT8)

    def node(
        self,
        op_type: str,
        inputs: list[str],
        hint: str,
        *,
        output: str | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Queue a node and return its output's name; :meth:`replace` puts the queue in place."""
        result = output or self.fresh(hint)
        name = self.fresh(f"{hint}/{op_type}")
        self._pending.append(helper.make_node(op_type, inputs, [result], name=name, domain=domain, **attributes))
        return result

    def use_function(self, function: onnx.FunctionProto) -> None:
        """Write a function into the model, once.

        Raises
        ------
        QGeluError
            If the model has, or gets, a function of that name with another body.
        """
        for known in [*self._functions.values(), *self.model.functions]:
            if known.domain == function.domain and known.name == function.name and known != function:
                raise QGeluError(
                    f"the model already has another function {DOMAIN}.{function.name}: quantize the original"
                )
        self._functions[function.name] = function

    def replace(self, output: str) -> None:
        """Put the queued nodes where the producer of ``output`` is, and take that producer out."""
        index = next(i for i, node in enumerate(self.graph.node) if output in node.output)
        nodes = list(self.graph.node)
        nodes[index : index + 1] = self._pending
        self._pending = []
        del self.graph.node[:]
        self.graph.node.extend(nodes)

    def redirect_shapes(self, source: str, target: str) -> None:
        """Let Shape and Size nodes read an integer tensor of the same shape instead of a float one."""
        for node in self.graph.node:
            if node.op_type in {"Shape", "Size"} and node.domain == "" and node.input[0] == source:
                node.input[0] = target

    def _dead(self) -> set[str]:
        """Return the outputs of the nodes that contribute to no output of their graph."""
        dead: set[str] = set()
        for graph in all_graphs(self.model.graph):
            live = {value.name for value in graph.output}
            for node in reversed(graph.node):
                if any(output in live for output in node.output):
                    live |= used_by(node)
                else:
                    dead.update(node.output)
        return dead

    def _used(self) -> set[str]:
        used: set[str] = set()
        for graph in all_graphs(self.model.graph):
            used.update(name for node in graph.node for name in used_by(node))
            used.update(value.name for value in graph.output)
        return used

    def finish(self) -> onnx.ModelProto:
        """Remove what died, declare what is used, and return the model."""
        self.graph = self.model.graph
        self._sort_all(self.graph)
        dead = self._dead() - self._dead_before
        self._remove(self.graph, dead)
        unused = self._used_before - self._used()
        unused -= {value.name for value in self.graph.input}  # initializers with which old models fill inputs
        for graph in all_graphs(self.model.graph):
            _keep(graph.initializer, lambda tensor: tensor.name not in unused)
            _keep(graph.value_info, lambda value: value.name not in dead)
        present = {(function.domain, function.name) for function in self.model.functions}
        for function in self._functions.values():
            if (function.domain, function.name) not in present:
                self.model.functions.append(function)
        self.model.ir_version = max(self.model.ir_version, 4)  # the first where initializers need not be inputs
        if self._functions:
            self._import(DOMAIN, VERSION)
            self._import(ML_DOMAIN, self.ml_version)
            self.model.ir_version = max(self.model.ir_version, 8)  # the first with functions
        return self.model

    def _sort_all(self, graph: onnx.GraphProto) -> None:
        ordered = _sorted(list(graph.node))
        del graph.node[:]
        graph.node.extend(ordered)
        for node in graph.node:
            for inner in subgraphs(node):
                self._sort_all(inner)

    def _remove(self, graph: onnx.GraphProto, dead: set[str]) -> None:
        _keep(graph.node, lambda node: not any(output in dead for output in node.output))
        for node in graph.node:
            for inner in subgraphs(node):
                self._remove(inner, dead)

    def _import(self, domain: str, version: int) -> None:
        if not any(entry.domain == domain for entry in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(domain, version))


def _keep(field: Any, wanted: Callable[[Any], bool]) -> None:
    """Leave only the wanted entries in a repeated field, without a copy of them."""
    for place in reversed(range(len(field))):
        if not wanted(field[place]):
            del field[place]


def _sorted(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return nodes in an order in which each comes after what it reads, otherwise as they are."""
    made = {output for node in nodes for output in node.output if output}
    waiting: dict[str, list[int]] = {}
    missing = []
    for index, node in enumerate(nodes):
        needs = used_by(node) & made
        missing.append(len(needs))
        for name in needs:
            waiting.setdefault(name, []).append(index)
    ready = [index for index, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    ordered = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        ordered.append(node)
        for output in node.output:
            for index in waiting.pop(output, ()):
                missing[index] -= 1
                if missing[index] == 0:
                    heapq.heappush(ready, index)
    return ordered
