"""A copy of a model that is being rewritten: fresh names, new nodes in place, dead nodes out."""

import heapq
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from qgelu.errors import QGeluError
from qgelu.graph.functions import DOMAIN, ML_DOMAIN, ML_VERSION, VERSION
from qgelu.graph.names import used_by, used_names


class GraphEditor:
    """Edits a copy of a model's main graph.

    Parameters
    ----------
    model : ModelProto
        Not changed.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self.opset = next(entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"})
        self._names = used_names(self.graph)
        self._functions: dict[str, onnx.FunctionProto] = {}
        self._dead_before = self._dead_nodes()
        self._used_before = self._used()
        self._pending: list[onnx.NodeProto] = []
        ml = (entry.version for entry in model.opset_import if entry.domain == ML_DOMAIN)
        self.ml_version = next(ml, ML_VERSION)
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

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
            self.graph.initializer.append(numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

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

    def _sort(self) -> None:
        """Order the nodes so that each comes after what it reads, otherwise as they are."""
        made = {output for node in self.graph.node for output in node.output if output}
        waiting: dict[str, list[int]] = {}
        nodes = list(self.graph.node)
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
        del self.graph.node[:]
        self.graph.node.extend(ordered)

    def _dead_nodes(self) -> set[str]:
        """Return the outputs of the nodes that contribute to no graph output."""
        live = {value.name for value in self.graph.output}
        dead: set[str] = set()
        for node in reversed(self.graph.node):
            if any(output in live for output in node.output):
                live |= used_by(node)
            else:
                dead.update(node.output)
        return dead

    def _used(self) -> set[str]:
        used = {name for node in self.graph.node for name in used_by(node)}
        return used | {value.name for value in self.graph.output}

    def finish(self) -> onnx.ModelProto:
        """Remove what died, declare what is used, and return the model."""
        self._sort()
        dead = self._dead_nodes() - self._dead_before
        nodes = [node for node in self.graph.node if not any(output in dead for output in node.output)]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        unused = self._used_before - self._used() - {value.name for value in self.graph.input}
        tensors = [tensor for tensor in self.graph.initializer if tensor.name not in unused]
        del self.graph.initializer[:]
        self.graph.initializer.extend(tensors)
        known = [value for value in self.graph.value_info if value.name not in dead]
        del self.graph.value_info[:]
        self.graph.value_info.extend(known)
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

    def _import(self, domain: str, version: int) -> None:
        if not any(entry.domain == domain for entry in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(domain, version))
