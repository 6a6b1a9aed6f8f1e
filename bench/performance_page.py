"""The kernel benchmark for people: a table in text, a chart, and the generated parts of docs/performance.md."""

from pathlib import Path
from typing import Any

from bench.kernel_inputs import SHAPES, TITLES
from bench.marked import ROOT, replace, table

PAGE = "docs/performance.md"
CHART = ROOT / "docs" / "performance.svg"


def _select(result: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in result["rows"] if all(row[key] == value for key, value in wanted.items())]


def _time(row: dict[str, Any]) -> str:
    lower, upper = row["quartiles"]
    return f"{row['microseconds']:.1f} ({lower:.1f} to {upper:.1f})"


def text_table(result: dict[str, Any]) -> list[str]:
    """Return every row, in columns."""
    lines = [f"{'':44} {'us, median (quartiles)':>30} {'ns/element':>11} {'x copy':>7}"]
    heading = None
    for row in result["rows"]:
        new = f"{TITLES[row['kernel']]}; {row['shape']}, {row['threads']} thread(s)"
        if new != heading:
            lines += ["", new]
            heading = new
        per_element = 1e3 * row["microseconds"] / row["elements"]
        lines.append(f"  {row['contestant']:42} {_time(row):>30} {per_element:>11.3f} {row['times_copy']:>7.2f}")
    lines += ["", "256 elements, us: bare Numba call, plan"]
    lines += [f"  {row['call']:42} {row['bare']:.2f}, {row['plan']:.2f}" for row in result["calls"]]
    absent = [name for name, version in result["versions"].items() if version is None]
    if absent:
        lines += ["", f"not installed, so not measured: {', '.join(absent)}"]
    return lines


def write_chart(result: dict[str, Any], path: Path) -> None:
    """Draw nanoseconds per element of every contestant, one thread, first shape, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    shape = result["rows"][0]["shape"]
    kernels = [kernel for kernel in TITLES if _select(result, kernel=kernel)]
    counts = [len(_select(result, kernel=kernel, shape=shape, threads=1)) for kernel in kernels]
    plt.rcParams.update({"svg.hashsalt": "qgelu", "svg.fonttype": "none"})
    figure, axes = plt.subplots(
        len(kernels),
        figsize=(9, 0.32 * sum(counts) + 0.8 * len(kernels)),
        height_ratios=counts,
        squeeze=False,
        layout="constrained",
    )
    for kernel, axis in zip(kernels, axes[:, 0], strict=True):
        rows = _select(result, kernel=kernel, shape=shape, threads=1)
        values = [1e3 * row["microseconds"] / row["elements"] for row in rows]
        colours = ["#2a6fb0" if row["contestant"].startswith("qgelu") else "#9a9a9a" for row in rows]
        bars = axis.barh([row["contestant"] for row in rows], values, color=colours)
        axis.bar_label(bars, [f"{value:.3f}" for value in values], padding=3, fontsize=8)
        axis.invert_yaxis()
        axis.set_title(TITLES[kernel], fontsize=10, loc="left")
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.1)
    axes[-1, 0].set_xlabel(f"nanoseconds per element, one thread, {' x '.join(map(str, SHAPES[shape]))}", fontsize=9)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _machine(result: dict[str, Any]) -> list[str]:
    config = result["config"]
    packages = {**config["versions"], **result["versions"]}
    present = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    absent = ", ".join(name for name, version in packages.items() if version is None)
    return [
        f"{config['cpu_model']} ({config['cpu']} to LLVM), {config['cpu_count']} cores; {present}"
        f"{f'; not installed: {absent}' if absent else ''}. Medians of {result['rounds']} measurements, quartiles in "
        f"brackets. Load average of the machine before the start: {result['load_average']:.1f}."
    ]


def _one_shape(result: dict[str, Any], kernel: str) -> list[str]:
    rows = _select(result, kernel=kernel, shape="BERT-base", threads=1)
    body = [
        [
            row["contestant"],
            _time(row),
            f"{1e3 * row['microseconds'] / row['elements']:.3f}",
            f"{row['times_copy']:.2f}",
        ]
        for row in rows
    ]
    return table(["", "us", "ns per element", "x copy"], body)


def _all_shapes(result: dict[str, Any]) -> list[str]:
    body = []
    for kernel in [name for name in TITLES if not name.endswith("pack_4")]:
        for shape in dict.fromkeys(row["shape"] for row in result["rows"]):
            for threads in dict.fromkeys(row["threads"] for row in result["rows"]):
                rows = {row["contestant"]: row for row in _select(result, kernel=kernel, shape=shape, threads=threads)}
                ours = next(row for name, row in rows.items() if name.startswith("qgelu plan"))
                peers = [rows.get("ONNX Runtime Gelu, float"), rows.get("ONNX Runtime DQ, Gelu, Q, per tensor")]
                ratios = [f"{peer['microseconds'] / ours['microseconds']:.2f}" if peer else "" for peer in peers]
                size = " x ".join(map(str, SHAPES[shape]))
                cells = [TITLES[kernel], f"{shape}, {size}", f"{threads}", _time(ours), f"{ours['times_copy']:.2f}"]
                alone = _select(result, kernel=kernel, shape=shape, threads=1, contestant=ours["contestant"])[0]
                gain = "" if threads == 1 else f"{alone['microseconds'] / ours['microseconds']:.2f}"
                body.append([*cells, gain, *ratios])
    header = [
        "",
        "shape",
        "threads",
        "plan, us",
        "x copy",
        "faster than one thread",
        "faster than float Gelu",
        "faster than DQ, Gelu, Q",
    ]
    return table(header, body)


def _calls(result: dict[str, Any]) -> list[str]:
    body = [
        [row["call"], f"{row['bare']:.2f}", f"{row['plan']:.2f}", f"{row['plan'] - row['bare']:.2f}"]
        for row in result["calls"]
    ]
    return table(["256 elements", "bare Numba call, us", "plan, us", "more"], body)


def update_docs(result: dict[str, Any]) -> None:
    """Write the generated parts of docs/performance.md, and its chart."""
    replace(PAGE, "machine", _machine(result))
    for kernel in TITLES:
        replace(PAGE, kernel, _one_shape(result, kernel))
    replace(PAGE, "shapes", _all_shapes(result))
    replace(PAGE, "calls", _calls(result))
    write_chart(result, CHART)
