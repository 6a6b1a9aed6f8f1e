"""Time this package's kernels beside copying memory, ONNX Runtime and (if installed) PyTorch.

    python -m bench                          # everything, a table on stdout
    python -m bench --quick                  # one shape, one thread, few rounds
    python -m bench -o results               # also results/bench.json and results/bench.svg
    python -m bench --update-docs            # also the tables and the chart of docs/performance.md

Every result is checked before anything is timed. Compare ratios within one run, never times between runs.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from bench.contestants import contestants, optional_packages
from bench.kernel_inputs import SHAPES, TITLES, make_job
from bench.performance_page import text_table, update_docs, write_chart
from bench.small_calls import small_calls
from bench.timing import in_turn
from qgelu import get_config


def measure(kernels: list[str], shapes: list[str], threads: list[int], rounds: int) -> list[dict[str, Any]]:
    """Return one row per kernel, shape, number of threads and contestant; exit if a result is wrong."""
    rows = []
    for shape in shapes:
        for kernel in kernels:
            job = make_job(kernel, SHAPES[shape])
            for count in threads:
                taking_part = list(contestants(job, count))
                for contestant in taking_part:
                    problem = contestant.check(contestant.run())
                    if problem:
                        sys.exit(f"error: {TITLES[kernel]}, {shape}, {contestant.name}: {problem}")
                timings = in_turn([contestant.run for contestant in taking_part], rounds, count)
                for contestant, timing in zip(taking_part, timings, strict=True):
                    rows.append(
                        {
                            "kernel": kernel,
                            "shape": shape,
                            "elements": job.source.size,
                            "threads": count,
                            "contestant": contestant.name,
                            "microseconds": 1e6 * timing.median,
                            "quartiles": [1e6 * timing.lower, 1e6 * timing.upper],
                            "times_copy": timing.median / timings[0].median,
                        }
                    )
                print(f"{shape}, {TITLES[kernel]}, {count} threads: done", file=sys.stderr)
    return rows


def versions() -> dict[str, str | None]:
    """Return the other packages' versions; None for what is absent."""
    from importlib.metadata import version

    present = {"onnxruntime": True, "onnx": True, **optional_packages()}
    return {name: version(name) if there else None for name, there in present.items()}


def cpu_model() -> str:
    """Return the CPU's name as its maker gives it, where the system tells."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one shape, one thread, few rounds")
    parser.add_argument("--kernels", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--rounds", type=int, default=41, help="measurements per contestant")
    parser.add_argument("-o", "--output", type=Path, help="folder for bench.json and bench.svg")
    parser.add_argument("--update-docs", action="store_true", help="renew docs/performance.md and its chart")
    options = parser.parse_args()
    shapes = ["BERT-base"] if options.quick else list(SHAPES)
    every = os.cpu_count() or 1
    threads = [1] if options.quick or every == 1 else [1, every]
    rounds = 11 if options.quick else options.rounds
    load_average = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    result = {
        "load_average": load_average,
        "config": {**get_config(), "cpu_model": cpu_model()},
        "versions": versions(),
        "rounds": rounds,
        "rows": measure(options.kernels, shapes, threads, rounds),
        "calls": small_calls(rounds),
    }
    print("\n".join(text_table(result)))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "bench.json").write_text(json.dumps(result, indent=2) + "\n")
        write_chart(result, options.output / "bench.svg")
    if options.update_docs:
        update_docs(result)


if __name__ == "__main__":
    main()
