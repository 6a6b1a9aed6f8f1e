"""What ONNX Runtime's optimizer makes of the exporters' models: fused activations, norms and attention."""

import numpy as np
import onnx
import onnxruntime
import pytest
import zoo

from qgelu.graph.sites import find_sites
from qgelu.pipeline import quantize
from qgelu.verification import verify

FUSED = {"BiasGelu", "FastGelu", "Gelu", "QuickGelu"}


def optimized(name, path):
    """Return a model as ONNX Runtime saves it after its extended optimizations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(str(zoo.FOLDER / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
    return onnx.load(path)


@pytest.mark.parametrize("name", sorted(zoo.RELATIVE_ERROR))
def test_optimized_models(name, tmp_path):
    model = optimized(name, tmp_path / "optimized.onnx")
    plain = find_sites(zoo.load(name)).sites
    sites = find_sites(model).sites
    assert [(site.activation, site.scope) for site in sites] == [(site.activation, site.scope) for site in plain]
    data = [zoo.feed(model, np.random.default_rng(seed), 4, 16) for seed in range(3)]
    result = quantize(model, data)
    limit = zoo.RELATIVE_ERROR[name][0]
    for expected, actual in zip(zoo.run(model, data[0]), zoo.run(result.model, data[0]), strict=True):
        assert 0 < zoo.relative_error(expected, actual) < limit
    assert not FUSED & {node.op_type for node in result.model.graph.node}
    assert verify(model, result, data[:1]).passed


def test_norms_in_opsets_that_do_not_have_them(tmp_path):
    model = optimized("bert_gelu.ts14", tmp_path / "optimized.onnx")
    assert model.opset_import[0].version == 14
    norms = [node for node in model.graph.node if node.op_type == "LayerNormalization"]
    assert {node.domain for node in norms} == {""}
