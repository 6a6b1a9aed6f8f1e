"""Verification: what a good model gives, and that a model that was tampered with does not pass."""

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qgelu.demo import load_calibration, load_test, model_path
from qgelu.dip_check import check_dip
from qgelu.errors import QGeluError
from qgelu.graph.model_file import load_model
from qgelu.output_comparison import OutputComparison
from qgelu.pipeline import METADATA_KEY, QuantizedModel, quantize
from qgelu.planner import make_plan
from qgelu.qparams import AccumulatorParams, QParams
from qgelu.verification import verify

SAMPLES = 40


@pytest.fixture(scope="module")
def float_model() -> onnx.ModelProto:
    return load_model(model_path())


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    return {name: array[:SAMPLES] for name, array in load_test()[0].items()}


@pytest.fixture(scope="module")
def quantized(float_model: onnx.ModelProto) -> dict[str, QuantizedModel]:
    images = {name: array[:64] for name, array in load_calibration().items()}
    return {
        "ffn": quantize(float_model, images),
        "activation": quantize(float_model, images, scope="activation"),
        "qdq": quantize(float_model, images, target="qdq"),
    }


def copy_of(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def change_initializer(model: onnx.ModelProto, op_type: str, index: int, position: int) -> onnx.ModelProto:
    """Flip the lowest bit of one entry of an initializer that the second site's custom op reads."""
    changed = copy_of(model)
    node = [node for node in changed.graph.node if node.op_type == op_type][1]
    tensor = next(tensor for tensor in changed.graph.initializer if tensor.name == node.input[index])
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[position] ^= 1
    own = numpy_helper.from_array(array, f"{tensor.name}/changed")
    changed.graph.initializer.append(own)
    node.input[index] = own.name
    return changed


@pytest.mark.parametrize("kind", ["ffn", "activation"])
def test_good_model_passes(kind, float_model, quantized, data):
    found = verify(float_model, quantized[kind], data)
    assert found.passed, found.failures
    assert [site.scope for site in found.sites] == [kind] * 3
    (output,) = found.outputs
    assert output.samples == SAMPLES
    assert output.cosine_worst > 0.99
    assert output.top1_agreement >= 0.95
    assert output.sqnr_db == pytest.approx(-20.0 * np.log10(output.relative_error))
    for site in found.sites:
        assert site.executors.differences == 0
        assert site.executors.exhaustive == (kind == "activation")
        assert site.executors.inputs == 256 if kind == "activation" else site.executors.inputs > 4096 * 160
        assert 0.3 < site.dip.max_error_lsb <= site.certificate_lsb
        assert site.dip.minimum == pytest.approx(-0.17, abs=0.01)
        assert site.dip.minimum_from < -0.7518 < site.dip.minimum_to
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.to_dict()["format"] == "qgelu.verification"


def test_target_qdq_says_that_there_are_no_custom_ops(float_model, quantized, data):
    found = verify(float_model, quantized["qdq"], data)
    assert found.passed
    assert found.target == "qdq"
    assert "no custom ops" in found.executors_note
    assert all(site.executors is None for site in found.sites)


@pytest.mark.parametrize(
    ("kind", "op_type", "index", "position"),
    [
        ("activation", "QGelu", 1, 200),  # an entry of the table
        ("ffn", "RequantizeGelu", 1, 3),  # a bias: the bounds no longer belong to it
        ("ffn", "RequantizeGelu", 2, 5),  # a lower bound, beyond which every code is the same
        ("ffn", "RequantizeGelu", 9, 17),  # a channel's tail multiplier
        ("ffn", "RequantizeGelu", 11, 6),  # a coefficient
    ],
)
def test_changed_initializer_is_caught_by_name(kind, op_type, index, position, float_model, quantized, data):
    changed = change_initializer(quantized[kind].model, op_type, index, position)
    found = verify(float_model, changed, data)
    assert not found.passed
    assert len(found.failures) == 1
    assert "'node_gelu_1'" in found.failures[0]
    assert "\n" not in found.failures[0]


def test_model_that_no_longer_runs_fails(float_model, quantized, data):
    changed = change_initializer(quantized["activation"].model, "QGelu", 2, 0)  # the first code
    failures = verify(float_model, changed, data).failures
    assert any(failure.startswith("batch 1: the quantized model: ONNX Runtime cannot run it") for failure in failures)
    assert any("'node_gelu_1'" in failure and "'first_code'" in failure for failure in failures) or any(
        "'node_gelu_1'" in failure and "cannot be run" in failure for failure in failures
    )


def test_changed_table_entry_shows_the_code_that_differs(float_model, quantized, data):
    changed = change_initializer(quantized["activation"].model, "QGelu", 1, 200)
    (failure,) = verify(float_model, changed, data).failures
    assert "1 of 256 codes differ" in failure
    assert "input 200 gives" in failure


def test_changed_function_body_is_caught(float_model, quantized, data):
    changed = copy_of(quantized["ffn"].model)
    (function,) = [function for function in changed.functions if function.name == "RequantizeGelu"]
    constant = next(
        node.attribute[0].t
        for node in function.node
        if node.op_type == "Constant" and numpy_helper.to_array(node.attribute[0].t).tolist() == 128.0
    )
    constant.CopyFrom(numpy_helper.from_array(np.array(127, np.float32)))
    found = verify(float_model, changed, data)
    assert len(found.failures) == 3
    assert all("codes differ" in failure for failure in found.failures)


def test_table_that_is_wrong_in_file_and_metadata_alike_is_caught(float_model, quantized, data):
    changed = change_initializer(quantized["activation"].model, "QGelu", 1, 200)
    entry = next(entry for entry in changed.metadata_props if entry.key == METADATA_KEY)
    sites = json.loads(entry.value)
    sites[1]["plan"]["parameters"]["table"][200] ^= 1
    entry.value = json.dumps(sites)
    found = verify(float_model, changed, data)
    assert found.sites[1].executors.differences == 0
    assert any("'node_gelu_1'" in failure and "not correctly rounded" in failure for failure in found.failures)


def test_removed_custom_op_is_caught(float_model, quantized, data):
    changed = copy_of(quantized["activation"].model)
    node = [node for node in changed.graph.node if node.op_type == "QGelu"][1]
    node.op_type, node.domain = "Identity", ""
    del node.input[1:], node.attribute[:]
    failures = verify(float_model, changed, data).failures
    assert any("'node_gelu_1'" in failure and "no custom op" in failure for failure in failures)
    assert any("2 custom ops for the 3 sites" in failure for failure in failures)


def test_missing_and_non_finite_outputs_fail(float_model, quantized, data):
    renamed = copy_of(quantized["ffn"].model)
    producer = next(node for node in renamed.graph.node if "logits" in node.output)
    producer.output[0] = renamed.graph.output[0].name = "other"
    assert "output 'logits' is missing in the quantized model" in verify(float_model, renamed, data).failures
    broken = copy_of(quantized["ffn"].model)
    tensor = next(tensor for tensor in broken.graph.initializer if tensor.name.endswith("output_bias"))
    tensor.CopyFrom(numpy_helper.from_array(np.full(tuple(tensor.dims), np.nan, np.float32), tensor.name))
    (failure,) = verify(float_model, broken, data).failures
    assert failure.startswith("output 'logits'")
    assert "NaN or infinite" in failure


def test_models_that_do_not_belong_together_are_refused(float_model, quantized, data):
    with pytest.raises(QGeluError, match="was not quantized by qgelu"):
        verify(float_model, float_model, data)
    with pytest.raises(QGeluError, match="quantized by qgelu already"):
        verify(quantized["ffn"].model, quantized["ffn"], data)
    other = copy_of(float_model)
    for node in other.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == "linear_2":
                    names[index] = "renamed"
    with pytest.raises(QGeluError, match="'linear_2' of site 'node_gelu' is not in the float model"):
        verify(other, quantized["ffn"], data)
    with pytest.raises(QGeluError, match=r"mask 'nothing' is not an input of the model: it takes images"):
        verify(float_model, quantized["ffn"], data, mask="nothing")


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "quick_gelu", "silu"])
@pytest.mark.parametrize("bits", [4, 8])
def test_dip_of_tables(activation, bits):
    codes = 1 << bits
    plan = make_plan(QParams(8.0 / codes, codes // 2, bits), QParams(4.5 / codes, codes // 8, bits), activation)
    found = check_dip(plan)
    x = plan.input.dequantize(np.arange(codes))
    inside = (x >= found.interval[0]) & (x <= found.interval[1])
    assert found.inputs == np.count_nonzero(inside)
    assert found.interval[0] < found.float_minimum_at < found.interval[1]
    assert 0.0 < found.max_error_lsb <= 0.5
    answers = plan(np.arange(codes, dtype=np.uint8))[inside]
    assert found.minimum == pytest.approx(plan.output.dequantize(answers).min())


def test_dip_of_channels_names_the_worst_and_counts_clipped_ones():
    scale, zero = np.array([0.01, 0.004, 0.02]), np.array([20, 10, 9])  # the second ends at -0.04, above the dip
    plan = make_plan(AccumulatorParams(np.array([1e-4, 2e-5, 3e-3])), QParams(scale, zero, 8), "gelu")
    found = check_dip(plan)
    assert found.channels_above_dip == 1
    assert found.minimum_channel == 2
    assert found.minimum == pytest.approx(-0.16) or found.minimum == pytest.approx(-0.18)
    # 1,024 in each of the two fine channels; in the third, x from -1.497 to -0.252 in steps of 0.003.
    assert found.inputs == 1024 + 1024 + 416
    assert found.max_error_lsb <= plan.certificate.max_error_lsb
    again = plan(np.full((1, 3), found.value, np.int32))[0, found.channel]
    exact = np.clip(
        float(check_value(found.value * plan.input.scale[found.channel])) / scale[found.channel] + zero[found.channel],
        0,
        255,
    )
    assert abs(float(again) - exact) == pytest.approx(found.max_error_lsb)


def check_value(x):
    from math import erf, sqrt

    return x * 0.5 * (1.0 + erf(x / sqrt(2.0)))


def compare(*batches, mask=None, labels=None):
    comparison = OutputComparison("y", labels)
    for expected, actual in batches:
        comparison.update(np.float32(expected), np.float32(actual), mask)
    return comparison


def test_output_errors_by_hand_over_batches():
    found = compare(([[3.0, 4.0]], [[3.0, 4.5]]), ([[1.0, 0.0]], [[0.0, 1.0]])).errors()
    assert found.samples == 2
    assert found.max_abs_error == 1.0
    assert found.relative_error == pytest.approx(np.sqrt(2.25 / 26.0))
    assert found.sqnr_db == pytest.approx(10.0 * np.log10(26.0 / 2.25))
    assert found.cosine_worst == 0.0
    assert found.cosine_worst_sample == 1
    assert found.cosine_mean == pytest.approx(0.5 * 27.0 / (5.0 * np.hypot(3.0, 4.5)))
    assert found.top1_agreement == 0.5


def test_output_errors_count_labels():
    labels = np.array([1, 0, 1])
    found = compare(([[0, 1], [0, 1]], [[0, 1], [1, 0]]), ([[0, 1]], [[0, 1]]), labels=labels).errors()
    assert found.float_accuracy == pytest.approx(2 / 3)
    assert found.accuracy == 1.0


def test_embeddings_are_no_classes_and_probabilities_are():
    assert compare(([[0.6, -0.8]], [[0.6, -0.8]])).errors().top1_agreement is None
    assert compare(([[1.0, 0.0]], [[1.0, 0.0]])).errors().top1_agreement == 1.0
    assert compare(([[0.6, -0.9]], [[0.6, -0.8]])).errors().top1_agreement == 1.0


def test_equal_outputs_have_no_sqnr_and_cosine_1():
    found = compare(([[1.0, 2.0]], [[1.0, 2.0]]), ([[0.0, 0.0]], [[0.0, 0.0]])).errors()
    assert (found.max_abs_error, found.relative_error, found.sqnr_db) == (0.0, 0.0, None)
    assert found.cosine_worst == 1.0


def test_mask_leaves_padding_of_rank_3_outputs_out():
    expected = np.ones((1, 2, 3))
    actual = expected.copy()
    actual[0, 1] = 9.0
    assert compare((expected, actual)).errors().max_abs_error == 8.0
    assert compare((expected, actual), mask=np.array([[1, 0]])).errors().max_abs_error == 0.0


@pytest.mark.parametrize(
    ("expected", "actual", "reason"),
    [
        ([[1.0]], [[1.0, 2.0]], "has shape"),
        ([[1.0, 2.0]], [[np.nan, 2.0]], "1 of 2 values are NaN or infinite"),
    ],
)
def test_outputs_that_cannot_be_compared(expected, actual, reason):
    assert reason in compare((expected, actual)).failure


def test_infinities_that_both_models_give_are_left_out():
    found = compare(([[1.0, -np.inf]], [[1.5, -np.inf]]))
    assert found.failure is None
    assert found.errors().max_abs_error == 0.5
