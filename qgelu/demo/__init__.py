"""A small trained transformer with labelled data, to try everything on.

``digits_vit.onnx`` is a vision transformer (3 blocks, hidden size 40, erf GELU, opset 18, dynamic batch)
that reads scikit-learn's 8x8 digits: input ``images``, float32 [batch, 1, 8, 8], grey values 0..1; output
``logits``, float32 [batch, 10]. ``digits.npz`` holds ``calibration_images`` (256 of the training images, as
the model takes them), ``test_images`` (the 600 images that training never saw, uint8 grey values 0..16:
divide by 16) and ``test_labels`` (uint8).

On ONNX Runtime the float model gets 592 of the 600 test images right (98.67 %).
``bench/make_demo_model.py`` made both files, with torch 2.13.0, onnx 1.23.2, onnxruntime 1.32.0,
scikit-learn 1.9.1 and numpy 2.4.6.

The images are from the Optical Recognition of Handwritten Digits data set (Alpaydin and Kaynak, 1998; UCI
Machine Learning Repository, CC BY 4.0).
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np

_GREY_LEVELS = np.float32(16.0)


def model_path() -> Path:
    """Path of the float model."""
    return _path("digits_vit.onnx")


def load_calibration() -> dict[str, np.ndarray]:
    """Calibration data by input name.

    Returns
    -------
    dict of str to ndarray
        ``images``, float32 [256, 1, 8, 8].
    """
    with np.load(_path("digits.npz")) as data:
        return {"images": data["calibration_images"]}


def load_test() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Test data by input name, and the labels.

    Returns
    -------
    feeds : dict of str to ndarray
        ``images``, float32 [600, 1, 8, 8].
    labels : ndarray
        int64 [600], the digits 0..9.
    """
    with np.load(_path("digits.npz")) as data:
        images = data["test_images"].astype(np.float32) / _GREY_LEVELS
        return {"images": images}, data["test_labels"].astype(np.int64)


def _path(name: str) -> Path:
    return Path(str(resources.files(__name__) / name))
