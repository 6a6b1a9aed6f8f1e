"""Who takes part in the kernel benchmark, and how each one's result is checked before it is timed."""

import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numba
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from bench.contestant import Contestant, equal
from bench.kernel_inputs import Job, bind
from bench.packing import packing
from qgelu.kernels.binding import BoundKernel
from qgelu.kernels.cpu import target
from qgelu.kernels.registry import IMPLEMENTATIONS, selected


def optional_packages() -> dict[str, bool]:
    """Return which packages that may take part are installed."""
    return {name: find_spec(name) is not None for name in ("torch", "transformers")}


def contestants(job: Job, threads: int) -> Iterator[Contestant]:
    """Yield everyone who can do a job with so many threads, the limit (a copy of the input) first."""
    yield _copy(job, threads)
    if job.kernel.endswith("pack_4"):
        yield from packing(job, threads)
        return
    yield from _ours(job, threads)
    yield from _onnxruntime(job, threads)
    if optional_packages()["torch"]:
        yield from _torch(job, threads)
    if all(optional_packages().values()) and job.kernel == "table_8":
        yield _ibert(job, threads)


@numba.njit(parallel=True, nogil=True)
def _copy_pieces(source: Any, target: Any, count: int) -> None:
    for piece in numba.prange(count):
        start, stop = source.size * piece // count, source.size * (piece + 1) // count
        target[start:stop] = source[start:stop]


def _near(expected: NDArray[Any], tolerance: float) -> Callable[[Any], str | None]:
    def check(result: Any) -> str | None:
        error = float(np.abs(np.asarray(result, np.float64) - expected).max())
        return f"off by {error:.3g}" if error > tolerance else None

    return check


def _copy(job: Job, threads: int) -> Contestant:
    target_array = np.empty_like(job.source)
    source, flat = job.source.reshape(-1), target_array.reshape(-1)

    def run() -> NDArray[Any]:
        if threads == 1:
            np.copyto(target_array, job.source)
        else:
            _copy_pieces(source, flat, threads)
        return target_array

    return Contestant("np.copyto of the input" if threads == 1 else "copy of the input", run, equal(job.source))


def _ours(job: Job, threads: int) -> Iterator[Contestant]:
    features = target()[2]
    source, width = job.source.reshape(-1), job.source.shape[1]
    for implementation in IMPLEMENTATIONS:
        if implementation.kernel == job.kernel and implementation.features <= features:
            kernel = bind(job, implementation)
            out = np.empty_like(job.expected)

            # Bound as defaults: each contestant keeps its own.
            def run(kernel: BoundKernel = kernel, out: NDArray[Any] = out) -> NDArray[Any]:
                if threads == 1 or not kernel.run_in_pieces(job.bias, source, out.reshape(-1), width, threads):
                    kernel(job.bias, source, out.reshape(-1))
                return out

            yield Contestant(f"qgelu kernel, {implementation.path}", run, equal(job.expected))
    result = np.empty_like(job.expected)
    yield Contestant(
        f"qgelu plan ({selected(job.kernel).path})",
        lambda: job.plan(job.source, bias=job.bias, out=result, threads=threads),
        equal(job.expected),
    )


