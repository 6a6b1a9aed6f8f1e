"""The warning about x86 CPUs without VNNI: when it is due, and that it reaches whoever quantizes or verifies."""

import itertools
import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qgelu import cli, pair_saturation
from qgelu.demo import load_calibration, load_test, model_path
from qgelu.errors import QGeluError
from qgelu.kernels.cpu import host, lacks_vnni
from qgelu.pair_saturation import pair_saturation_notes, saturating_blocks
from qgelu.pipeline import calibrate, ffn_bits, quantize
from qgelu.reporting import report
from qgelu.verification import verify

OLD_X86 = ("x86_64", frozenset({"avx2", "avx512f", "avx512bw", "avx512vl"}))


@pytest.fixture(scope="module")
def statistics():
    return calibrate(str(model_path()), {name: array[:64] for name, array in load_calibration().items()})


@pytest.fixture
def old_cpu(monkeypatch):
    monkeypatch.setattr(pair_saturation, "host", lambda: OLD_X86)


@pytest.mark.parametrize(
    ("machine", "features", "lacks"),
    [
        ("x86_64", {"avx2"}, True),
        ("AMD64", {"avx512f", "avx512bw"}, True),
        ("x86_64", {"avx2", "avxvnni"}, False),
        ("AMD64", {"avx512f", "avx512vnni"}, False),
        ("x86_64", set(), False),  # nothing is known
        ("aarch64", {"neon", "dotprod"}, False),
        ("arm64", {"neon"}, False),
        ("riscv64", {"v"}, False),
    ],
)
def test_which_cpus_lack_vnni(machine, features, lacks):
    assert lacks_vnni(machine, frozenset(features)) is lacks


def test_the_host_is_read():
    machine, features = host()
    assert machine
    assert all(isinstance(name, str) for name in features)


def saturates(bits, limit):
    """Whether int16 addition of any two products saturates, by trying the extremes."""
    products = [code * weight for code in (0, (1 << bits) - 1) for weight in (-limit, 0, limit)]
    sums = [sum(pair) for pair in itertools.product(products, repeat=2)]
    return max(sums) > 32767 or min(sums) < -32768


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("limit", [7, 63, 64, 65, 127])
def test_the_bound_is_that_of_int16(bits, limit):
    weight = numpy_helper.from_array(np.array([[limit, 1], [-limit, 0]], np.int8), "qgelu/one/first_weight")
    other = numpy_helper.from_array(np.array([[127, 127]], np.int8), "theirs")
    model = helper.make_model(helper.make_graph([], "g", [], [], [weight, other]))
    assert saturating_blocks(model, {"one": bits}) == (("one",) if saturates(bits, limit) else ())


def test_int4_weights_never_saturate():
    weight = helper.make_tensor("qgelu/one/first_weight", TensorProto.INT4, [2, 2], [-8, 7, 1, 0])
    model = helper.make_model(helper.make_graph([], "g", [], [], [weight]))
    assert saturating_blocks(model, {"one": 8}) == ()


@pytest.mark.parametrize("target", ["portable", "qdq"])
def test_quantize_and_verify_say_so(statistics, old_cpu, target):
    result = quantize(str(model_path()), calibration=statistics, target=target)
    (note,) = result.notes
    assert "\n" not in note
    assert note.startswith("this CPU has no VNNI: ")
    assert "can saturate in 3 FFNs; 7-bit weights (--weight-bits 7) or activations of 7 bits (--bits 7) cannot" in note
    test = {name: array[:20] for name, array in load_test()[0].items()}
    assert verify(str(model_path()), result, test).notes == (note,)
    assert verify(str(model_path()), result, test, target_cpu="vnni").notes == ()


def test_what_cannot_saturate_is_not_mentioned(statistics, old_cpu):
    for options in ({"bits": 7}, {"scope": "activation"}, {"target_cpu": "vnni"}):
        assert quantize(str(model_path()), calibration=statistics, **options).notes == ()
    result = quantize(str(model_path()), calibration=statistics, sites=["node_gelu"], target_cpu="no-vnni")
    assert result.notes[0].startswith("the target CPU has no VNNI: ")
    assert "saturate in 1 FFN;" in result.notes[0]
    assert pair_saturation_notes(result.model, ffn_bits(result.sites), "vnni") == ()


def test_report_says_at_which_widths(statistics):
    test = {name: array[:20] for name, array in load_test()[0].items()}
    found = report(str(model_path()), None, calibration=statistics, test_data=test, bits=[7, 8], target_cpu="no-vnni")
    (note,) = [note for note in found.notes if "VNNI" in note]
    assert note.startswith("ffn, 8 bits: the target CPU has no VNNI")
    assert note in found.to_markdown().replace("\\", "")
    with pytest.raises(QGeluError, match="target CPU 'avx2' is not known: use one of host, vnni, no-vnni"):
        report(str(model_path()), None, calibration=statistics, test_data=test, target_cpu="avx2")


def test_commands(statistics, tmp_path, capfd):
    calibration, data, out = (str(tmp_path / name) for name in ("c.json", "d.npz", "q.onnx"))
    statistics.save(calibration)
    np.savez(data, **{name: array[:20] for name, array in load_test()[0].items()})
    quantized = ["quantize", str(model_path()), "--calibration", calibration, "-o", out, "--target-cpu", "no-vnni"]
    assert cli.run(quantized) == 0
    lines = capfd.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("note: the target CPU has no VNNI: ")]) == 1
    assert cli.run([*quantized, "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["notes"]) == 1
    verified = ["verify", str(model_path()), out, "--data", data, "--target-cpu"]
    assert cli.run([*verified, "no-vnni"]) == 0
    assert "note: the target CPU has no VNNI: " in capfd.readouterr().err
    assert cli.run([*verified, "vnni", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["notes"] == []
    assert onnx.load(out).metadata_props
