"""Copy magika's model and write calibration and test data for it from files on this machine.

    pip install "magika>=1.0,<1.1" onnxruntime
    python bench/magika_files.py -o DIR

The PyPI package ``magika`` (1.0.x) ships ``standard_v3_3``, the model with which it tells file types apart:
of each file it reads the first and the last 4,096 bytes, strips white space, and gives the model the first
and the last 1,024 bytes as numbers, 256 for padding. The package's own code does that here. DIR gets

- ``model.onnx``: input ``bytes`` int32 [batch, 2048], output ``target_label`` float32 [batch, labels],
  which are probabilities;
- ``calibration.npz``: ``bytes`` of 200 files; ``test.npz``: ``bytes`` of 500 other files;
- ``files.json``: {"calibration": [...], "test": [...]}, for each row its file and the float model's label
  and score.

The files are those under /usr and in Python's library without an extension or with one that belongs to a
label of the model. The extensions take turns, so that no type crowds out the others. Files that magika
decides without its model (too few bytes) and repeated contents are left out. The choice is the same every
time on one machine; another machine has other files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import sysconfig
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

try:
    import magika
    import onnxruntime
    from magika import Magika
except ImportError as missing:
    sys.exit(f'error: {missing.name} is missing; pip install "magika>=1.0,<1.1" onnxruntime')

SEED = 0
CALIBRATION_FILES, TEST_FILES = 200, 500
ROOTS = ("/usr", sysconfig.get_path("stdlib"), sysconfig.get_path("platlib"))
INPUT, OUTPUT = "bytes", "target_label"


def regular_files() -> list[Path]:
    """All files under the roots, no links, sorted."""
    found = set()
    for root in ROOTS:
        for folder, subfolders, names in os.walk(root):
            subfolders[:] = [name for name in subfolders if name != "__pycache__"]
            found.update(path for name in names if not os.path.islink(path := os.path.join(folder, name)))
    return [Path(path) for path in sorted(found)]


def extensions_in_turn(paths: list[Path], extensions: set[str]) -> Iterator[Path]:
    """The paths with these extensions, one of each after the other, each in a fixed random order."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in paths:
        groups[path.suffix.lower()].append(path)
    generator = random.Random(SEED)
    queues = [group for name, group in sorted(groups.items()) if name in extensions]
    for queue in queues:
        generator.shuffle(queue)
    while queues:
        for queue in queues:
            yield queue.pop()
        queues = [queue for queue in queues if queue]


def collect(identifier: Magika, wanted: int) -> tuple[list[Path], np.ndarray]:
    """Files that need the model, and their features, int32 [wanted, 2048]."""
    config = identifier._model_config
    types = (identifier._get_ct_info(label) for label in config.target_labels_space)
    extensions = {"", *(f".{name}" for content_type in types for name in content_type.extensions)}
    chosen: dict[bytes, tuple[Path, np.ndarray]] = {}
    for path in extensions_in_turn(regular_files(), extensions):
        try:
            _, features = identifier._get_result_or_features_from_path(path)
        except OSError:
            continue
        if features is None:
            continue
        row = np.array(features.beg[: config.beg_size] + features.end[-config.end_size :], dtype=np.int32)
        chosen.setdefault(row.tobytes(), (path, row))
        if len(chosen) == wanted:
            break
    else:
        sys.exit(f"error: {', '.join(ROOTS)} hold {len(chosen)} suitable files, not {wanted}; use a fuller machine")
    pairs = list(chosen.values())
    random.Random(SEED).shuffle(pairs)
    return [path for path, _ in pairs], np.stack([row for _, row in pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()

    identifier = Magika()
    if not hasattr(identifier, "_get_result_or_features_from_path"):
        sys.exit(f'error: magika {magika.__version__} is not known here; pip install "magika>=1.0,<1.1"')
    model = output / "model.onnx"
    shutil.copyfile(identifier._model_path, model)
    paths, rows = collect(identifier, CALIBRATION_FILES + TEST_FILES)

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = min(2, os.cpu_count() or 1)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    labels = identifier._target_labels_space
    records = []
    for start in range(0, len(rows), 100):
        (probabilities,) = session.run([OUTPUT], {INPUT: rows[start : start + 100]})
        for path, row in zip(paths[start : start + 100], probabilities, strict=True):
            best = int(row.argmax())
            records.append({"file": str(path), "label": labels[best], "score": round(float(row[best]), 4)})

    parts = {"calibration": slice(0, CALIBRATION_FILES), "test": slice(CALIBRATION_FILES, None)}
    for name, part in parts.items():
        np.savez_compressed(output / f"{name}.npz", **{INPUT: rows[part]})
    (output / "files.json").write_text(
        json.dumps({name: records[part] for name, part in parts.items()}, indent=1), encoding="utf-8"
    )
    test = records[parts["test"]]
    counts = Counter(record["label"] for record in test)
    unsure = sum(record["score"] < 0.5 for record in test)
    print(
        f"{model}: {model.stat().st_size / 1e6:.1f} MB; {CALIBRATION_FILES} calibration and {TEST_FILES} "
        f"test files; {len(counts)} labels among the test files, most often "
        + ", ".join(f"{label} {count}" for label, count in counts.most_common(8))
        + f"; {unsure} with a score below 0.5; {time.perf_counter() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
