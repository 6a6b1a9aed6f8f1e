import weakref

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibration import (
    Calibration,
    CalibrationError,
    InputSpec,
    TensorRequest,
    capture,
    input_specs,
    model_digest,
    observe,
    open_data,
    probe,
)

C = 6
TABLE = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
WEIGHT = np.random.default_rng(1).normal(size=(4, C)).astype(np.float32)


def make_model(nodes, inputs, outputs, initializers, **options):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, **options)
    onnx.checker.check_model(model)
    return model


def text_model():
    """Ids -> embedding e [b, s, 4] -> h [b, s, C] -> flat [b * s, C] -> pooled [b, C] -> a heavy head."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "weight"], ["h"]),
        helper.make_node("Reshape", ["h", "shape"], ["flat"]),
        helper.make_node("ReduceMax", ["h"], ["pooled"], axes=[1], keepdims=0),
        helper.make_node("Transpose", ["h"], ["across"], perm=[2, 0, 1]),
        helper.make_node("Cast", ["mask"], ["mask_float"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["pooled", "head"], ["logits"]),
    ]
    return make_model(
        nodes,
        [("ids", TensorProto.INT64, ["b", "s"]), ("mask", TensorProto.INT64, ["b", "s"])],
        [("logits", TensorProto.FLOAT, ["b", 2]), ("mask_float", TensorProto.FLOAT, ["b", "s"])],
        {
            "table": TABLE,
            "weight": WEIGHT,
            "shape": np.array([-1, C]),
            "head": np.ones((C, 2), dtype=np.float32),
        },
    )


def float_model(*nodes, output="y", **initializers):
    return make_model(
        list(nodes),
        [("x", TensorProto.FLOAT, ["b", 3])],
        [(output, TensorProto.FLOAT, ["m", "n"])],
        initializers,
    )


def square_root():
    return float_model(helper.make_node("Sqrt", ["x"], ["y"]))


def text_data(samples=20, length=7, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, length + 1, size=(samples, 1))
    return {
        "ids": rng.integers(0, 10, size=(samples, length)),
        "mask": (np.arange(length) < lengths).astype(np.int64),
    }


def hidden(data):
    return TABLE[data["ids"]] @ WEIGHT


def cut(data, *places):
    parts = {name: np.split(array, places) for name, array in data.items()}
    return [dict(zip(parts, arrays, strict=True)) for arrays in zip(*parts.values(), strict=True)]


REQUESTS = [TensorRequest("h", per_channel=True), TensorRequest("flat"), TensorRequest("pooled")]


def test_what_is_captured_is_what_the_model_computes():
    data = text_data()
    before = text_model()
    model = text_model()
    result = capture(model, REQUESTS, open_data(data, input_specs(model)), threads=1)
    assert model == before
    assert list(result.tensors) == ["h", "flat", "pooled"]
    assert (result.samples, result.mask, result.model_digest) == (20, None, model_digest(model))
    expected = observe(hidden(data), per_channel=True)
    h = result.tensors["h"]
    assert h.count == expected.count
    np.testing.assert_allclose(h.channel_minimum, expected.channel_minimum, rtol=1e-5)
    np.testing.assert_allclose(h.channel_maximum, expected.channel_maximum, rtol=1e-5)
    np.testing.assert_allclose(h.root_mean_square, expected.root_mean_square, rtol=1e-5)
    assert result.tensors["flat"].histogram == h.histogram
    assert result.tensors["flat"].channels is None


@pytest.mark.parametrize("mask", [None, "mask"])
def test_neither_batches_nor_merges_matter(mask):
    model, data = text_model(), text_data()
    # Of rows that are looked up, not computed: ONNX Runtime's matmul may differ by the shape of its input.
    requests = [TensorRequest("e", per_channel=True)]
    whole = capture(model, requests, [data], mask=mask)
    for places in ([1], [3, 4, 19], range(1, 20)):
        parts = cut(data, *places)
        results = [capture(model, requests, [part], mask=mask) for part in parts]
        merged = results[-1]
        for result in results[-2::-1]:
            merged = merged.merge(result)
        for other in (capture(model, requests, parts, mask=mask), merged):
            assert other.samples == whole.samples == 20
            a, b = other.tensors["e"], whole.tensors["e"]
            assert (a.count, a.minimum, a.maximum) == (b.count, b.minimum, b.maximum)
            assert a.histogram == b.histogram
            np.testing.assert_array_equal(a.channel_minimum, b.channel_minimum)


def test_masked_positions_are_left_out():
    model, data = text_model(), text_data()
    result = capture(model, REQUESTS, [data], mask="mask")
    kept = data["mask"].astype(bool)
    expected = observe(hidden(data)[kept], per_channel=True)
    for name in ("h", "flat"):
        assert result.tensors[name].count == expected.count == kept.sum() * C
        np.testing.assert_allclose(result.tensors[name].maximum, expected.maximum, rtol=1e-5)
    np.testing.assert_allclose(result.tensors["h"].channel_minimum, expected.channel_minimum, rtol=1e-5)
    assert result.tensors["pooled"].count == 20 * C  # one row for each sample: nothing to leave out
    assert result.mask == "mask"


def test_lengths_may_differ_between_batches():
    feeds = [text_data(4, length, length) for length in (3, 9, 1, 5)]
    result = capture(text_model(), REQUESTS, feeds, mask="mask")
    assert result.tensors["h"].count == C * sum(int(feed["mask"].sum()) for feed in feeds)


def test_a_mask_that_does_not_match():
    with pytest.raises(CalibrationError, match=r"batch 1: tensor 'across' has shape \[6, 20, 7\], which the"):
        capture(text_model(), [TensorRequest("across")], [text_data()], mask="mask")
    with pytest.raises(CalibrationError, match=r"mask 'attention' is not an input of the model: .* ids, mask"):
        capture(text_model(), REQUESTS, [text_data()], mask="attention")
    nothing = text_data() | {"mask": np.zeros((20, 7))}
    with pytest.raises(CalibrationError, match=r"tensor 'h' has no values: .* the mask leaves all of it out"):
        capture(text_model(), REQUESTS, [nothing], mask="mask")


def test_inputs_and_outputs_and_repeated_requests():
    x = np.array([[1.0, 4.0, 9.0]], dtype=np.float32)
    requests = [TensorRequest("x"), TensorRequest("y"), TensorRequest("x", per_channel=True)]
    result = capture(square_root(), requests, [{"x": x}])
    np.testing.assert_array_equal(result.tensors["x"].channel_maximum, [1.0, 4.0, 9.0])
    assert result.tensors["y"].maximum == 3.0
    assert capture(square_root(), [TensorRequest("x")], [{"x": x}]).tensors.keys() == {"x"}


def test_progress_is_told_of_every_batch():
    calls = []
    feeds = [text_data(2), text_data(2), text_data(2)]
    capture(text_model(), REQUESTS, feeds, progress=lambda *call: calls.append(call))
    capture(text_model(), REQUESTS, lambda: feeds, progress=lambda *call: calls.append(call))
    assert calls == [(1, 3), (2, 3), (3, 3), (1, None), (2, None), (3, None)]


def test_a_stream_of_batches_is_never_held():
    made = []

    def batch():
        data = text_data(2)
        made.extend(weakref.ref(array) for array in data.values())
        return data

    def batches():
        for _ in range(200):
            assert all(array() is None for array in made)
            yield batch()

    result = capture(text_model(), REQUESTS, batches(), threads=1)
    assert result.samples == 400


@pytest.mark.parametrize("mask", [None, "mask"])
def test_values_that_are_not_finite_name_tensor_and_batch(mask):
    model = make_model(
        [
            helper.make_node("Log", ["x"], ["y"]),
            helper.make_node("Unsqueeze", ["y", "axis"], ["z"]),
        ],
        [("x", TensorProto.FLOAT, ["b", 3]), ("mask", TensorProto.INT64, ["b", 3])],
        [("z", TensorProto.FLOAT, ["b", 3, 1])],
        {"axis": np.array([2])},
    )
    ones = np.ones((2, 3), dtype=np.float32)
    bad = ones.copy()
    bad[0, 1], bad[1, 2] = -1.0, 0.0  # NaN, -infinity
    keep = np.ones((2, 3), dtype=np.int64)
    feeds = [{"x": ones, "mask": keep}, {"x": bad, "mask": keep}]
    with pytest.raises(CalibrationError, match="batch 2: tensor 'z' holds 2 of 6 values that are NaN"):
        capture(model, [TensorRequest("z")], feeds, mask=mask)
    feeds[1]["mask"] = (bad > 0).astype(np.int64)
    if mask:  # values where nobody looks do no harm
        assert capture(model, [TensorRequest("z")], feeds, mask=mask).tensors["z"].count == 6 + 4


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "no tensor was asked for"),
        ([TensorRequest("nothing")], "tensor 'nothing' is not computed in the model"),
        ([TensorRequest("weight")], "tensor 'weight' is not computed"),
        ([TensorRequest("")], "tensor '' is not computed"),
        ([TensorRequest("ids")], "batch 1: tensor 'ids' is of dtype int64"),
    ],
)
def test_tensors_that_cannot_be_observed(requests, message):
    with pytest.raises(CalibrationError, match=message):
        capture(text_model(), requests, [text_data()])


def test_data_that_does_not_fit():
    data = text_data()
    del data["mask"]
    with pytest.raises(CalibrationError, match="batch 1: has no 'mask'"):
        capture(text_model(), REQUESTS, [data])
    only_ids = open_data({"ids": data["ids"]}, [InputSpec("ids", np.dtype(np.int64), (None, None))])
    with pytest.raises(CalibrationError, match="batch 1: has no 'mask'"):
        capture(text_model(), REQUESTS, only_ids)
    with pytest.raises(CalibrationError, match="no batches"):
        capture(text_model(), REQUESTS, [])


def test_errors_of_the_runtime_are_one_line(capfd):
    feeds = [text_data(), text_data() | {"ids": np.full((20, 7), 99)}]
    with pytest.raises(CalibrationError, match=r"batch 2: ONNX Runtime cannot run it: .*out of data bounds") as e:
        capture(text_model(), REQUESTS, feeds)
    assert "\n" not in str(e.value)
    broken = float_model(helper.make_node("Sqrt", ["x"], ["y"]))
    broken.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(CalibrationError, match=r"ONNX Runtime cannot load the model: .*NoSuchOperator") as e:
        capture(broken, [TensorRequest("y")], [{"x": np.ones((1, 3))}])
    assert "\n" not in str(e.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("threads", [0, -1])
def test_threads(threads):
    with pytest.raises(CalibrationError, match="threads must be at least 1"):
        capture(square_root(), [TensorRequest("y")], [{"x": np.ones((1, 3))}], threads=threads)


def test_what_is_not_needed_is_not_run():
    model = text_model()
    small = probe.probe_model(model, ["h"]).model
    assert [node.output[0] for node in small.graph.node] == ["e", "h"]
    model.graph.node[-1].op_type = "NoSuchOperator"
    assert capture(model, REQUESTS, [text_data()]).samples == 20


def test_what_subgraphs_read_from_outside_is_kept():
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["doubled"], [f"inner_{op}"])],
            op,
            [],
            [helper.make_tensor_value_info(f"inner_{op}", TensorProto.FLOAT, ["m", "n"])],
        )
        for op in ("Neg", "Identity")
    ]
    model = float_model(
        helper.make_node("Add", ["x", "x"], ["doubled"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["condition"]),
        helper.make_node("If", ["condition"], ["y"], then_branch=branches[0], else_branch=branches[1]),
        zero=np.zeros((), dtype=np.float32),
    )
    result = capture(model, [TensorRequest("y")], [{"x": [[1, 2, 3]]}, {"x": [[-1, -2, -3]]}])
    assert (result.tensors["y"].minimum, result.tensors["y"].maximum) == (-6.0, -2.0)
    inner = capture(model, [TensorRequest("inner_Neg")], [{"x": [[1, 2, 3]]}, {"x": [[-1, -2, -3]]}])
    assert inner.tensors["inner_Neg"].count == 3


def test_large_models_go_through_files(monkeypatch):
    usual = capture(text_model(), REQUESTS, [text_data()])
    monkeypatch.setattr(probe, "_LARGE", 0)
    monkeypatch.setattr(probe, "_SMALL_TENSOR", 65)
    model, before = text_model(), text_model()
    assert capture(model, REQUESTS, [text_data()]) == usual
    assert model == before


def test_external_data_that_was_not_loaded(tmp_path):
    model = text_model()
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save(model, tmp_path / "m.onnx", **options)
    unloaded = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    with pytest.raises(CalibrationError, match="initializer 'table' is in an external file"):
        capture(unloaded, REQUESTS, [text_data()])
    loaded = onnx.load(tmp_path / "m.onnx")
    assert capture(loaded, REQUESTS, [text_data()]) == capture(text_model(), REQUESTS, [text_data()])


def test_input_specs():
    model = text_model()
    model.graph.input.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, [4, C]))
    model.graph.input.append(helper.make_tensor_value_info("fixed", TensorProto.FLOAT16, [1, "n", 3]))
    model.graph.input.append(helper.make_tensor_value_info("any", TensorProto.BOOL, None))
    assert input_specs(model) == (
        InputSpec("ids", np.dtype(np.int64), (None, None)),
        InputSpec("mask", np.dtype(np.int64), (None, None)),
        InputSpec("fixed", np.dtype(np.float16), (1, None, 3)),
        InputSpec("any", np.dtype(np.bool_), None),
    )
    for kind, message in ((TensorProto.STRING, "type STRING"), (TensorProto.BFLOAT16, "type BFLOAT16")):
        model = square_root()
        model.graph.input[0].type.tensor_type.elem_type = kind
        with pytest.raises(CalibrationError, match=message):
            input_specs(model)
    model = square_root()
    model.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None))
    with pytest.raises(CalibrationError, match="'x' is not a tensor"):
        input_specs(model)


def test_the_digest_tells_models_apart():
    digest = model_digest(text_model())
    assert len(digest) == 64
    same = text_model()
    same.doc_string = "documentation"
    same.metadata_props.add(key="author", value="nobody")
    assert model_digest(same) == digest
    for change in ("weight", "node", "name", "opset", "function"):
        other = text_model()
        if change == "weight":
            other.graph.initializer[0].CopyFrom(numpy_helper.from_array(TABLE + 1, "table"))
        elif change == "node":
            other.graph.node[3].op_type = "ReduceMin"
        elif change == "name":
            other.graph.node[1].output[0] = "hh"
        elif change == "function":
            node, opset = helper.make_node("Neg", ["a"], ["b"]), helper.make_opsetid("", 17)
            other.functions.append(helper.make_function("local", "f", ["a"], ["b"], [node], [opset]))
        else:
            other.opset_import[0].version = 18
        assert model_digest(other) != digest


def test_a_captured_calibration_survives_its_file(tmp_path):
    result = capture(text_model(), REQUESTS, [text_data()], mask="mask")
    result.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json") == result