def _session(
    nodes: list[onnx.NodeProto], source: NDArray[Any], result: NDArray[Any], constants: dict[str, Any], threads: int
) -> Callable[[], NDArray[Any]]:
    """Return a function that runs a graph from x to y between given arrays, without copies."""
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in (source, result)]
    initializers = [onnx.numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph = helper.make_graph(
        nodes,
        "bench",
        [helper.make_tensor_value_info("x", kinds[0], source.shape)],
        [helper.make_tensor_value_info("y", kinds[1], result.shape)],
        initializers,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array, bind_value in (("x", source, binding.bind_input), ("y", result, binding.bind_output)):
        bind_value(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def run() -> NDArray[Any]:
        session.run_with_iobinding(binding)
        return result

    return run


def _onnxruntime(job: Job, threads: int) -> Iterator[Contestant]:
    gelu = helper.make_node("Gelu", ["x"], ["y"])
    run = _session([gelu], job.x, np.empty_like(job.x), {}, threads)
    yield Contestant("ONNX Runtime Gelu, float", run, _near(job.real, 1e-5))
    if job.kernel == "wide":
        return  # the chain to 16 bits is slower than the chain to 8, which says enough
    # Per tensor: ONNX Runtime's per-axis QuantizeLinear is 25 times slower and no fair peer.
    bits = 16 if job.kernel == "table_16" else 8
    code = np.uint16 if bits == 16 else np.uint8
    zero = 0 if job.source.dtype == np.int32 else 1 << (bits - 1)
    constants = {
        "s_x": np.float32(job.scale),
        "z_x": job.source.dtype.type(zero),
        "s_y": np.float32(10.0 / 2**bits),
        "z_y": code(1 << (bits - 4)),
    }
    chain = [
        helper.make_node("DequantizeLinear", ["x", "s_x", "z_x"], ["a"]),
        helper.make_node("Gelu", ["a"], ["b"]),
        helper.make_node("QuantizeLinear", ["b", "s_y", "z_y"], ["y"]),
    ]
    from qgelu.activations import evaluate

    real = evaluate(job.scale * (job.source.astype(np.float64) - zero), "gelu")
    codes = np.clip(real / (10.0 / 2**bits) + (1 << (bits - 4)), 0, (1 << bits) - 1)
    run = _session(chain, job.source, np.empty(job.source.shape, code), constants, threads)
    yield Contestant("ONNX Runtime DQ, Gelu, Q, per tensor", run, _near(codes, 0.51))
    if job.kernel == "table_8":
        inputs = ["x", "s_x", "z_x", "s_s", "z_s"]
        node = helper.make_node("QLinearSigmoid", inputs, ["y"], domain="com.microsoft")
        constants = {**constants, "s_s": np.float32(1 / 256), "z_s": np.uint8(0)}
        constants = {name: constants[name] for name in inputs[1:]}
        sigmoid = np.clip(256.0 / (1.0 + np.exp(-job.x.astype(np.float64))), 0, 255)
        run = _session([node], job.source, np.empty(job.source.shape, np.uint8), constants, threads)
        yield Contestant("ONNX Runtime QLinearSigmoid (a table)", run, _near(sigmoid, 0.51))


def _torch(job: Job, threads: int) -> Iterator[Contestant]:
    import torch

    x = torch.from_numpy(job.x)

    def run_float() -> Any:
        torch.set_num_threads(threads)
        with torch.no_grad():
            return torch.nn.functional.gelu(x).numpy()

    yield Contestant("PyTorch gelu, float", run_float, _near(job.real, 1e-5))
    if job.kernel == "table_8":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch is about to drop quantized tensors
            codes = torch.quantize_per_tensor(x, job.scale, 1 << 7, torch.quint8)

        def run_quantized() -> Any:
            torch.set_num_threads(threads)
            return torch.nn.functional.gelu(codes).int_repr().numpy()

        # It keeps the input's scale and zero point.
        real = np.clip(job.real / job.scale + 128, 0, 255)
        yield Contestant("PyTorch gelu, quint8", run_quantized, _near(real, 1.01))


def _ibert(job: Job, threads: int) -> Contestant:
    import torch
    from transformers.models.ibert.quant_modules import IntGELU

    module = IntGELU(quant_mode=True)
    # Its erf has steps of a quarter at scale 0.01 and is nonsense at the job's own: it needs a fine scale.
    x, scale = torch.from_numpy(job.x), torch.tensor([job.scale / 64])

    def run() -> Any:
        torch.set_num_threads(threads)
        with torch.no_grad():
            return module(x, scale)[0].numpy()

    return Contestant("I-BERT IntGELU (Hugging Face)", run, _near(job.real, 0.1))
