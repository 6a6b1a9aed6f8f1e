"""The report: measured once on the shipped model, then its content, formats and recommendations."""

import html.parser
import json
import re
from dataclasses import replace

import numpy as np
import onnx
import pytest

import qgelu
from qgelu.accuracy_metric import choose_metric, loss_of
from qgelu.demo import load_calibration, load_test, model_path
from qgelu.errors import QGeluError
from qgelu.output_comparison import OutputErrors
from qgelu.reporting import Report, report
from qgelu.reporting.content import Candidate
from qgelu.reporting.recommendation import recommend
from qgelu.reporting.rows import accuracy_table, all_tables, facts

SAMPLES = 100
MODEL = str(model_path())


@pytest.fixture(scope="module")
def found() -> Report:
    images, labels = load_test()
    calls = []
    result = report(
        MODEL,
        {name: array[:64] for name, array in load_calibration().items()},
        test_data={name: array[:SAMPLES] for name, array in images.items()},
        labels=labels[:SAMPLES],
        bits=(2, 4, 6, 8, 10),
        baselines=("ort-static", "ort-dynamic"),
        progress=lambda *call: calls.append(call),
        threads=2,
    )
    stages = list(dict.fromkeys(stage for stage, _, _ in calls))
    assert stages == ["calibrate", "run float model", "measure candidates"]
    assert calls[-1] == ("measure candidates", 12, 12)
    return result


def test_candidates(found):
    labels = [candidate.label for candidate in found.candidates]
    ffn = [f"ffn, {bits} bits" for bits in (2, 4, 6, 8)]
    activation = [f"activation, {bits} bits" for bits in (2, 4, 6, 8, 10)]
    assert labels == [*ffn, "ffn, 10 bits, simulated", *activation, "ort-static", "ort-dynamic"]
    for candidate in found.candidates:
        (output,) = candidate.outputs
        assert candidate.failures == ()
        assert output.samples == SAMPLES
        assert candidate.loss == pytest.approx(output.float_accuracy - output.accuracy)
    for scope in ("ffn", "activation"):
        sqnr = [candidate.outputs[0].sqnr_db for candidate in found.of_scope(scope)]
        assert sqnr == sorted(sqnr)
        by_site = np.array([[site.sqnr_db for site in candidate.sites] for candidate in found.of_scope(scope)])
        assert (np.diff(by_site, axis=0) > 3.0).all()
    assert "3 FFNs in integers" in found.of_scope("ffn")[0].executed
    assert all("float" in candidate.executed for candidate in found.baselines)


def test_a_candidate_is_the_quantized_model_that_the_package_makes(found):
    images, _ = load_test()
    calibration = {name: array[:64] for name, array in load_calibration().items()}
    result = qgelu.quantize(MODEL, calibration, bits=4)
    verification = qgelu.verify(MODEL, result, {name: array[:SAMPLES] for name, array in images.items()})
    candidate = next(candidate for candidate in found.candidates if candidate.label == "ffn, 4 bits")
    assert candidate.bytes == result.model.ByteSize()
    assert verification.outputs[0].cosine_mean == pytest.approx(candidate.outputs[0].cosine_mean, abs=1e-9)
    assert [site.dip.max_error_lsb for site in verification.sites] == [site.dip_error_lsb for site in candidate.sites]


def test_measured_errors_stay_within_what_is_proved(found):
    for candidate in found.candidates:
        for site in candidate.sites:
            assert 0.0 <= site.dip_error_lsb <= site.certificate_lsb < 0.76


