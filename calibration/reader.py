"""Running the part of a model that given tensors need, and reading their values."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from calibration.errors import CalibrationError
from calibration.inputs import Feed

if TYPE_CHECKING:
    import onnx

Values = dict[str, list[NDArray[Any]]]
"""By tensor, its value; inside subgraphs, one for each branch or iteration that computed it."""


def tensor_reader(
    model: "onnx.ModelProto", tensors: Sequence[str], folder: Path, threads: int | None
) -> Callable[[Feed], Values]:
    """Return a function from a feed to the values of results of nodes, subgraphs included.

    Parameters
    ----------
    model : ModelProto
        Its external data loaded; tensors have unique names, in subgraphs too.
    tensors : sequence of str
        Each computed by a node, or an input of a subgraph.
    folder : Path
        Where a model beyond protobuf's 2 GB can be written, and stays.
    threads : int or None
        ONNX Runtime's; None for its own choice.

    Raises
    ------
    CalibrationError
        If a tensor cannot be read, or ONNX Runtime cannot load the model. The function raises what ONNX Runtime does.
    """
    if not tensors:
        return lambda feed: {}
    import onnxruntime

    from calibration.probe import holds_bfloat16, probe_model, serialize

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors reach the user as exceptions, once
    # Plans of memory are kept for each new shape of input: they would pile up.
    options.enable_mem_pattern = False
    if threads is not None:
        options.intra_op_num_threads = threads

    def load(as_float: Collection[str]) -> tuple[Any, Any]:
        probe = probe_model(model, tensors, as_float)
        content = serialize(probe.model, model, folder)
        try:
            return probe, onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's have no common base
            reason = one_line(error)
            if "NOT_IMPLEMENTED" in reason and holds_bfloat16(model):
                reason = f"it has no such kernels for bfloat16 on CPUs: convert the model to float32 first ({reason})"
            raise CalibrationError(f"ONNX Runtime cannot load the model: {reason}") from None

    probe, session = load(())
    # NumPy has no bfloat16.
    unreadable = [
        name for name, value in zip(tensors, session.get_outputs(), strict=True) if value.type == "tensor(bfloat16)"
    ]
    if unreadable:
        probe, session = load(unreadable)
    taken = {value.name for value in session.get_inputs()}

    def read(feed: Feed) -> Values:
        results = session.run(list(probe.outputs), {name: array for name, array in feed.items() if name in taken})
        values: Values = {}
        for name, result in zip(tensors, results, strict=True):
            handed_out = probe.handed_out.get(name)
            if handed_out is None:
                values[name] = [result]
                continue
            entries = list(result)
            for _ in range(handed_out.stacked):
                entries = [part for entry in entries for part in entry]
            values[name] = entries
        return values

    return read


def one_line(error: Exception) -> str:
    """Return an exception's message as part of one line."""
    return " ".join(str(error).split())[:400]
