"""ONNX Runtime's own dynamic quantization of what this package leaves in float, on this package's output."""

import json
from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
import zoo

import qgelu
from qgelu.graph.functions import DOMAIN
from qgelu.pipeline import METADATA_KEY, quantize, quantized_sites
from qgelu.verification import verify

MODELS = ("bert_gelu.ts14", "gpt2_gelu_new.dyn18", "gemma_gelu_tanh.dyn20")


def quantize_rest(path, target):
    """Run quantize_dynamic on every MatMul and Gemm that is left, as docs/runtimes.md shows."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        path, target, op_types_to_quantize=["MatMul", "Gemm"], per_channel=True, weight_type=QuantType.QInt8
    )
    return onnx.load(target)


def operators(model):
    return Counter(f"{node.domain}.{node.op_type}" for node in model.graph.node)


@pytest.fixture(scope="module", params=MODELS)
def both(request, tmp_path_factory):
    """Return the float model, ours and that after quantize_dynamic."""
    folder = tmp_path_factory.mktemp("rest")
    model = zoo.load(request.param)
    rng = np.random.default_rng(21)
    ours = quantize(model, [zoo.feed(model, rng, 4, 16) for _ in range(8)])
    ours.save(folder / "ours.onnx")
    return model, ours.model, quantize_rest(folder / "ours.onnx", folder / "both.onnx")


def test_the_rest_is_quantized_and_our_part_stays(both):
    _, ours, result = both
    before, after = operators(ours), operators(result)
    assert after[".MatMulInteger"] >= before[".MatMulInteger"] + 4  # attention of two layers, at least
    for name in ("qgelu.RequantizeGelu", "qgelu.QGelu", ".QuantizeLinear"):
        assert after[name] == before[name]
    assert [f for f in result.functions if f.domain == DOMAIN] == [f for f in ours.functions if f.domain == DOMAIN]
    imports = {entry.domain: entry.version for entry in ours.opset_import}
    assert imports.items() <= {entry.domain: entry.version for entry in result.opset_import}.items()
    onnx.checker.check_model(result, full_check=True)


def test_the_metadata_stays(both):
    _, ours, result = both
    kept = [next(e.value for e in m.metadata_props if e.key == METADATA_KEY) for m in (ours, result)]
    assert json.loads(kept[0]) == json.loads(kept[1])
    assert len(quantized_sites(result)) == 2


def test_it_runs_and_verifies(both):
    model, ours, result = both
    rng = np.random.default_rng(22)
    inputs = zoo.feed(model, rng, 3, 11)
    expected, actual = zoo.run(model, inputs)[0], zoo.run(result, inputs)[0]
    assert zoo.relative_error(expected, actual) < zoo.relative_error(expected, zoo.run(ours, inputs)[0]) + 0.05
    found = verify(model, result, [inputs])
    assert found.passed, found.failures
    assert all(site.executors.differences == 0 for site in found.sites)


def test_native_kernels_run_it(both, native_library):
    model, _, result = both
    inputs = zoo.feed(model, np.random.default_rng(23), 3, 11)
    options = onnxruntime.SessionOptions()
    qgelu.register(options)
    outputs = onnxruntime.InferenceSession(result.SerializeToString(), options).run(None, inputs)
    for expected, actual in zip(zoo.run(result, inputs), outputs, strict=True):
        np.testing.assert_array_equal(actual, expected)
