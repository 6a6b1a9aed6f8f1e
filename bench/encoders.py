"""Float models for the speed of blocks and encoders: an FFN block, and BERT-base and ViT-B with random weights.

Speed does not depend on the weights' values; accuracy does, and is measured elsewhere. The weights are scaled so that
values neither die out nor explode from layer to layer.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

OPSET = 20  # the first with Gelu


class _Graph:
    """Nodes and initializers as they come."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes, self.initializers = [], []

    def constant(self, array):
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op_type, *inputs, **attributes):
        output = f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=f"/{output}", **attributes))
        return output

    def linear(self, x, inner, outer, gain=1.0):
        weight = self.random.normal(0, gain / np.sqrt(inner), (inner, outer)).astype(np.float32)
        product = self.node("MatMul", x, self.constant(weight))
        bias = self.random.normal(0, 0.1, outer).astype(np.float32)
        return self.node("Add", product, self.constant(bias))

    def ffn(self, x, hidden, inner):
        return self.linear(self.node("Gelu", self.linear(x, hidden, inner)), inner, hidden)

    def norm(self, x, hidden):
        scale = self.random.uniform(0.8, 1.2, hidden).astype(np.float32)
        return self.node("LayerNormalization", x, self.constant(scale), self.constant(np.zeros(hidden, np.float32)))

    def attention(self, x, hidden, heads):
        width = hidden // heads
        split = self.constant(np.array([0, 0, heads, width], np.int64))
        queries, keys, values = (self.node("Reshape", self.linear(x, hidden, hidden), split) for _ in range(3))
        queries, values = (self.node("Transpose", tensor, perm=[0, 2, 1, 3]) for tensor in (queries, values))
        keys = self.node("Transpose", keys, perm=[0, 2, 3, 1])
        scores = self.node("MatMul", queries, keys)
        scores = self.node("Mul", scores, self.constant(np.float32(width**-0.5)))
        mixed = self.node("MatMul", self.node("Softmax", scores, axis=-1), values)
        joined = self.node("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = self.node("Reshape", joined, self.constant(np.array([0, 0, hidden], np.int64)))
        return self.linear(joined, hidden, hidden)

    def model(self, inputs, output):
        graph = helper.make_graph(
            [*self.nodes, helper.make_node("Identity", [output], ["y"])],
            "model",
            inputs,
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            self.initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def ffn_block(hidden, inner):
    """Return x float32 [batch, sequence, hidden] -> MatMul, Add, Gelu, MatMul, Add -> y."""
    graph = _Graph(1)
    return graph.model(
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "sequence", hidden])],
        graph.ffn("x", hidden, inner),
    )


def bare_matmuls(hidden, inner):
    """Return the two integer products of a block and nothing else: uint8 [rows, hidden] and [rows, inner] by int8."""
    random = np.random.default_rng(2)
    weights = [
        numpy_helper.from_array(random.integers(-127, 128, shape).astype(np.int8), name)
        for name, shape in (("first", (hidden, inner)), ("second", (inner, hidden)))
    ]
    graph = helper.make_graph(
        [
            helper.make_node("MatMulInteger", ["x", "first"], ["a"]),
            helper.make_node("MatMulInteger", ["h", "second"], ["b"]),
        ],
        "model",
        [
            helper.make_tensor_value_info("x", TensorProto.UINT8, ["rows", hidden]),
            helper.make_tensor_value_info("h", TensorProto.UINT8, ["rows", inner]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.INT32, None) for name in ("a", "b")],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def bert(layers=12, hidden=768, heads=12, words=30522):
    """Return tokens int64 [batch, sequence] -> y [batch, sequence, hidden]; norms behind the sums."""
    graph = _Graph(3)
    table = graph.constant(graph.random.normal(0, 1, (words, hidden)).astype(np.float32))
    x = graph.norm(graph.node("Gather", table, "tokens"), hidden)
    for _ in range(layers):
        x = graph.norm(graph.node("Add", x, graph.attention(x, hidden, heads)), hidden)
        x = graph.norm(graph.node("Add", x, graph.ffn(x, hidden, 4 * hidden)), hidden)
    return graph.model([helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "sequence"])], x)


def vit(layers=12, hidden=768, heads=12, patch=16):
    """Return pixels [batch, 3, 224, 224] -> y [batch, 197, hidden]; norms before the branches."""
    graph = _Graph(4)
    kernel = graph.random.normal(0, 1 / np.sqrt(3 * patch * patch), (hidden, 3, patch, patch)).astype(np.float32)
    patches = graph.node("Conv", "pixels", graph.constant(kernel), strides=[patch, patch])
    x = graph.node("Reshape", patches, graph.constant(np.array([0, hidden, -1], np.int64)))
    x = graph.node("Transpose", x, perm=[0, 2, 1])
    first = graph.node("Slice", x, *(graph.constant(np.array([value], np.int64)) for value in (0, 1, 1)))
    x = graph.node("Concat", first, x, axis=1)  # a class token
    for _ in range(layers):
        x = graph.node("Add", x, graph.attention(graph.norm(x, hidden), hidden, heads))
        x = graph.node("Add", x, graph.ffn(graph.norm(x, hidden), hidden, 4 * hidden))
    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3, 224, 224])
    return graph.model([pixels], graph.norm(x, hidden))


def feeds(model, batch, sequence=128, seed=5):
    """Return random inputs for ``bert`` or ``vit``."""
    random = np.random.default_rng(seed)
    if model.graph.input[0].name == "tokens":
        return {"tokens": random.integers(0, 30522, (batch, sequence))}
    return {"pixels": random.normal(0, 1, (batch, 3, 224, 224)).astype(np.float32)}
