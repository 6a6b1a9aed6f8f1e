"""Measure two choices of the calibration, for docs/calibration.md: the weight of clipped values, and the rows kept.

    python bench/export_minilm.py -o minilm
    python bench/magika_files.py -o magika
    python bench/calibration_choices.py --minilm minilm --magika magika --update-docs

Both are constants of the package; here they are replaced for a moment. Calibration and test data are apart, and every
number comes from running the model on stock ONNX Runtime.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from accuracy import cosines, run
from marked import replace, table

from calibration import activation_range, row_sample
from qgelu.pipeline import calibrate, quantize

WEIGHTS = {"1": lambda bits: 1.0, "2^(bits - 5)": activation_range.clipping_weight, "2^(bits - 2)": lambda bits: 64.0}
ROWS = (256, 1024, 2730)


def input_range(site):
    """Return the range that a site's input codes cover."""
    low, high = site.plan.input.dequantize([site.plan.input.qmin, site.plan.input.qmax])
    return f"{low:.1f} to {high:.0f}"


def with_weights(model, statistics):
    """Yield (weight, quantized model): scope activation, 8 bits."""
    kept = activation_range.clipping_weight
    for name, weight in WEIGHTS.items():
        activation_range.clipping_weight = weight
        yield name, quantize(model, calibration=statistics, scope="activation", bits=8)
    activation_range.clipping_weight = kept


def magika(folder):
    """Labels that stay and the second activation's range, by weight."""
    model = onnx.load(folder / "model.onnx")
    data = dict(np.load(folder / "test.npz"))
    feeds = [{name: array[i : i + 50] for name, array in data.items()} for i in range(0, 500, 50)]
    output = model.graph.output[0].name
    expected = run(model, feeds, output).argmax(1)
    statistics = calibrate(model, str(folder / "calibration.npz"))
    rows = []
    for name, result in with_weights(model, statistics):
        same = (run(result.model, feeds, output).argmax(1) == expected).mean()
        rows.append([name, input_range(result.sites[1]), f"{100 * same:.1f} %"])
    seen = max(statistics.tensors[site.input].maximum for site in result.sites[1:])
    return table(["clipped values count", f"range of the second input (values reach {seen:.0f})", "same label"], rows)


class Sentences:
    """MiniLM's test sentences and their float embeddings."""

    def __init__(self, folder):
        self.model = onnx.load(folder / "model.onnx")
        self.data = str(folder / "calibration")
        self.feeds = [dict(np.load(path)) for path in sorted((folder / "test").glob("*.npz"))]
        self.expected = run(self.model, self.feeds, "sentence_embedding")

    def calibrate(self):
        return calibrate(self.model, self.data, mask="attention_mask")

    def cosines(self, result):
        found = cosines(self.expected, run(result.model, self.feeds, "sentence_embedding"))
        return [f"{found.mean():.5f}", f"{found.min():.4f}"]


def weights_on_sentences(sentences):
    """Cosine of sentence embeddings, by weight."""
    quantized = with_weights(sentences.model, sentences.calibrate())
    rows = [[name, *sentences.cosines(result)] for name, result in quantized]
    return table(["clipped values count", "cosine", "worst sentence"], rows)


def rows_on_sentences(sentences):
    """Cosine of sentence embeddings with FFNs of 6 bits, by rows kept."""
    kept, found = row_sample.row_limit, []
    for count in ROWS:
        row_sample.row_limit = lambda channels, count=count: count
        statistics = sentences.calibrate()
        result = quantize(sentences.model, calibration=statistics, bits=6)
        found.append([str(count), *sentences.cosines(result)])
    row_sample.row_limit = kept
    return table(["rows", "cosine", "worst sentence"], found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minilm", type=Path, metavar="DIR", help="what bench/export_minilm.py wrote")
    parser.add_argument("--magika", type=Path, metavar="DIR", help="what bench/magika_files.py wrote")
    parser.add_argument("--update-docs", action="store_true", help="write the tables into docs/calibration.md")
    options = parser.parse_args()
    tables = {}
    if options.magika:
        tables["clipping"] = magika(options.magika)
    if options.minilm:
        sentences = Sentences(options.minilm)
        tables["clipping_sentences"] = weights_on_sentences(sentences)
        tables["rows"] = rows_on_sentences(sentences)
    for name, lines in tables.items():
        print("\n".join(lines), end="\n\n")
        if options.update_docs:
            replace("docs/calibration.md", name, lines)


if __name__ == "__main__":
    main()
