"""Train and export the vision transformer that ships in ``qgelu/demo``.

    pip install torch onnxscript onnx onnxruntime scikit-learn
    python bench/make_demo_model.py                  # rewrites qgelu/demo/digits_vit.onnx and digits.npz

A pre-norm ViT (2x2 patches by convolution, class token, learnt positions, erf GELU) on scikit-learn's 8x8
digits, trained on the CPU in about a minute and exported by PyTorch's dynamo exporter with a dynamic batch.
Everything is seeded and runs on one thread: on one machine and one set of versions two runs write the same
bytes; elsewhere the accuracy may differ by an image or two.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

import numpy as np

try:
    import onnx
    import onnxruntime
    import sklearn
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as missing:
    sys.exit(f"error: {missing.name} is missing; pip install torch onnxscript onnx onnxruntime scikit-learn")

SEED = 0
TEST_IMAGES = 600
CALIBRATION_IMAGES = 256
GREY_LEVELS = 16.0
HIDDEN, LAYERS, HEADS, PATCH, IMAGE, CLASSES = 40, 3, 4, 2, 8, 10
EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 200, 64, 2e-3, 0.05
OPSET = 18
DEMO_FOLDER = Path(__file__).resolve().parent.parent / "qgelu" / "demo"


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.projection = nn.Linear(HIDDEN, HIDDEN)
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.fc1 = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.fc2 = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, tokens, 3, HEADS, HIDDEN // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, tokens, HIDDEN))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class DigitsViT(nn.Module):
    """``images`` float [batch, 1, 8, 8] in 0..1 to ``logits`` [batch, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, HIDDEN, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, HIDDEN))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (IMAGE // PATCH) ** 2, HIDDEN))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(images.shape[0], -1, -1), tokens], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test images (uint8 [n, 1, 8, 8], 0..16) and labels (uint8 [n]), the same every time."""
    digits = load_digits()
    images = digits.images.astype(np.uint8)[:, None]
    labels = digits.target.astype(np.uint8)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=TEST_IMAGES, stratify=labels, random_state=SEED
    )
    return train_images, train_labels, test_images, test_labels


def shifted(images: Tensor) -> Tensor:
    """Move each image by -1, 0 or 1 pixel in both directions: the training augmentation."""
    padded = functional.pad(images, (1, 1, 1, 1))
    offset = torch.randint(0, 3, (2, len(images), 1))
    rows = offset[0] + torch.arange(IMAGE)
    columns = offset[1] + torch.arange(IMAGE)
    return padded[torch.arange(len(images))[:, None, None], 0, rows[:, :, None], columns[:, None, :]][:, None]


def train(images: Tensor, labels: Tensor) -> DigitsViT:
    model = DigitsViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
    for epoch in range(EPOCHS):
        total = 0.0
        for chosen in torch.randperm(len(images)).split(BATCH):
            loss = functional.cross_entropy(model(shifted(images[chosen])), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item() * len(chosen)
        if (epoch + 1) % 20 == 0:
            print(f"epoch {epoch + 1}/{EPOCHS}: loss {total / len(images):.4f}", file=sys.stderr)
    return model.eval()


def export(model: DigitsViT, path: Path) -> None:
    """Write the model as one file, without the exporter's stack traces and source paths."""
    program = torch.onnx.export(
        model,
        (torch.zeros(2, 1, IMAGE, IMAGE),),
        dynamo=True,
        opset_version=OPSET,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
        verbose=False,
    )
    proto = program.model_proto
    proto.ClearField("metadata_props")
    proto.graph.ClearField("metadata_props")
    proto.graph.ClearField("doc_string")
    graph = proto.graph
    for item in (*graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        item.ClearField("metadata_props")
        item.ClearField("doc_string")
    onnx.checker.check_model(proto, full_check=True)
    onnx.save_model(proto, path)


def accuracy(path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Of the exported file on ONNX Runtime, in batches of several sizes to try the dynamic batch too."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    edges = [0, 1, 8, 100, len(images)]
    predicted = [
        session.run(["logits"], {"images": images[low:high]})[0].argmax(axis=1)
        for low, high in itertools.pairwise(edges)
    ]
    return float(np.mean(np.concatenate(predicted) == labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=DEMO_FOLDER, metavar="DIR")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    train_images, train_labels, test_images, test_labels = split()
    scaled = train_images.astype(np.float32) / np.float32(GREY_LEVELS)

    started = time.perf_counter()
    model = train(torch.from_numpy(scaled), torch.from_numpy(train_labels.astype(np.int64)))
    seconds = time.perf_counter() - started

    model_path, data_path = output / "digits_vit.onnx", output / "digits.npz"
    export(model, model_path)
    np.savez_compressed(
        data_path,
        calibration_images=scaled[:CALIBRATION_IMAGES],
        test_images=test_images,
        test_labels=test_labels,
    )
    measured = accuracy(model_path, test_images.astype(np.float32) / np.float32(GREY_LEVELS), test_labels)
    modules = (torch, onnx, onnxruntime, sklearn, np)
    print(
        f"accuracy {measured:.4f} on {len(test_labels)} test images; {seconds:.0f} s of training; "
        + ", ".join(f"{path.name} {path.stat().st_size} bytes" for path in (model_path, data_path))
        + "; "
        + ", ".join(f"{module.__name__} {module.__version__}" for module in modules)
    )


if __name__ == "__main__":
    main()