def test_curves(found):
    assert [(curve.scope, curve.bits) for curve in found.curves] == [
        (scope, bits) for scope in ("ffn", "activation") for bits in (4, 6, 8)
    ]
    for curve in found.curves:
        assert curve.activation == "gelu"
        assert len(curve.x) == len(curve.exact) == len(curve.answer)
        assert min(curve.exact) == pytest.approx(-0.16997, abs=1e-4)
        assert curve.minimum == pytest.approx(min(curve.answer), abs=1e-6)
        assert curve.minimum_from < -0.7518 < curve.minimum_to
        inside = (np.array(curve.x) >= -1.5) & (np.array(curve.x) <= -0.25)
        error = np.abs(np.subtract(curve.answer, curve.exact))[inside].max()
        assert curve.max_error == pytest.approx(error, abs=2e-6)
        if curve.scope == "ffn":  # accumulators are fine: only the output is rounded
            assert curve.max_error <= 0.76 * curve.lsb
        assert curve.codes_below_zero * curve.lsb >= 0.17 - 0.55 * curve.lsb
    errors = [curve.max_error for curve in found.curves]
    assert errors[:3] == sorted(errors[:3], reverse=True)
    assert errors[3:] == sorted(errors[3:], reverse=True)


def test_json(found):
    content = found.to_dict()
    text = json.dumps(content, allow_nan=False)
    assert (content["format"], content["version"]) == ("qgelu.report", 1)
    assert set(content) == {
        *("format", "version", "model", "data", "metric", "tolerance", "candidates", "curves", "recommendations"),
        *("notes", "versions"),
    }
    assert content["data"]["same"] is False
    assert json.loads(text)["model"]["name"] == "digits_vit.onnx"


def test_markdown_has_every_table(found):
    text = found.to_markdown()
    for table in all_tables(found):
        assert f"## {table.title}" in text
    assert re.search(r"\| ffn, 8 bits \| yes \| \d+\.\d\d % \|", text)
    assert "quantize\\_static" in text


class Page(html.parser.HTMLParser):
    """Checks that elements are closed, and gathers what a page holds."""

    VOID = ("meta", "link")

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.links, self.labels = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        values = dict(attributes)
        self.links += [values[key] for key in ("src", "href", "xlink:href") if key in values]
        if values.get("role") == "img":
            self.labels.append(values["aria-label"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()


def test_html_is_one_file_that_needs_nothing_else(found):
    text = found.to_html()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert "script" not in page.seen
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert "url(http" not in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert page.seen.count("svg") == 4
    assert len(page.labels) == 4
    assert "8 bits: minimum -0.1" in page.labels[2]
    assert "#123456" not in text
    assert text == found.to_html()


def test_html_escapes_names(found):
    model = replace(found.model, name="<b>&.onnx")
    text = replace(found, model=model).to_html()
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;.onnx" in text


def test_saved_by_suffix(found, tmp_path):
    for suffix, start in ((".html", "<!DOCTYPE"), (".md", "# "), (".json", "{")):
        path = tmp_path / f"report{suffix}"
        found.save(path)
        assert path.read_text().startswith(start)
    with pytest.raises(QGeluError, match=r"report\.txt: a report is a \.html, \.md or \.json file"):
        found.save(tmp_path / "report.txt")
    with pytest.raises(QGeluError, match="does not exist"):
        found.save(tmp_path / "none" / "report.md")
    assert len(list(tmp_path.iterdir())) == 3


def test_tables_show_float_first(found):
    table = accuracy_table(found)
    assert table.rows[0][0] == "float"
    assert all(len(row) == len(table.columns) for table in all_tables(found) for row in table.rows)
    assert dict(facts(found))["Sites"] == "3 (gelu), 3 of them whole FFNs"


def test_one_data_set_for_both_is_said(tmp_path):
    data = {name: array[:16] for name, array in load_calibration().items()}
    result = report(MODEL, data, bits=[8])
    assert result.data.same is True
    assert "same data" in " ".join(result.notes)
    assert result.metric == "top1_agreement"
    assert "(the same data)" in dict(facts(result))["Test"]
    calibrated = report(MODEL, data, calibration=qgelu.calibrate(MODEL, data), bits=[8], metric="cosine_mean")
    assert calibrated.data.same is False
    assert calibrated.metric == "cosine_mean"
    assert calibrated.candidates[0].outputs == result.candidates[0].outputs


def test_model_without_ffn(tmp_path):
    text = """
    <ir_version: 8, opset_import: ["" : 20]>
    lone (float[N, 8] x) => (float[N, 8] y) { y = Gelu <approximate = "tanh"> (x) }"""
    model = onnx.parser.parse_model(text)
    data = {"x": np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)}
    result = report(model, data, bits=[4, 8], baselines=["ort-dynamic"])
    assert [candidate.label for candidate in result.candidates] == ["activation, 4 bits", "activation, 8 bits"]
    assert {curve.activation for curve in result.curves} == {"gelu_tanh"}
    assert any("ort-dynamic was left out" in note for note in result.notes)
    assert any("only scope activation applies" in note for note in result.notes)
    assert result.to_html()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bits": []}, "bits must be from 2 to 16"),
        ({"bits": [1, 8]}, "bits must be from 2 to 16"),
        ({"baselines": ["tensorrt"]}, "baseline 'tensorrt' is not known"),
        ({"tolerance": 2.0}, "tolerance must be from 0 to 1"),
        ({"labels": np.zeros((4, 2), int)}, "one class number for each sample"),
        ({"labels": np.zeros(4)}, "class numbers, which are integers"),
        ({"labels": np.zeros(4, int)}, "4 labels for 8 samples"),
        ({"mask": "nothing"}, "'nothing' is not an input of the model"),
        ({"metric": "accuracy"}, "metric 'accuracy' needs labels"),
        ({"metric": "beauty"}, "metric 'beauty' is not known"),
    ],
)
def test_options_that_cannot_be_used(options, reason):
    data = {name: array[:8] for name, array in load_calibration().items()}
    with pytest.raises(ValueError, match=re.escape(reason)):
        report(MODEL, data, **options)


