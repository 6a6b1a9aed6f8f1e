"""Accuracy of integer models against float, beside ONNX Runtime's own quantization: the tables of docs/accuracy.md.

    python bench/export_minilm.py -o minilm
    python bench/magika_files.py -o magika
    python bench/accuracy.py --minilm minilm --magika magika --update-docs

The digits model ships in the package; the other two are left out if their folders are not given. Every number comes
from running the model on stock ONNX Runtime. Calibration and test data are apart everywhere.
"""

import argparse
import platform
import time
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


def candidates(model, data, settings, mask=None):
    """Yield (label, model, seconds): ours at every (scope, bits) and ONNX Runtime's two."""
    start = time.perf_counter()
    statistics = calibrate(model, data, mask=mask)
    seconds = time.perf_counter() - start
    for scope, bits in settings:
        start = time.perf_counter()
        result = quantize(model, calibration=statistics, scope=scope, bits=bits).model
        yield f"qgelu, {scope}, {bits} bits", result, seconds + time.perf_counter() - start
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
    settings = [("ffn", 8), ("ffn", 6), ("ffn", 4), ("activation", 8), ("activation", 6), ("activation", 4)]
    for label, quantized, _ in candidates(model, demo.load_calibration(), settings):
        actual = run(quantized, [feeds], output)
        cosine = cosines(expected, actual)
        right = (actual.argmax(1) == labels).mean()
        same = (actual.argmax(1) == expected.argmax(1)).mean()
        rows.append(
            [label, f"{100 * right:.2f} %", f"{100 * same:.2f} %", f"{cosine.mean():.5f}", f"{cosine.min():.4f}"]
        )
    return table(["digits", "accuracy", "same label as float", "cosine", "worst image"], rows)


def minilm(folder):
    """Sentence embeddings of all-MiniLM-L6-v2."""
    model = onnx.load(folder / "model.onnx")
    feeds = [dict(np.load(path)) for path in sorted((folder / "test").glob("*.npz"))]
    expected = run(model, feeds, "sentence_embedding")
    near = neighbours(expected)
    rows = []
    settings = [("ffn", 8), ("ffn", 7), ("ffn", 6), ("ffn", 5), ("activation", 8), ("activation", 6)]
    for label, quantized, seconds in candidates(model, str(folder / "calibration"), settings, mask="attention_mask"):
        actual = run(quantized, feeds, "sentence_embedding")
        cosine = cosines(expected, actual)
        recall = np.mean([len(a & b) / len(a) for a, b in zip(near, neighbours(actual), strict=True)])
        rows.append([label, f"{cosine.mean():.5f}", f"{cosine.min():.4f}", f"{recall:.3f}", f"{seconds:.0f} s"])
    return table(["all-MiniLM-L6-v2", "cosine", "worst sentence", "recall@10", "calibrate and quantize"], rows)


def magika(folder):
    """File types by magika standard_v3_3."""
    model = onnx.load(folder / "model.onnx")
    data = dict(np.load(folder / "test.npz"))
    feeds = [{name: array[i : i + 50] for name, array in data.items()} for i in range(0, 500, 50)]
    output = model.graph.output[0].name
    expected = run(model, feeds, output)
    rows = []
    settings = [("activation", bits) for bits in (8, 9, 10, 12)]
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
    parser.add_argument("--update-docs", action="store_true", help="write the tables into docs/accuracy.md")
    options = parser.parse_args()
    tables = {"digits": digits()}
    if options.minilm:
        tables["minilm"] = minilm(options.minilm)
    if options.magika:
        tables["magika"] = magika(options.magika)
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
