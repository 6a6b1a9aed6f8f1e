"""ONNX: reading and writing models, finding activations and rewriting them."""