def output(**values) -> OutputErrors:
    fields = dict.fromkeys(OutputErrors.__dataclass_fields__)
    return OutputErrors(**{**fields, "name": "y", "samples": 10, "max_abs_error": 0.0, **values})


def candidate(bits: int, loss: float | None, failures: tuple[str, ...] = ()) -> Candidate:
    return Candidate("", "qgelu", "ffn", bits, "", 0, (), failures, loss, ())


def test_metric_and_loss():
    classes, vectors = output(top1_agreement=0.9, cosine_mean=0.99), output(cosine_mean=0.95)
    assert choose_metric([vectors, classes]) == "top1_agreement"
    assert choose_metric([vectors, output(accuracy=0.5)]) == "accuracy"
    assert choose_metric([vectors]) == "cosine_mean"
    assert choose_metric([output(relative_error=0.1)]) == "relative_error"
    assert loss_of([classes, vectors], "top1_agreement") == pytest.approx(0.1)
    assert loss_of([classes, vectors], "cosine_mean") == pytest.approx(0.05)
    assert loss_of([output(accuracy=0.95, float_accuracy=0.97)], "accuracy") == pytest.approx(0.02)
    assert loss_of([vectors], "accuracy") is None
    with pytest.raises(QGeluError, match="'top1_agreement' is not among what the outputs have: cosine_mean"):
        choose_metric([vectors], "top1_agreement")


@pytest.mark.parametrize(
    ("losses", "bits", "words"),
    [
        ({8: 0.0, 6: 0.004, 4: 0.2}, 6, "6 bits in scope ffn: the loss in top-1 agreement"),
        ({8: 0.0, 6: 0.02, 4: 0.0}, 8, "at 6 bits it is 2.00 percentage points"),  # not 4, which was luck
        ({8: 0.0, 6: 0.0}, 6, "fewer bits were not measured"),
        ({8: 0.5, 6: 0.9}, None, "no measured width of scope ffn keeps the tolerance"),
        ({8: 0.0, 6: None}, 8, "at 6 bits it is not measured"),
    ],
)
def test_recommendation(losses, bits, words):
    candidates = [candidate(width, loss) for width, loss in losses.items()]
    advice = recommend(candidates, "ffn", "top1_agreement", 0.01)
    assert advice.bits == bits
    assert words in advice.reason


def test_failed_candidates_are_not_recommended():
    advice = recommend([candidate(8, 0.0), candidate(6, 0.0, ("output 'y' is missing",))], "ffn", "cosine_mean", 0.01)
    assert advice.bits == 8
