"""The native library: the custom ops as kernels of ONNX Runtime's, in C. Its sources are in ``src``."""
