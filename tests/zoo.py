"""The committed exporter outputs: inputs for them, and what the integer versions must reach."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

FOLDER = Path(__file__).parent / "data" / "zoo"

# Largest relative L2 error of any output against the float model, over the test's feeds, at 8 bits: scope ffn
# (activation where there is no FFN) and scope activation. About 1.5 times what was measured.
RELATIVE_ERROR = {
    "albert_gelu_new.ts17": (0.025, 0.018),
    "bert_gelu.ts14": (0.012, 0.008),
    "bert_gelu.ts17": (0.012, 0.008),
    "bert_gelu_10.ts17": (0.008, 0.008),
    "bert_gelu_fast.dyn18": (0.013, 0.008),
    "bloom_gelu.ts17": (0.021, 0.013),
    "clipvision_quickgelu.dyn20": (0.050, 0.010),
    "distilbert_gelu.ts17": (0.030, 0.017),
    "gemma_gelu_tanh.dyn20": (0.020, 0.022),
    "gpt2_gelu_new.dyn18": (0.030, 0.015),
    "t5enc_gated_gelu.ts17": (0.012, 0.012),
    "vit_gelu.ts17": (0.025, 0.019),
}


def load(name):
    return onnx.load(FOLDER / f"{name}.onnx")


def feed(model, rng, batch, length):
    """Return random inputs: dynamic axes are ``batch`` (the first) and ``length``."""
    result = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [
            dim.dim_value if dim.dim_value > 0 else (batch if axis == 0 else length)
            for axis, dim in enumerate(tensor.shape.dim)
        ]
        if tensor.elem_type == onnx.TensorProto.FLOAT:
            result[value.name] = rng.normal(size=shape).astype(np.float32)
        elif "mask" in value.name:
            result[value.name] = np.ones(shape, np.int64)
        elif "position" in value.name:
            result[value.name] = np.broadcast_to(np.arange(shape[-1]), shape).astype(np.int64)
        elif "type" in value.name:
            result[value.name] = np.zeros(shape, np.int64)
        else:
            result[value.name] = rng.integers(5, 60, shape)
    return result


def run(model, inputs):
    """Return the outputs on stock ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs)


def executed(model, inputs, folder):
    """Return the op types that ONNX Runtime executes, with their counts."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    session.run(None, inputs)
    events = json.loads(Path(session.end_profiling()).read_text())
    return Counter(
        event["args"]["op_name"]
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    )


def relative_error(expected, actual):
    """Return the relative L2 error."""
    difference = np.linalg.norm((expected - actual).astype(np.float64).ravel())
    return difference / np.linalg.norm(expected.astype(np.float64).ravel())
