"""Accuracy of integer models against float, beside ONNX Runtime's own quantization: the tables of docs/accuracy.md.

    python bench/export_minilm.py -o minilm
    python bench/magika_files.py -o magika
    python bench/make_outlier_models.py -o outliers
    python bench/accuracy.py --minilm minilm --magika magika --outliers outliers --update-docs

The digits model ships in the package; the others are left out if their folders are not given. Every number comes from
running the model on stock ONNX Runtime. Calibration and test data are apart everywhere.
"""

import argparse
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from marked import replace, table

import calibration
from qgelu import demo
from qgelu.graph.sites import find_sites
from qgelu.pipeline import calibrate, quantize
from qgelu.reporting.baselines import BASELINES, run_baseline


def run(model, feeds, output):
    """Return one output of a model over all feeds."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.concatenate([session.run([output], feed)[0] for feed in feeds])


@dataclass(frozen=True)
class Setting:
    """How to quantize: the options of qgelu.quantize that the tables vary."""

    scope: str
    bits: int
    weight_bits: int = 8
    target: str = "portable"
    method: str = "output"

    @property
    def label(self):
        """What the tables call it."""
        more = [
            f", {self.weight_bits}-bit weights" if self.weight_bits != 8 else "",
            f", target {self.target}" if self.target != "portable" else "",
            f", {self.method}" if self.method != "output" else "",
        ]
        return f"qgelu, {self.scope}, {self.bits} bits{''.join(more)}"


def candidates(model, data, settings, mask=None):
    """Yield (label, model, seconds): ours at every setting and ONNX Runtime's two."""
    start = time.perf_counter()
    statistics = calibrate(model, data, mask=mask)
    seconds = time.perf_counter() - start
    for setting in settings:
        start = time.perf_counter()
        result = quantize(model, calibration=statistics, **vars(setting)).model
        yield setting.label, result, seconds + time.perf_counter() - start
    source = calibration.open_data(data, calibration.input_specs(model))
    for name in BASELINES:
        start = time.perf_counter()
        result = run_baseline(name, model, find_sites(model).sites, source)
        if result is not None:
            yield f"ONNX Runtime, {name.removeprefix('ort-')}", result, time.perf_counter() - start


def cosines(expected, actual):
    products = (expected * actual).sum(1)
    return products / np.linalg.norm(expected, axis=1) / np.linalg.norm(actual, axis=1)


def neighbours(embeddings, count=10):
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    return [set(row) for row in np.argsort(-similarity, axis=1)[:, :count]]


def digits():
    """Test accuracy of the shipped digits model."""
    model = onnx.load(demo.model_path())
    feeds, labels = demo.load_test()
    output = model.graph.output[0].name
    expected = run(model, [feeds], output)
    rows = [["float", f"{100 * (expected.argmax(1) == labels).mean():.2f} %", "-", "-", "-"]]
    settings = [Setting(scope, bits) for scope in ("ffn", "activation") for bits in (8, 6, 4)]
    for label, quantized, _ in candidates(model, demo.load_calibration(), settings):
        actual = run(quantized, [feeds], output)
        cosine = cosines(expected, actual)
        right = (actual.argmax(1) == labels).mean()
        same = (actual.argmax(1) == expected.argmax(1)).mean()
        rows.append(
            [label, f"{100 * right:.2f} %", f"{100 * same:.2f} %", f"{cosine.mean():.5f}", f"{cosine.min():.4f}"]
        )
    return table(["digits", "accuracy", "same label as float", "cosine", "worst image"], rows)


class Sentences:
    """all-MiniLM-L6-v2, its sentences, and what the float model makes of those for the test."""

    def __init__(self, folder):
        self.model = onnx.load(folder / "model.onnx")
        self.data = str(folder / "calibration")
        self.feeds = [dict(np.load(path)) for path in sorted((folder / "test").glob("*.npz"))]
        self.expected = run(self.model, self.feeds, "sentence_embedding")
        self.near = neighbours(self.expected)

    def quality(self, model):
        """Return mean and worst cosine, and recall@10, as text."""
        actual = run(model, self.feeds, "sentence_embedding")
        cosine = cosines(self.expected, actual)
        recall = np.mean([len(a & b) / len(a) for a, b in zip(self.near, neighbours(actual), strict=True)])
        return [f"{cosine.mean():.5f}", f"{cosine.min():.4f}", f"{recall:.3f}"]


SENTENCE_SETTINGS = [
    *(Setting("ffn", bits) for bits in (8, 7, 6, 5, 4)),
    Setting("ffn", 8, weight_bits=7),
    Setting("ffn", 8, weight_bits=4),
    Setting("ffn", 8, target="qdq"),
    Setting("activation", 8),
    Setting("activation", 6),
]
QUALITY = ["cosine", "worst sentence", "recall@10"]
METHODS = ("output", "minmax", "percentile", "mse", "entropy")


