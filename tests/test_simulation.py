"""Every width of integer FFNs end to end, and FFNs of more bits simulated and called so."""

import functools

import numpy as np
import pytest
import zoo

from qgelu.demo import load_calibration, load_test, model_path
from qgelu.graph.model_file import load_model
from qgelu.graph.sites import find_sites
from qgelu.pipeline import calibrate, quantize
from qgelu.reporting import report
from qgelu.simulation import simulate_ffns
from qgelu.verification import verify

TEST = {name: array[:60] for name, array in load_test()[0].items()}


@functools.cache
def demo():
    model = load_model(model_path())
    return model, calibrate(model, {name: array[:128] for name, array in load_calibration().items()})


@functools.cache
def zoo_model(name):
    model = zoo.load(name)
    rng = np.random.default_rng(11)
    return model, calibrate(model, [zoo.feed(model, rng, 4, 16) for _ in range(16)])


def error(model, quantized):
    expected = zoo.run(model, TEST)[0]
    return zoo.relative_error(expected, zoo.run(quantized, TEST)[0])


@pytest.mark.parametrize("bits", range(2, 9))
def test_every_width_runs_and_verifies_on_the_demo(bits):
    model, statistics = demo()
    result = quantize(model, calibration=statistics, bits=bits)
    assert [(site.scope, site.bits, site.plan.output.bits) for site in result.sites] == [("ffn", bits, bits)] * 3
    checked = verify(model, result, TEST)
    assert checked.passed, checked.failures
    assert checked.outputs[0].relative_error < 3.0 / (1 << bits)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("name", ["bert_gelu.ts17", "gpt2_gelu_new.dyn18"])
def test_every_width_runs_and_verifies_on_exporters_models(name, bits):
    model, statistics = zoo_model(name)
    result = quantize(model, calibration=statistics, bits=bits)
    assert [(site.scope, site.plan.output.bits) for site in result.sites] == [("ffn", bits)] * 2
    rng = np.random.default_rng(12)
    checked = verify(model, result, [zoo.feed(model, rng, *shape) for shape in [(4, 16), (1, 7)]])
    assert checked.passed, checked.failures


def test_the_simulation_agrees_with_the_integers_where_both_exist():
    """At 2 to 8 bits its error is about that of the integer model, and from 9 on it falls to that of the weights."""
    model, statistics = demo()
    sites = find_sites(model).sites
    simulated = {}
    for bits in (3, 5, 8, 9, 12, 16):
        found = simulate_ffns(model, sites, statistics, bits)
        assert found.simulated == tuple(site.name for site in sites)
        simulated[bits] = error(model, found.model)
    for bits in (3, 5, 8):
        executed = error(model, quantize(model, calibration=statistics, bits=bits).model)
        assert 0.6 * executed < simulated[bits] < 1.6 * executed
    assert simulated[9] < simulated[8]
    assert simulated[12] < simulated[9]
    assert simulated[16] < 1.02 * simulated[12]
    assert not any("Integer" in node.op_type for node in found.model.graph.node)


@pytest.mark.parametrize("name", ["bert_gelu.ts17", "gpt2_gelu_new.dyn18"])
def test_exporters_models_are_simulated(name):
    model, statistics = zoo_model(name)
    found = simulate_ffns(model, find_sites(model).sites, statistics, 12)
    assert len(found.simulated) == 2
    rng = np.random.default_rng(12)
    inputs = zoo.feed(model, rng, 3, 11)
    for expected, actual in zip(zoo.run(model, inputs), zoo.run(found.model, inputs), strict=True):
        assert expected.shape == actual.shape
        assert 0.0 < zoo.relative_error(expected, actual) < zoo.RELATIVE_ERROR[name][0]


def test_every_form_of_a_report_calls_it_simulated():
    _, statistics = demo()
    found = report(
        str(model_path()),
        None,
        calibration=statistics,
        test_data=TEST,
        bits=[8, 12],
        tolerance=0.0,
        metric="cosine_mean",
    )
    kinds = {candidate.label: candidate.kind for candidate in found.candidates}
    assert kinds == {
        "ffn, 8 bits": "qgelu",
        "ffn, 12 bits, simulated": "simulated",
        "activation, 8 bits": "qgelu",
        "activation, 12 bits": "qgelu",
    }
    (one,) = found.simulated
    assert one.executed == "simulated: 3 FFNs rounded to codes in float arithmetic"
    assert one not in found.of_scope("ffn")
    content = found.to_dict()
    assert [c["kind"] for c in content["candidates"] if c["bits"] == 12] == ["simulated", "qgelu"]
    assert not any("nothing is simulated" in note for note in found.notes)
    assert any("candidates called simulated round to more bits in float" in note for note in found.notes)
    for text in (found.to_markdown(), found.to_html()):
        assert "ffn, 12 bits, simulated" in text
        assert "simulated: 3 FFNs rounded" in text
        assert "ffn, 12 bits<" not in text
        assert "ffn, 12 bits |" not in text
    assert "scope ffn, simulated" in found.to_html()
    # It would keep the least tolerance that its loss allows, and is not recommended all the same.
    better = report(
        str(model_path()),
        None,
        calibration=statistics,
        test_data=TEST,
        bits=[2, 12],
        metric="cosine_mean",
        tolerance=1e-4,
    )
    assert better.simulated[0].loss < 1e-4
    assert better.recommendations[0].scope == "activation"
    assert [one.bits for one in better.recommendations if one.scope == "ffn"] == [None]


def test_only_simulated_widths(capsys):
    from rich.console import Console

    from qgelu.reporting.terminal import print_report

    _, statistics = demo()
    found = report(str(model_path()), None, calibration=statistics, test_data=TEST, bits=[9])
    assert [one.scope for one in found.recommendations] == ["activation"]
    print_report(Console(width=160), found)
    assert "ffn, 9 bits, simulated" in capsys.readouterr().out
