"""Bits for each site from a goal: what is returned keeps it, was measured, and cannot do with less."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from calibration import CalibrationError, held_out_samples, hold_out, input_specs, open_data
from qgelu import cli
from qgelu.accuracy_goal import AccuracyGoal, read_goal
from qgelu.bit_search import LEAST_BITS, search_bits
from qgelu.errors import QGeluError
from qgelu.evaluation import evaluate_model
from qgelu.inspection import inspect
from qgelu.output_comparison import OutputErrors
from qgelu.pipeline import quantize, quantized_sites
from qgelu.reference_store import ReferenceStore
from qgelu.sessions import ModelRunner
from qgelu.verification import verify

WEIGHTS = np.random.default_rng(5)
NORMAL = [WEIGHTS.normal(size=shape).astype(np.float32) for shape in [(8, 32), (32, 8)] * 3]


def model_of_three(gains=(1.0, 1.0, 1.0), batch="batch"):
    """Three FFNs side by side whose outputs are added, each with its own gain: the sensitive one has the largest."""
    nodes, initializers = [], []
    for index, gain in enumerate(gains):
        initializers += [
            numpy_helper.from_array(NORMAL[2 * index], f"first_{index}"),
            numpy_helper.from_array(NORMAL[2 * index + 1] * np.float32(gain), f"second_{index}"),
        ]
        nodes += [
            helper.make_node("MatMul", ["x", f"first_{index}"], [f"h_{index}"], name=f"first_{index}"),
            helper.make_node("Gelu", [f"h_{index}"], [f"g_{index}"], name=f"site_{index}"),
            helper.make_node("MatMul", [f"g_{index}", f"second_{index}"], [f"o_{index}"], name=f"second_{index}"),
        ]
    nodes.append(helper.make_node("Sum", ["o_0", "o_1", "o_2"], ["y"], name="sum"))
    graph = helper.make_graph(
        nodes,
        "three",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 8])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def samples(count=160, seed=7):
    return {"x": np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)}


def outputs_of(model, quantized, feed):
    with ModelRunner(model, "float") as runner, ModelRunner(quantized, "quantized") as other:
        return evaluate_model([(feed, runner.run(feed))], other).outputs


@pytest.mark.parametrize("scope", ["ffn", "activation"])
@pytest.mark.parametrize("target", ["cosine=0.995", "sqnr=22", "relative-error=0.07", "worst-cosine=0.98"])
def test_the_goal_is_kept_by_the_model_that_is_returned(scope, target):
    model, data = model_of_three((30.0, 1.0, 0.1)), samples()
    result = quantize(model, data, scope=scope, target_metric=target)
    goal, trade = read_goal(target, None), result.trade
    held_out = {"x": data["x"][3::4]}
    measured = goal.value(outputs_of(model, result.model, held_out))
    assert goal.is_met(measured)
    assert trade.reached == pytest.approx(measured, rel=1e-9)
    assert trade.samples == 40
    bits = {site.name: site.bits for site in result.sites}
    assert bits == {site.name: site.bits for site in trade.sites}
    assert trade.mean_bits == sum(bits.values()) / 3
    # The site with the large gain makes nearly all of the error, and gets the bits.
    assert bits["site_0"] > bits["site_1"] >= bits["site_2"]
    kept = [width for width, value in trade.single_width.items() if goal.is_met(value)]
    assert trade.mean_bits < min(kept)
    missed = set(trade.single_width) - set(kept)
    assert missed == {min(kept) - 1}


@pytest.mark.parametrize("target", ["cosine=0.995", "sqnr=22"])
def test_no_site_can_do_with_one_bit_less(target):
    model, data = model_of_three((3.0, 1.0, 0.3)), samples()
    result = quantize(model, data, target_metric=target)
    goal = read_goal(target, None)
    # The same calibration as the search had, and its samples.
    from qgelu.graph.sites import find_sites
    from qgelu.pipeline import _Choice, _Job, calibrate

    kept = {"x": np.delete(data["x"], np.arange(3, 160, 4), axis=0)}
    job = _Job(model, find_sites(model).sites, "ffn", _Choice(calibrate(model, kept), 8, "output", "portable", 8))
    bits = {site.name: site.bits for site in result.sites}
    assert job.build(bits).model.SerializeToString() == result.model.SerializeToString()
    for name, width in bits.items():
        if width > LEAST_BITS:
            lower = job.build({**bits, name: width - 1}).model
            assert not goal.is_met(goal.value(outputs_of(model, lower, {"x": data["x"][3::4]})))


def test_deterministic_and_reported():
    stages = []
    options = {"target_metric": "cosine=0.99"}
    first = quantize(model_of_three(), samples(), progress=lambda *step: stages.append(step), **options)
    second = quantize(model_of_three(), samples(), **options)
    assert first.model.SerializeToString() == second.model.SerializeToString()
    assert first.trade == second.trade
    json.dumps(first.trade.to_dict(), allow_nan=False)
    for stage, done, most in stages:
        assert most is None or done <= most, stage
    names = {stage for stage, _, _ in stages}
    assert names >= {"run float model", "measure single widths", "measure each site alone", "measure combinations"}
    measured = sum(stage.startswith("measure") for stage, _, _ in stages)
    assert measured == first.trade.measurements


def test_bits_of_each_site_survive_in_the_file(tmp_path):
    model, path = model_of_three((30.0, 1.0, 0.1)), tmp_path / "mixed.onnx"
    result = quantize(model, samples(), target_metric="sqnr=25")
    result.save(path)
    loaded = onnx.load(path)
    assert {site.name: site.bits for site in quantized_sites(loaded)} == {s.name: s.bits for s in result.sites}
    assert len({site.bits for site in result.sites}) > 1
    checked = verify(model, str(path), samples(40, seed=9))
    assert checked.passed
    assert [site.bits for site in checked.sites] == [site.bits for site in result.sites]


def test_wider_tables_where_8_bits_do_not_do():
    result = quantize(model_of_three(), samples(), scope="activation", target_metric="sqnr=42")
    assert list(result.trade.single_width)[:2] == [8, 16]
    assert 8 < result.trade.mean_bits < 16
    assert result.trade.reached >= 42


@pytest.mark.parametrize(("scope", "bits"), [("ffn", 8), ("activation", 16)])
def test_a_goal_that_cannot_be_reached_is_one_line(scope, bits):
    with pytest.raises(QGeluError) as caught:
        quantize(model_of_three(), samples(), scope=scope, target_metric="sqnr=200")
    line = str(caught.value)
    assert line.startswith(f"sqnr >= 200 is not reached: {bits} bits at every site give ")
    assert "on 40 samples that calibration did not see" in line
    assert "\n" not in line


def test_test_data_calibration_and_labels():
    from qgelu.pipeline import calibrate

    model, data, test = model_of_three(), samples(), samples(64, seed=8)
    with ModelRunner(model, "float") as runner:
        labels = runner.run(test)["y"].argmax(axis=1)
        own = runner.run(data)["y"].argmax(axis=1)
    stored = calibrate(model, data)
    one = quantize(model, data, test_data=test, labels=labels, max_drop=0.05)
    two = quantize(model, calibration=stored, test_data=test, labels=labels, max_drop=0.05)
    assert one.model.SerializeToString() == two.model.SerializeToString()
    assert one.trade.metric == "drop in accuracy on the labels"
    assert one.trade.samples == 64
    assert 0.0 <= one.trade.reached <= 0.05
    # Labels of all the data: those of the held-out samples count.
    accuracy = quantize(model, data, labels=own, target_metric="accuracy=0.9").trade
    assert accuracy.reached >= 0.9
    agreement = quantize(model, data, target_metric="top1=0.9").trade
    assert (agreement.reached, agreement.samples) == (accuracy.reached, 40)
    assert quantize(model, data, max_drop=0.1).trade.metric == "drop in top-1 agreement with the float model"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"target_metric": "cosine"}, "target metric 'cosine' is not NAME=VALUE"),
        ({"target_metric": "beauty=1"}, "with a name of cosine, worst-cosine, sqnr, top1, accuracy, relative-error"),
        ({"target_metric": "cosine=high"}, "'high' is not a number"),
        ({"target_metric": "cosine=1.5"}, "cosine must be a number from 0 to 1"),
        ({"target_metric": "sqnr=nan"}, "sqnr must be a finite number of dB"),
        ({"target_metric": "cosine=0.9", "max_drop": 0.1}, "not both"),
        ({"max_drop": -0.1}, "the largest drop must be from 0 to 1, not -0.1"),
        ({"max_drop": float("nan")}, "the largest drop must be from 0 to 1"),
        ({"max_drop": 0.1, "bits": 8}, "leave bits out"),
        ({"max_drop": 0.1, "target": "qdq"}, "needs target 'portable'"),
        ({"target_metric": "accuracy=0.9"}, "needs labels"),
        ({"test_data": samples(4)}, "go with a target metric or a largest drop"),
        ({"labels": [1]}, "go with a target metric or a largest drop"),
        ({"max_drop": 0.1, "labels": [1, 2]}, "labels: 2 labels for 160 samples"),
        ({"max_drop": 0.1, "labels": [1, 2], "test_data": samples(4)}, "labels: 2 labels for 4 samples"),
        ({"max_drop": 0.1, "labels": [0.5]}, "labels: is of dtype float64"),
    ],
)
def test_options_that_are_refused(options, reason):
    with pytest.raises(QGeluError, match=reason) as caught:
        quantize(model_of_three(), samples(), **options)
    assert "\n" not in str(caught.value)


def test_too_little_to_hold_out():
    with pytest.raises(QGeluError, match="too few samples to hold some out: give more, or test data"):
        quantize(model_of_three(), samples(3), max_drop=0.1)


class Outputs:
    """Stands for outputs with the given metrics."""

    def __new__(cls, **metrics):
        known = dict.fromkeys(("sqnr_db", "cosine_mean", "cosine_worst", "cosine_worst_sample", "top1_agreement"), None)
        return OutputErrors(name="y", samples=4, max_abs_error=0.0, **{**known, "relative_error": None, **metrics})


def test_goals_take_the_worst_output():
    two = [Outputs(cosine_mean=0.9, relative_error=0.4), Outputs(cosine_mean=0.8, relative_error=0.5), Outputs()]
    assert read_goal("cosine=0.8", None).value(two) == 0.8
    assert read_goal("cosine=0.8", None).is_met(0.8)
    assert read_goal("relative-error=0.5", None).value(two) == 0.5
    assert not read_goal("relative-error=0.5", None).is_met(0.51)
    assert read_goal("sqnr=10", None).value([Outputs(sqnr_db=12.0), Outputs(relative_error=0.0)]) == 12.0
    assert read_goal("sqnr=10", None).value([Outputs(relative_error=0.0)]) == float("inf")
    assert read_goal("top1=0.9", None).value(two) is None
    drop = read_goal(None, 0.1)
    assert drop == AccuracyGoal(None, 0.1)
    assert drop.settled(two).name == "drop in mean cosine to the float model"
    assert drop.settled(two).value(two) == pytest.approx(0.2)
    # 595 of 600 against 592 of 600 is a drop of 0.005, whatever float64 makes of it.
    assert read_goal(None, 0.005).is_met(595 / 600 - 592 / 600)


@pytest.mark.parametrize(
    ("need", "alone", "expected"),
    [
        # All sites seem alike: bisection stops at the neediest, and the others go down one by one.
        ((7, 4, 6), (1.0, 1.0, 1.0), (7, 4, 6)),
        # Site 0 seems to cost nothing, and is sent down first: the best single width is taken instead.
        ((5, 5, 5), (0.0, 1.0, 1.0), (5, 5, 5)),
        # Sensitivities tell the truth.
        ((8, 2, 2), (1.0, 1e-3, 1e-3), (8, 2, 2)),
    ],
)
def test_sensitivities_that_mislead_cost_bits_but_never_the_goal(monkeypatch, need, alone, expected):
    model = model_of_three()
    names = [site.name for site in inspect(model)]

    def run(self, bits, samples=None):
        self.count += 1
        kept = all(bits.get(name, 8) >= least for name, least in zip(names, need, strict=True)) or samples is not None
        error = sum(factor / bits[name] for name, factor in zip(names, alone, strict=True) if name in bits)
        return (Outputs(cosine_mean=0.999 if kept else 0.5, relative_error=error),)

    monkeypatch.setattr("qgelu.bit_search._Measurer.outputs", run)
    with ReferenceStore() as store:
        bits, trade = search_bits(
            lambda bits: model, names, read_goal("cosine=0.9", None), store, widths=(8,), progress=lambda *step: None
        )
    assert trade.reached == 0.999
    assert tuple(bits.values()) == expected


@pytest.mark.parametrize("batch", ["batch", 8])
def test_held_out_samples(batch):
    specs = input_specs(model_of_three(batch=batch))
    data = {"x": np.arange(40 * 8, dtype=np.float32).reshape(40, 8)}
    kept, held = (np.concatenate([feed["x"] for feed in part]) for part in hold_out(open_data(data, specs), specs))
    np.testing.assert_array_equal(held, data["x"][held_out_samples(40, specs)])
    np.testing.assert_array_equal(np.sort(np.concatenate([kept, held])[:, 0]), data["x"][:, 0])
    expected = range(3, 40, 4) if batch == "batch" else range(24, 32)
    assert held_out_samples(40, specs).tolist() == list(expected)


def test_held_out_samples_do_not_depend_on_the_batches():
    specs = input_specs(model_of_three())
    data = samples(37)["x"]
    for cuts in ([37], [1] * 37, [5, 1, 2, 20, 9]):
        ends = np.cumsum(cuts)
        feeds = [{"x": data[end - size : end]} for size, end in zip(cuts, ends, strict=True)]
        _, held = hold_out(open_data(feeds, specs), specs)
        np.testing.assert_array_equal(np.concatenate([feed["x"] for feed in held]), data[3::4])


def test_shared_inputs_are_not_split_and_unequal_ones_are_refused():
    specs = input_specs(model_of_three())
    feeds = [{"x": np.zeros((8, 3), np.float32), "positions": np.zeros((1, 3)), "scalar": np.zeros(())}]
    source = open_data([], specs)
    source._start = lambda: iter(feeds)
    kept, held = (list(part) for part in hold_out(source, specs))
    assert [len(kept[0][name]) for name in ("x", "positions")] == [6, 1]
    assert [len(held[0][name]) for name in ("x", "positions")] == [2, 1]
    feeds[0]["positions"] = np.zeros((3, 3))
    with pytest.raises(CalibrationError, match=r"batch 1: inputs differ in their first axis \(3, 8\)"):
        list(hold_out(source, specs)[0])


def test_command(tmp_path, capfd):
    model, data, out = (str(tmp_path / name) for name in ("m.onnx", "d.npz", "q.onnx"))
    onnx.save(model_of_three((30.0, 1.0, 0.1)), model)
    np.savez(data, **samples())
    base = ["quantize", model, "--data", data, "-o", out]
    assert cli.run([*base, "--target-metric", "sqnr=22", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["bits"] is None
    assert found["trade"]["goal"] == "sqnr >= 22"
    assert found["trade"]["reached"] >= 22
    assert [site["bits"] for site in found["sites"]] == [site["bits"] for site in found["trade"]["sites"]]
    assert set(found["trade"]["sites"][0]["alone"]) <= {"2", "3", "4", "5", "6", "7", "8"}
    assert cli.run([*base, "--max-drop", "0.1"]) == 0
    text = capfd.readouterr().err
    assert "Goal: drop in top-1 agreement with the float model <= 0.1; measured on 40 samples" in text
    assert "this model" in text
    assert "alone at 8" in text
    written = (tmp_path / "q.onnx").read_bytes()
    assert cli.run([*base, "--target-metric", "sqnr=200"]) == 2
    assert "error: sqnr >= 200 is not reached: 8 bits at every site give" in capfd.readouterr().err
    assert (tmp_path / "q.onnx").read_bytes() == written
    assert cli.run([*base, "--max-drop", "0.1", "--bits", "8"]) == 2
    assert "--bits does not go with a goal" in capfd.readouterr().err
    assert cli.run([*base, "--json"]) == 0
    plain = json.loads(capfd.readouterr().out)
    assert (plain["bits"], plain["trade"]) == (8, None)
