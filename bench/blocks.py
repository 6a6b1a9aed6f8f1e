"""Time FFN blocks and whole encoders: float, ONNX Runtime's two quantizations, and this package's.

    python -m bench.blocks                                # the block, BERT-base and ViT-B, on one thread and on all
    python -m bench.blocks --minilm DIR                   # all-MiniLM-L6-v2 too: what bench/export_minilm.py wrote
    python -m bench.blocks --minilm DIR --update-docs     # also the tables of docs/performance.md
    python -m bench.blocks -o blocks.json

The limit of a block is its two integer matmuls by themselves, uint8 by int8, as ONNX Runtime runs them. Everybody
quantizes the FFNs' matmuls only. Every result is checked before anything is timed: in the block the native kernels give
the bits of the portable graph, and nobody is far from float. Then all run in turn, A B C A B C.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
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

FUSED = 0.01
"""Largest relative difference that rounding in the float rest of an encoder may make: codes flip by one."""

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


def ours(job: Job, target: str = "portable") -> onnx.ModelProto:
    """Return our model; the search for scales takes minutes on twelve layers, and changes numbers, not the graph."""
    return qgelu.quantize(job.model, job.calibration, target=target, method="minmax").model


def models(job: Job) -> dict[str, onnx.ModelProto]:
    """Return the models by contestant."""
    sites = find_sites(job.model).sites
    made = {FLOAT: job.model}
    for name in ("ort-static", "ort-dynamic"):
        source = calibration.open_data(job.calibration, calibration.input_specs(job.model))
        made[f"ONNX Runtime, {name.removeprefix('ort-')}"] = run_baseline(name, job.model, sites, source)
    made["qgelu, target qdq"] = ours(job, "qdq")
    made[PORTABLE] = made[NATIVE] = ours(job)
    return made


def check(job: Job, results: dict[str, list[np.ndarray]]) -> None:
    """Exit if a result is wrong."""
    expected = results[FLOAT][0]
    for name, (actual, *_) in results.items():
        error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
        if not error < FURTHEST:
            sys.exit(f"error: {job.title}, {name}: relative error {error:.3f} against float")
    portable, native = results[PORTABLE][0], results[NATIVE][0]
    if job.title == block_job().title and not np.array_equal(portable, native):
        sys.exit(f"error: {job.title}: native kernels and portable graph differ")
    # In an encoder ONNX Runtime fuses other float nodes once the functions are inlined, and rounds otherwise there.
    if not np.linalg.norm(portable - native) < FUSED * np.linalg.norm(portable):
        sys.exit(f"error: {job.title}: native kernels and portable graph are far apart")


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
    batches = [{"x": random.normal(0, 1, (1, rows, hidden)).astype(np.float32)} for _ in range(9)]
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


def profile(job: Job, runs: int = 200) -> list[dict[str, Any]]:
    """Return what the native block spends its time on, one thread, by ONNX Runtime's own profile."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_profiling = True
    qgelu.register(options)
    with tempfile.TemporaryDirectory(prefix="qgelu-profile-") as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        runner = onnxruntime.InferenceSession(ours(job).SerializeToString(), options)
        for _ in range(runs):
            runner.run(None, job.feed)
        events = json.loads(Path(runner.end_profiling()).read_text())
    taken: dict[tuple[str, str], list[int]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            taken.setdefault((event["args"]["op_name"], event["name"]), []).append(event["dur"])
    return [{"node": node, "microseconds": statistics.median(times)} for (node, _), times in taken.items()]


WHAT = {
    "Mul": "scales of the input's channels",
    "Add": "shifts of the input's channels",
    "QuantizeLinear": "codes of the input",
    "MatMulInteger": "first matmul",
    "RequantizeGelu": "bias, activation, codes",
    "MatMulIntegerToFloat": "second matmul, scales and bias",
}


def update_docs(result: dict[str, Any]) -> None:
    """Renew the parts of docs/performance.md."""
    rows = result["rows"]
    for mark, jobs in (("block", [rows[0]["job"]]), ("encoders", list(dict.fromkeys(row["job"] for row in rows))[1:])):
        lines = []
        for job in jobs:
            for threads in sorted({row["threads"] for row in rows}):
                for row in (row for row in rows if row["job"] == job and row["threads"] == threads):
                    lower, upper = row["quartiles"]
                    ratio = f"{row['times_limit']:.2f}" if row["times_limit"] else None
                    lines.append(
                        [
                            *([] if mark == "block" else [job]),
                            str(threads),
                            row["contestant"],
                            f"{row['milliseconds']:.2f} ({lower:.2f} to {upper:.2f})",
                            *([ratio or ""] if mark == "block" else []),
                            f"{row['times_float']:.2f}",
                        ]
                    )
        header = ["threads", "", "ms", "x float"]
        header = [*header[:3], "x limit", header[3]] if mark == "block" else ["model", *header]
        replace(PAGE, mark, table(header, lines))
    total = sum(entry["microseconds"] for entry in result["profile"])
    lines = [
        [
            entry["node"],
            WHAT.get(entry["node"], ""),
            f"{entry['microseconds']:.0f}",
            f"{entry['microseconds'] / total:.1%}",
        ]
        for entry in result["profile"]
        if entry["microseconds"] >= 0.001 * total
    ]
    replace(PAGE, "profile", table(["operator", "what for", "us", "share"], lines))
    replace(
        PAGE,
        "blocks_machine",
        [
            f"{result['cpu']}, {os.cpu_count()} cores; "
            + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
            + f". Medians of {result['rounds']} measurements, quartiles in brackets."
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.blocks", description=__doc__.splitlines()[0])
    parser.add_argument("--minilm", type=Path, metavar="DIR", help="what bench/export_minilm.py wrote")
    parser.add_argument("--rounds", type=int, default=21, help="measurements per contestant")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--update-docs", action="store_true", help="renew docs/performance.md")
    options = parser.parse_args()
    every = os.cpu_count() or 1
    jobs = [block_job(), encoder_job("BERT-base, 128 tokens", encoders.bert())]
    jobs.append(encoder_job("ViT-B, 197 tokens", encoders.vit()))
    if options.minilm:
        jobs.append(minilm_job(options.minilm))
    rows = []
    for job in jobs:
        rows += measure(job, sorted({1, every}), options.rounds)
        for row in (row for row in rows if row["job"] == job.title):
            limit_text = f"{row['times_limit']:.2f} x limit, " if row["times_limit"] else ""
            print(
                f"{row['job']}, {row['threads']} thread(s), {row['contestant']:24} {row['milliseconds']:8.2f} ms, "
                f"{limit_text}{row['times_float']:.2f} x float",
                flush=True,
            )
    result = {
        "cpu": cpu_model(),
        "config": qgelu.get_config(),
        "versions": {"onnxruntime": onnxruntime.__version__, "qgelu": qgelu.__version__, "numpy": np.__version__},
        "rounds": options.rounds,
        "rows": rows,
        "profile": profile(jobs[0]),
    }
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")
    if options.update_docs:
        update_docs(result)


if __name__ == "__main__":
    main()