def minilm(sentences):
    """Sentence embeddings of all-MiniLM-L6-v2."""
    rows = []
    for label, quantized, seconds in candidates(sentences.model, sentences.data, SENTENCE_SETTINGS, "attention_mask"):
        rows.append([label, *sentences.quality(quantized), f"{seconds:.0f} s"])
        print(rows[-1], flush=True)
    return table(["all-MiniLM-L6-v2", *QUALITY, "calibrate and quantize"], rows)


def methods(sentences):
    """The same by each way of picking the ranges of an FFN."""
    statistics = calibrate(sentences.model, sentences.data, mask="attention_mask")
    rows = []
    for bits in (8, 6):
        for method in METHODS:
            quantized = quantize(sentences.model, calibration=statistics, bits=bits, method=method).model
            rows.append([f"{bits} bits, {method}", *sentences.quality(quantized)])
            print(rows[-1], flush=True)
    return table(["FFNs", *QUALITY], rows)


def few_sentences(sentences, counts=(8, 32, 64, 128, 256)):
    """The same by how many sentences calibrate."""
    files = [dict(np.load(path)) for path in sorted(Path(sentences.data).glob("*.npz"))]
    batches = [
        {name: array[i : i + 8] for name, array in file.items()}
        for file in files
        for i in range(0, len(file["input_ids"]), 8)
    ]
    rows = []
    for count in counts:
        chosen = batches[: count // 8]
        tokens = sum(int(batch["attention_mask"].sum()) for batch in chosen)
        statistics = calibrate(sentences.model, chosen, mask="attention_mask")
        for bits in (8, 6):
            quantized = quantize(sentences.model, calibration=statistics, bits=bits).model
            rows.append([f"{count} ({tokens:,} tokens)", str(bits), *sentences.quality(quantized)])
            print(rows[-1], flush=True)
    return table(["sentences that calibrate", "bits", *QUALITY], rows)


OUTLIER_MODELS = {"gpt2": "GPT-2, tanh GELU", "vit": "ViT, erf GELU", "clip": "CLIP, QuickGELU"}


def outliers(folder):
    """Hidden states of the models with outlier channels."""
    rows = []
    for name, title in OUTLIER_MODELS.items():
        model = onnx.load(folder / f"{name}.onnx")
        feeds = [dict(np.load(folder / f"{name}_test.npz"))]
        output = model.graph.output[0].name
        expected = run(model, feeds, output)
        expected = expected.reshape(-1, expected.shape[-1])
        settings = [Setting("ffn", bits) for bits in (8, 6, 4)] + [Setting("ffn", 8, weight_bits=4)]
        for label, quantized, _ in candidates(model, str(folder / f"{name}_calibration.npz"), settings):
            actual = run(quantized, feeds, output).reshape(expected.shape)
            cosine = cosines(expected, actual)
            error = np.linalg.norm(expected - actual) / np.linalg.norm(expected)
            rows.append([title, label, f"{cosine.mean():.5f}", f"{cosine.min():.4f}", f"{error:.4f}"])
            print(rows[-1], flush=True)
    return table(["model", "", "cosine", "worst position", "relative error"], rows)


def magika(folder):
    """File types by magika standard_v3_3."""
    model = onnx.load(folder / "model.onnx")
    data = dict(np.load(folder / "test.npz"))
    feeds = [{name: array[i : i + 50] for name, array in data.items()} for i in range(0, 500, 50)]
    output = model.graph.output[0].name
    expected = run(model, feeds, output)
    rows = []
    settings = [Setting("activation", bits) for bits in (8, 9, 10, 12)]
    for label, quantized, _ in candidates(model, str(folder / "calibration.npz"), settings):
        actual = run(quantized, feeds, output)
        same = (expected.argmax(1) == actual.argmax(1)).mean()
        error = np.abs(expected - actual)
        rows.append([label, f"{100 * same:.1f} %", f"{error.max():.3f}", f"{error.mean():.1e}"])
    header = ["magika standard_v3_3", "same label as float", "largest probability error", "mean"]
    return table(header, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minilm", type=Path, metavar="DIR", help="what bench/export_minilm.py wrote")
    parser.add_argument("--magika", type=Path, metavar="DIR", help="what bench/magika_files.py wrote")
    parser.add_argument("--outliers", type=Path, metavar="DIR", help="what bench/make_outlier_models.py wrote")
    parser.add_argument("--update-docs", action="store_true", help="write the tables into docs/accuracy.md")
    options = parser.parse_args()
    tables = {"digits": digits()}
    if options.minilm:
        sentences = Sentences(options.minilm)
        tables |= {part.__name__: part(sentences) for part in (minilm, methods, few_sentences)}
    if options.magika:
        tables["magika"] = magika(options.magika)
    if options.outliers:
        tables["outliers"] = outliers(options.outliers)
    versions = f"ONNX Runtime {onnxruntime.__version__}, NumPy {np.__version__}, Python {platform.python_version()}"
    tables["versions"] = [f"Measured with {versions}, {platform.machine()}."]
    for name, lines in tables.items():
        print("\n".join(lines), end="\n\n")
        if options.update_docs:
            replace("docs/accuracy.md", name, lines)
            if name == "minilm":
                replace("README.md", name, lines)


if __name__ == "__main__":
    main()
