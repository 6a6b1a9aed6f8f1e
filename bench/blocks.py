"""Time FFN blocks and whole encoders: float, ONNX Runtime's two quantizations, and this package's.

    python -m bench.blocks                                # the block, BERT-base and ViT-B, on one thread and on all
    python -m bench.blocks --minilm DIR                   # all-MiniLM-L6-v2 too: what bench/export_minilm.py wrote
    python -m bench.blocks --minilm DIR --update-docs     # also the tables of docs/performance.md
    python -m bench.blocks -o blocks.json

The limit of a block is its two integer matmuls by themselves, uint8 by int8, as ONNX Runtime runs them. Everybody
quantizes the FFNs' matmuls only. Every result is checked before anything is timed: the native kernels give the bits of
the portable graph, and nobody is far from float. Then all run in turn, A B C A B C.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import calibration
import qgelu
from bench import encoders
from bench.__main__ import cpu_model
from bench.marked import replace, table
from bench.timing import Timing, in_turn
from qgelu.graph.sites import find_sites
from qgelu.reporting.baselines import run_baseline

PAGE = "docs/performance.md"
BLOCK = (128, 768, 3072)
FURTHEST = 0.15
"""Largest relative error of an output against float before something must be wrong: scales per tensor reach 0.1."""

LIMIT, FLOAT, PORTABLE, NATIVE = "two bare MatMulInteger", "float", "qgelu, portable", "qgelu, native"


@dataclass(frozen=True)
class Job:
    """What all contestants do.

    Attributes
    ----------
    title : str
    model : ModelProto
        The float model.
    feed : dict of arrays
        What is timed.
    calibration : list of feeds
    """

    title: str
    model: onnx.ModelProto
    feed: dict[str, Any]
    calibration: list[dict[str, Any]]


def session(model: onnx.ModelProto, threads: int, native: bool = False) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if native:
        qgelu.register(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def models(job: Job) -> dict[str, onnx.ModelProto]:
    """Return the quantized models by contestant."""
    statistics = qgelu.calibrate(job.model, job.calibration)
    sites = find_sites(job.model).sites
    made = {FLOAT: job.model}
    for name in ("ort-static", "ort-dynamic"):
        source = calibration.open_data(job.calibration, calibration.input_specs(job.model))
        made[f"ONNX Runtime, {name.removeprefix('ort-')}"] = run_baseline(name, job.model, sites, source)
    made["qgelu, target qdq"] = qgelu.quantize(job.model, calibration=statistics, target="qdq").model
    # The search for scales takes minutes on twelve layers, and changes numbers, not the graph.
    made[PORTABLE] = made[NATIVE] = qgelu.quantize(job.model, calibration=statistics, method="minmax").model
    return made


def check(job: Job, results: dict[str, list[np.ndarray]]) -> None:
    """Exit if a result is wrong."""
    expected = results[FLOAT][0]
    for name, (actual, *_) in results.items():
        error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
        if not error < FURTHEST:
            sys.exit(f"error: {job.title}, {name}: relative error {error:.3f} against float")
    if not all(np.array_equal(a, b) for a, b in zip(results[PORTABLE], results[NATIVE], strict=True)):
        sys.exit(f"error: {job.title}: native kernels and portable graph differ")


def limit(threads: int) -> Callable[[], Any]:
    """Return the run of a block's two integer matmuls, checked against NumPy."""
    rows, hidden, inner = BLOCK
    model = encoders.bare_matmuls(hidden, inner)
    random = np.random.default_rng(6)
    feed = {
        name: random.integers(0, 256, (rows, width)).astype(np.uint8) for name, width in (("x", hidden), ("h", inner))
    }
    runner = session(model, threads)
    for initializer, source, result in zip(model.graph.initializer, feed.values(), runner.run(None, feed), strict=True):
        weight = onnx.numpy_helper.to_array(initializer)
        if not np.array_equal(source.astype(np.float64) @ weight.astype(np.float64), result):
            sys.exit(f"error: {LIMIT}: wrong product (int8 matmuls of CPUs without VNNI saturate)")
    return lambda: runner.run(None, feed)


def measure(job: Job, threads: list[int], rounds: int) -> list[dict[str, Any]]:
    """Return a row per number of threads and contestant."""
    made, rows = models(job), []
    for count in threads:
        sessions = {name: session(model, count, name == NATIVE) for name, model in made.items()}
        check(job, {name: runner.run(None, job.feed) for name, runner in sessions.items()})
        runs: dict[str, Callable[[], Any]] = {
            name: lambda runner=runner: runner.run(None, job.feed) for name, runner in sessions.items()
        }
        if job.title == block_job().title:
            runs = {LIMIT: limit(count), **runs}
        timings: dict[str, Timing] = dict(zip(runs, in_turn(list(runs.values()), rounds, count), strict=True))
        for name, timing in timings.items():
            rows.append(
                {
                    "job": job.title,
                    "threads": count,
                    "contestant": name,
                    "milliseconds": 1e3 * timing.median,
                    "quartiles": [1e3 * timing.lower, 1e3 * timing.upper],
                    "times_limit": timing.median / timings[LIMIT].median if LIMIT in timings else None,
                    "times_float": timing.median / timings[FLOAT].median,
                }
            )
    return rows


def block_job() -> Job:
    rows, hidden, inner = BLOCK
    random = np.random.default_rng(7)
    batches = [{"x": random.normal(0, 1, (rows, hidden)).astype(np.float32)} for _ in range(9)]
    title = f"FFN block, {rows} x {hidden} x {inner} x {hidden}"
    return Job(title, encoders.ffn_block(hidden, inner), batches[0], batches[1:])


def encoder_job(title: str, model: onnx.ModelProto) -> Job:
    batches = [encoders.feeds(model, 1, seed=seed) for seed in range(5)]
    return Job(title, model, batches[0], batches[1:])


def minilm_job(folder: Path) -> Job:
    model = onnx.load(folder / "model.onnx")
    calibrating = [dict(np.load(path)) for path in sorted((folder / "calibration").glob("*.npz"))[:2]]
    feed = {name: array[:8] for name, array in np.load(folder / "test" / "000.npz").items()}
    width = feed["input_ids"].shape[1]
    return Job(f"all-MiniLM-L6-v2, 8 x {width} tokens", model, feed, calibrating)


def profile(job: Job) -> list[list[str]]:
    """Return rows of what the native block spends its time on, by ONNX Runtime's own profile, one thread."""
    model = models(job)[NATIVE]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = "/tmp/qgelu-profile"
    qgelu.register(options)
    runner = onnxruntime.InferenceSession(model.SerializeToString(), options)
    for _ in range(300):
        runner.run(None, job.feed)
    path = Path(runner.end_profiling())
    events = json.loads(path.read_text())
    path.unlink()
    seconds: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            key = event["args"]["op_name"] + " " + event["name"]
            seconds.setdefault(key, []).append(event["dur"])
    for k, v in sorted(seconds.items(), key=lambda kv: -np.median(kv[1])):
        print(f"{k:70} {np.median(v):8.1f} {len(v)}")


if __name__ == "__main__":
    job = block_job()
    for row in measure(job, [1], 41):
        print(row["contestant"], round(row["milliseconds"], 3), row["times_limit"] and round(row["times_limit"], 3), round(row["times_float"], 3))
    profile(job)
