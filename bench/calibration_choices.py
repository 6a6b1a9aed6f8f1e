"""Measure choices of the calibration, for docs/calibration.md: the range before an activation, the weight of clipped
values, and the rows kept.

    python bench/export_minilm.py -o minilm
    python bench/magika_files.py -o magika
    python bench/calibration_choices.py --minilm minilm --magika magika --update-docs

The latter two are constants of the package; here they are replaced for a moment. Calibration and test data are apart,
and every number comes from running the model on stock ONNX Runtime.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from accuracy import Sentences, run
from marked import replace, table

from calibration import activation_range, pick_activation_input_range, qparams_from_range, row_sample
from qgelu.activations import evaluate
from qgelu.graph.sites import find_sites
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


def recorded(model, feeds, mask=None):
    """Return the values before each activation of a float model, float32 arrays by site, padding left out."""
    sites = find_sites(model).sites
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    known = {output.name for output in model.graph.output}
    tapped.graph.output.extend(onnx.ValueInfoProto(name=site.input) for site in sites if site.input not in known)
    session = onnxruntime.InferenceSession(tapped.SerializeToString())
    values = {site.name: [] for site in sites}
    for feed in feeds:
        found = session.run([site.input for site in sites], feed)
        for site, tensor in zip(sites, found, strict=True):
            values[site.name].append(tensor[feed[mask] != 0] if mask else tensor)
    return sites, {name: np.concatenate([part.ravel() for part in parts]) for name, parts in values.items()}


RANGES = {
    "smallest to largest, symmetric": lambda low, high, *_: (-max(-low, high), max(-low, high)),
    "smallest to largest": lambda low, high, *_: (low, high),
    "the same, cut where the output is 0 (`minmax`)": lambda low, high, statistics, site, bits: (
        pick_activation_input_range(statistics, site.activation, site.alpha, bits, "minmax")
    ),
    "both ends searched (`output`)": lambda low, high, statistics, site, bits: pick_activation_input_range(
        statistics, site.activation, site.alpha, bits, "output"
    ),
}


def preactivations(title, statistics, sites, values):
    """Return rows: dB of f(x) over the error that codes for x leave, mean over the sites, by range and bits."""
    rows = []
    for name, choose in RANGES.items():
        row = [title, name]
        for bits in (8, 6, 4):
            decibels = []
            for site in sites:
                tensor = statistics.tensors[site.input]
                low, high = choose(tensor.minimum, tensor.maximum, tensor, site, bits)
                params = qparams_from_range(low, high, bits, signed=False)
                x = values[site.name].astype(float)
                exact = evaluate(x, site.activation, site.alpha)
                error = evaluate(params.dequantize(params.quantize(x)), site.activation, site.alpha) - exact
                decibels.append(10 * np.log10((exact**2).sum() / (error**2).sum()))
            row.append(f"{np.mean(decibels):.1f}")
        rows.append(row)
    return rows


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


def weights_on_sentences(sentences, statistics):
    """Cosine of sentence embeddings, by weight."""
    quantized = with_weights(sentences.model, statistics)
    rows = [[name, *sentences.quality(result.model)[:2]] for name, result in quantized]
    return table(["clipped values count", "cosine", "worst sentence"], rows)


def rows_on_sentences(sentences):
    """Cosine of sentence embeddings with FFNs of 6 bits, by rows kept."""
    kept, found = row_sample.row_limit, []
    for count in ROWS:
        row_sample.row_limit = lambda channels, count=count: count
        statistics = calibrate(sentences.model, sentences.data, mask="attention_mask")
        result = quantize(sentences.model, calibration=statistics, bits=6)
        found.append([str(count), *sentences.quality(result.model)[:2]])
    row_sample.row_limit = kept
    return table(["rows", "cosine", "worst sentence"], found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minilm", type=Path, metavar="DIR", help="what bench/export_minilm.py wrote")
    parser.add_argument("--magika", type=Path, metavar="DIR", help="what bench/magika_files.py wrote")
    parser.add_argument("--update-docs", action="store_true", help="write the tables into docs/calibration.md")
    options = parser.parse_args()
    tables, before = {}, []
    if options.minilm:
        sentences = Sentences(options.minilm)
        statistics = calibrate(sentences.model, sentences.data, mask="attention_mask")
        sites, values = recorded(sentences.model, sentences.feeds, "attention_mask")
        before += preactivations("all-MiniLM-L6-v2", statistics, sites, values)
        tables["clipping_sentences"] = weights_on_sentences(sentences, statistics)
        tables["rows"] = rows_on_sentences(sentences)
    if options.magika:
        model = onnx.load(options.magika / "model.onnx")
        statistics = calibrate(model, str(options.magika / "calibration.npz"))
        sites, values = recorded(model, [dict(np.load(options.magika / "test.npz"))])
        before += preactivations("magika", statistics, sites, values)
        tables["clipping"] = magika(options.magika)
    if before:
        tables["preactivations"] = table(["model", "range of the codes", "8 bits", "6 bits", "4 bits"], before)
    for name, lines in tables.items():
        print("\n".join(lines), end="\n\n")
        if options.update_docs:
            replace("docs/calibration.md", name, lines)


if __name__ == "__main__":
    main()
