"""What to tell someone about a model before it hurts: mixed variants, a config.json that says otherwise."""

import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Final

from qgelu.activations import DEFAULT_ALPHA, canonical_name
from qgelu.errors import QGeluError
from qgelu.graph.findings import Findings, Site

_GELUS: Final = ("gelu", "gelu_tanh", "quick_gelu")

_CONFIG_KEYS: Final = (
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "activation",
    "dense_act_fn",
    "ff_activation",
    "afn",
    "feed_forward_proj",
)
"""What Hugging Face configurations call the activation of the feed-forward blocks; in parts of a model too."""

_LARGEST_CONFIG: Final = 1 << 20  # bytes; a larger file is not a configuration
_ALPHA_TOLERANCE: Final = 1e-3


def caveats(findings: Findings, path: str | PathLike[str] | None = None) -> tuple[str, ...]:
    """Return what hurts people who use a model without knowing it, a line each.

    Parameters
    ----------
    findings : Findings
        Of the model.
    path : path, optional
        Of its file: a ``config.json`` beside it, or beside the folder ``onnx`` that it is in, is read.
    """
    return (*_mixed(findings), *(() if path is None else _disagreement(findings, Path(path))))


def _counted(sites: list[Site]) -> str:
    return f"{len(sites)} {'site' if len(sites) == 1 else 'sites'} (first: {sites[0].name!r})"


def _label(site: Site) -> str:
    return f"quick_gelu with alpha {site.alpha:.4g}" if site.activation == "quick_gelu" else site.activation


def _by_variant(findings: Findings) -> dict[str, list[Site]]:
    variants: dict[str, list[Site]] = {}
    for site in findings.sites:
        variants.setdefault(_label(site), []).append(site)
    return variants


def _mixed(findings: Findings) -> Iterator[str]:
    variants = {label: sites for label, sites in _by_variant(findings).items() if sites[0].activation in _GELUS}
    if len(variants) > 1:
        parts = ", ".join(f"{label} at {_counted(sites)}" for label, sites in variants.items())
        yield f"the model mixes variants of GELU: {parts}; each is kept as it is, but check that the export is right"


def _disagreement(findings: Findings, path: Path) -> Iterator[str]:
    config = next((each for each in _config_paths(path) if each.is_file()), None)
    if config is None or not findings.sites:
        return
    try:
        if config.stat().st_size > _LARGEST_CONFIG:
            return
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        yield f"{config} beside the model cannot be read as JSON: it was not compared with the graph"
        return
    named = dict(_named(content, ""))
    if not named or any(_agrees(name, site) for name in named.values() for site in findings.sites):
        return
    said = ", ".join(f"{key} {name!r}" for key, name in named.items())
    computed = ", ".join(f"{label} at {_counted(sites)}" for label, sites in _by_variant(findings).items())
    yield (
        f"{config} says {said}, and the graph computes {computed}: the graph's is what is quantized; "
        "if the checkpoint was trained with the other, export it again"
    )


def _config_paths(path: Path) -> Iterator[Path]:
    folder = path.absolute().parent
    yield path.parent / "config.json"
    if folder.name == "onnx":
        yield path.parent.parent / "config.json" if path.parent.name else folder.parent / "config.json"


def _named(content: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the activations that a configuration and its parts name, by key."""
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if key in _CONFIG_KEYS and isinstance(value, str):
            yield f"{prefix}{key}", value
        elif isinstance(value, dict) and not prefix.count("."):
            yield from _named(value, f"{prefix}{key}.")


def _agrees(name: str, site: Site) -> bool:
    plain = name.removeprefix("gated-")
    if name == "gated-gelu":  # T5's gelu is the tanh form
        plain = "gelu_new"
    try:
        activation = "gelu" if plain.lower() == "gelu_10" else canonical_name(plain)
    except QGeluError:  # relu and others
        return False
    if activation == "quick_gelu" and abs(site.alpha - DEFAULT_ALPHA) > _ALPHA_TOLERANCE:
        return False
    return activation == site.activation
