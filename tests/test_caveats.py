"""Warnings about a model: variants that are mixed, a config.json that says otherwise."""

import json

import numpy as np
import onnx
import pytest
from site_models import SPELLINGS, Builder, model_of

from qgelu.caveats import caveats
from qgelu.graph.sites import find_sites
from qgelu.pipeline import quantize


def findings_of(*activations):
    b = Builder()
    x = "x"
    for activation in activations:
        if isinstance(activation, float):
            x = b.op("QuickGelu", x, domain="com.microsoft", alpha=activation)
        else:
            x = SPELLINGS[activation][next(iter(SPELLINGS[activation]))](b, x)
        x = b.op("ReduceSum", x, keepdims=1, noop_with_empty_axes=1)
    return find_sites(model_of(b, {"x": ("n", 5)}, [x]))


def lines(tmp_path, config, *activations, folder=""):
    (tmp_path / folder).mkdir(exist_ok=True)
    if config is not None:
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return caveats(findings_of(*activations), tmp_path / folder / "model.onnx")


@pytest.mark.parametrize(
    ("activations", "words"),
    [
        (("gelu", "gelu_tanh"), "gelu at 1 site "),
        (("gelu_tanh", "quick_gelu", "gelu_tanh"), "gelu_tanh at 2 sites "),
        ((1.702, 1.6), "quick_gelu with alpha 1.702 at 1 site "),
        (("gelu", "silu"), None),
        (("silu", "silu"), None),
        (("gelu", "gelu"), None),
        ((), None),
    ],
)
def test_mixed_variants(tmp_path, activations, words):
    found = lines(tmp_path, None, *activations)
    assert len(found) == (words is not None)
    if words:
        assert "mixes variants" in found[0]
        assert words in found[0]


AGREEING = [
    ({"hidden_act": "gelu"}, ["gelu"]),
    ({"hidden_act": "gelu_10"}, ["gelu"]),
    ({"hidden_act": "gelu_python"}, ["gelu"]),
    ({"activation": "gelu"}, ["gelu"]),
    ({"activation_function": "gelu_new"}, ["gelu_tanh"]),
    ({"hidden_act": "gelu_fast"}, ["gelu_tanh"]),
    ({"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu"}, ["gelu_tanh"]),
    ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new"}, ["gelu_tanh"]),
    ({"feed_forward_proj": "gated-silu"}, ["silu"]),
    ({"hidden_act": "swish"}, ["silu"]),
    ({"text_config": {"hidden_act": "gelu"}, "vision_config": {"hidden_act": "quick_gelu"}}, ["quick_gelu"]),
    ({"hidden_act": 3, "layers": [1]}, ["gelu"]),
    ({"hidden_act": "gelu_new"}, []),
    ("[1]", ["gelu"]),
]


@pytest.mark.parametrize(("config", "activations"), AGREEING)
def test_configurations_that_agree(tmp_path, config, activations):
    assert lines(tmp_path, config, *activations) == ()


DISAGREEING = [
    ({"hidden_act": "gelu_new"}, ["gelu"], "hidden_act 'gelu_new', and the graph computes gelu"),
    ({"activation_function": "gelu"}, ["gelu_tanh"], "activation_function 'gelu'"),
    ({"hidden_act": "relu"}, ["silu"], "hidden_act 'relu'"),
    ({"hidden_act": "quick_gelu"}, [1.5], "the graph computes quick_gelu with alpha 1.5"),
    ({"feed_forward_proj": "gated-gelu"}, ["gelu"], "'gated-gelu'"),
    ({"vision_config": {"hidden_act": "quick_gelu"}}, ["gelu"], "vision_config.hidden_act 'quick_gelu'"),
]


@pytest.mark.parametrize("folder", ["", "onnx"])
@pytest.mark.parametrize(("config", "activations", "words"), DISAGREEING)
def test_configurations_that_disagree(tmp_path, config, activations, words, folder):
    (line,) = lines(tmp_path, config, *activations, folder=folder)
    assert words in line
    assert "config.json" in line


@pytest.mark.parametrize("config", ["{", '{"hidden_act": "gelu', "\x00", "[" * 100000])
def test_configurations_that_cannot_be_read(tmp_path, config):
    (line,) = lines(tmp_path, config, "gelu")
    assert "cannot be read as JSON" in line


def test_a_configuration_that_is_none(tmp_path):
    assert lines(tmp_path, '{"hidden_act": "relu", "x": "' + "y" * (1 << 20) + '"}', "gelu") == ()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").mkdir()
    assert caveats(findings_of("gelu"), tmp_path / "other" / "model.onnx") == ()


def test_the_folder_is_found_from_inside_it(tmp_path, monkeypatch):
    (tmp_path / "onnx").mkdir()
    (tmp_path / "config.json").write_text('{"hidden_act": "relu"}')
    monkeypatch.chdir(tmp_path / "onnx")
    assert len(caveats(findings_of("gelu"), "model.onnx")) == 1


def test_quantize_says_them_too(tmp_path):
    b = Builder()
    x = SPELLINGS["gelu_tanh"][next(iter(SPELLINGS["gelu_tanh"]))](b, "x")
    path = tmp_path / "model.onnx"
    onnx.save(model_of(b, {"x": ("n", 5)}, [x]), path)
    (tmp_path / "config.json").write_text('{"hidden_act": "gelu"}')
    data = [{"x": np.linspace(-4, 4, 40, dtype=np.float32).reshape(8, 5)}]
    (note,) = quantize(path, data, scope="activation").notes
    assert "says hidden_act 'gelu', and the graph computes gelu_tanh at 1 site" in note
    assert not quantize(onnx.load(path), data, scope="activation").notes
