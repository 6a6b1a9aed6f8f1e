"""Write small GPT-2, ViT and CLIP models whose activations have outlier channels as those of trained models
do.

    pip install torch transformers onnx onnxscript onnxruntime
    python bench/make_outlier_models.py -o DIR

The architectures are those of Transformers, exported by PyTorch; the weights are random, but shaped so that
the FFNs see what those of all-MiniLM-L6-v2 do: at the first matmul's input a few channels, mostly on one
side of zero, reach 10 to 25 times the median channel's largest value (7 to 16 in all-MiniLM-L6-v2); before
the activation the mean is about -0.7, the deviation about 1, and a few units reach beyond -10 and 10; the
second matmul feeds the outlier channels of the residual stream. They stress quantization; they say nothing
about a task's accuracy.

DIR gets, for ``gpt2`` (tanh GELU), ``vit`` (erf GELU) and ``clip`` (QuickGELU), ``NAME.onnx`` with a
dynamic batch, ``NAME_calibration.npz`` and ``NAME_test.npz`` (64 samples each). Everything is seeded.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np

try:
    import onnxruntime
    import torch
    from torch import Tensor, nn
    from transformers import (
        CLIPVisionConfig,
        CLIPVisionModel,
        GPT2Config,
        GPT2Model,
        PreTrainedModel,
        ViTConfig,
        ViTModel,
    )
except ImportError as missing:
    sys.exit(f"error: {missing.name} is missing; pip install torch transformers onnx onnxscript onnxruntime")

SEED = 0
SAMPLES = 64
HIDDEN, LAYERS, HEADS = 192, 4, 4
VOCABULARY, SEQUENCE, IMAGE, PATCH = 1000, 48, 32, 4
OUTLIER_CHANNELS = 3
LOUD_UNITS = 8  # hidden units with large pre-activations
OPSET = 18
TOLERANCE = 1e-3  # relative to the largest output, PyTorch against ONNX Runtime


class LastHiddenState(nn.Module):
    """Of a model, from its one positional input."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).last_hidden_state


@dataclass(frozen=True)
class Recipe:
    input: str
    build: Callable[[], PreTrainedModel]
    ffn_modules: tuple[str, str, str]  # ends of the names of the LayerNorm before, the first and the second matmul
    draw: Callable[[np.random.Generator], np.ndarray]


def draw_tokens(generator: np.random.Generator) -> np.ndarray:
    """Token numbers with Zipf's frequencies, int64 [samples, sequence]."""
    frequencies = 1 / np.arange(1, VOCABULARY + 1)
    return generator.choice(VOCABULARY, (SAMPLES, SEQUENCE), p=frequencies / frequencies.sum())


def draw_images(generator: np.random.Generator) -> np.ndarray:
    """Noise with the 1/f spectrum of photographs, float32 [samples, 3, size, size], unit deviation each."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(IMAGE), np.fft.fftfreq(IMAGE)))
    spectrum = np.fft.fft2(generator.standard_normal((SAMPLES, 3, IMAGE, IMAGE)))
    images = np.fft.ifft2(spectrum / np.maximum(frequency, 1 / IMAGE)).real
    return (images / images.std(axis=(1, 2, 3), keepdims=True)).astype(np.float32)


VISION = {
    "hidden_size": HIDDEN,
    "intermediate_size": 4 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "image_size": IMAGE,
    "patch_size": PATCH,
}
RECIPES = {
    "gpt2": Recipe(
        "input_ids",
        lambda: GPT2Model(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=SEQUENCE,
                n_embd=HIDDEN,
                n_layer=LAYERS,
                n_head=HEADS,
                use_cache=False,
                bos_token_id=None,
                eos_token_id=None,
            )
        ),
        ("ln_2", "mlp.c_fc", "mlp.c_proj"),
        draw_tokens,
    ),
    "vit": Recipe(
        "pixel_values",
        lambda: ViTModel(ViTConfig(**VISION), add_pooling_layer=False),
        ("layernorm_after", "mlp.fc1", "mlp.fc2"),
        draw_images,
    ),
    "clip": Recipe(
        "pixel_values",
        lambda: CLIPVisionModel(CLIPVisionConfig(**VISION)),
        ("layer_norm2", "mlp.fc1", "mlp.fc2"),
        draw_images,
    ),
}


def blocks(model: nn.Module, ends: tuple[str, str, str]) -> Iterator[tuple[nn.Module, ...]]:
    """The LayerNorm, first and second matmul of each FFN."""
    found = [[m for name, m in model.named_modules() if name.endswith("." + end)] for end in ends]
    if any(len(modules) != LAYERS for modules in found):
        sys.exit(f"error: {type(model).__name__} has no modules {', '.join(ends)}; try transformers 5.24")
    return zip(*found, strict=True)


def input_by_output(layer: nn.Module) -> Tensor:
    """The weight as [in, out]: nn.Linear keeps it transposed, GPT-2's Conv1D does not."""
    return layer.weight.data.T if isinstance(layer, nn.Linear) else layer.weight.data


def plant_outliers(model: nn.Module, ends: tuple[str, str, str]) -> None:
    """Set the weights in place; the outlier channels are the same in every block, as in trained models."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=HIDDEN**-0.5)
    channels = torch.randperm(HIDDEN)[:OUTLIER_CHANNELS]
    signs = torch.tensor([1.0, -1.0, -1.0])
    for norm, first, second in blocks(model, ends):
        norm.weight.data.normal_(0.5, 0.1)
        norm.bias.data.normal_(0.0, 0.1)
        gains = torch.empty(OUTLIER_CHANNELS).uniform_(1.5, 3.0)
        norm.weight.data[channels] = gains
        norm.bias.data[channels] = 4 * signs * gains

        weight = input_by_output(first)
        weight.normal_(0.0, 2 * HIDDEN**-0.5)
        weight[channels] *= 0.1
        first.bias.data.normal_(-0.7, 0.3)
        weight[:, torch.randperm(4 * HIDDEN)[:LOUD_UNITS]] *= 4

        weight = input_by_output(second)
        weight.normal_(0.0, HIDDEN**-0.5)
        weight[:, channels] *= 3


def export(model: nn.Module, name: str, sample: np.ndarray, path: Path) -> None:
    torch.onnx.export(
        model,
        (torch.from_numpy(sample),),
        path,
        dynamo=True,
        external_data=False,
        opset_version=OPSET,
        input_names=[name],
        output_names=["last_hidden_state"],
        dynamic_shapes={"x": {0: torch.export.Dim("batch")}},
        verbose=False,
    )


def relative_difference(model: nn.Module, name: str, data: np.ndarray, path: Path) -> float:
    """Of the largest output, PyTorch against ONNX Runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {name: data})
    with torch.inference_mode():
        expected = model(torch.from_numpy(data)).numpy()
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    for name, recipe in RECIPES.items():
        torch.manual_seed(SEED)
        generator = np.random.default_rng(SEED)
        model = recipe.build().eval()
        plant_outliers(model, recipe.ffn_modules)
        encoder = LastHiddenState(model).eval()
        data = {part: recipe.draw(generator) for part in ("calibration", "test")}
        path = output / f"{name}.onnx"
        export(encoder, recipe.input, data["calibration"][:2], path)
        for part, array in data.items():
            np.savez_compressed(output / f"{name}_{part}.npz", **{recipe.input: array})
        difference = relative_difference(encoder, recipe.input, data["test"], path)
        if not difference <= TOLERANCE:
            sys.exit(f"error: {path}: output differs from PyTorch's by {difference:.1e}; try another torch version")
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB; relative difference to PyTorch {difference:.1e}")


if __name__ == "__main__":
    main()
