"""What a model takes, and whether data fits it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibration.errors import CalibrationError

if TYPE_CHECKING:
    import onnx

Feed = dict[str, NDArray[Any]]
"""One batch: an array for each input of the model."""


@dataclass(frozen=True)
class InputSpec:
    """One input of a model.

    Parameters
    ----------
    name : str
        The input's name.
    dtype : numpy.dtype
        Boolean, integer or floating point.
    shape : tuple of int or None, or None
        None stands for a dynamic dimension; instead of the tuple, for a rank that is not declared.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None


def input_specs(model: "onnx.ModelProto") -> tuple[InputSpec, ...]:
    """Return the inputs that a model must be given: those that no initializer fills.

    Raises
    ------
    CalibrationError
        If an input is not a tensor of a type that NumPy has.
    """
    import onnx

    filled = {tensor.name for tensor in model.graph.initializer}
    filled |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    specs = []
    for value in model.graph.input:
        if value.name in filled:
            continue
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.elem_type:
            raise CalibrationError(f"model input {value.name!r} is not a tensor: only tensors can be fed")
        tensor = value.type.tensor_type
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if dtype.kind not in "biuf":
            type_name = onnx.TensorProto.DataType.Name(tensor.elem_type)
            raise CalibrationError(
                f"model input {value.name!r} is of type {type_name}, which NumPy does not have: give it a float32 input"
            )
        shape = None
        if tensor.HasField("shape"):
            shape = tuple(
                dimension.dim_value if dimension.HasField("dim_value") else None for dimension in tensor.shape.dim
            )
        specs.append(InputSpec(value.name, dtype, shape))
    return tuple(specs)


def check_feed(arrays: Mapping[str, Any], inputs: Sequence[InputSpec], where: str, *, any_batch: bool = False) -> Feed:
    """Return the arrays that the model takes, checked and cast.

    Cast without a word: what keeps every value (integers of another width, whole floats to integers, 0 and 1
    to booleans) and what loses only digits (float64 or integers to float32). Everything else is refused.

    Parameters
    ----------
    arrays : mapping of str to array_like
        One for each input.
    inputs : sequence of InputSpec
        What the model takes.
    where : str
        The file or batch, for messages.
    any_batch : bool
        Whether the first axis may be longer or shorter than the model's.

    Raises
    ------
    CalibrationError
        If an array is missing, unknown, of a wrong rank, dimension or type, or holds NaN or infinity.
    """
    takes = ", ".join(spec.name for spec in inputs)
    known = {spec.name for spec in inputs}
    for name in arrays:
        if name not in known:
            raise CalibrationError(f"{where}: {name!r} is not an input of the model: leave it out (it takes {takes})")
    feed = {}
    for spec in inputs:
        if spec.name not in arrays:
            raise CalibrationError(f"{where}: has no {spec.name!r}: give an array for each input ({takes})")
        what = f"{where}: {spec.name!r}"
        try:
            array = np.asarray(arrays[spec.name])
        except ValueError:
            raise CalibrationError(f"{what} is ragged: give an array, padded to one length") from None
        if array.dtype.kind not in "biuf":
            raise CalibrationError(f"{what} is of dtype {array.dtype}: give numbers ({spec.dtype})")
        _check_shape(array.shape, spec, what, any_batch=any_batch)
        feed[spec.name] = _cast(array, spec.dtype, what)
    return feed


def _check_shape(shape: tuple[int, ...], spec: InputSpec, what: str, *, any_batch: bool) -> None:
    if spec.shape is None:
        return
    declared = "[" + ", ".join("?" if size is None else str(size) for size in spec.shape) + "]"
    if len(shape) != len(spec.shape):
        raise CalibrationError(
            f"{what} has {len(shape)} axes {list(shape)}, and the model takes {len(spec.shape)}: {declared}"
        )
    for axis, (given, wanted) in enumerate(zip(shape, spec.shape, strict=True)):
        if wanted is not None and given != wanted and not (any_batch and axis == 0):
            raise CalibrationError(
                f"{what} has shape {list(shape)}, and the model takes {declared}: make axis {axis} {wanted} long"
            )


def _cast(array: NDArray[Any], dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    if array.dtype.kind == "f":
        bad = array.size - int(np.count_nonzero(np.isfinite(array)))
        if bad:
            raise CalibrationError(f"{what} holds {bad} values that are NaN or infinite: clean the data")
    if array.dtype == dtype or array.size == 0:
        return np.ascontiguousarray(array, dtype=dtype) if array.ndim else array.astype(dtype)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            cast = array.astype(dtype)
        if not np.isfinite(cast).all():
            raise CalibrationError(f"{what} holds values that are too large for {dtype}: scale the data")
        return cast
    if array.dtype.kind == "f" and (array != np.floor(array)).any():
        raise CalibrationError(f"{what} holds fractions, and the model takes {dtype}: give whole numbers")
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if int(array.min()) < low or int(array.max()) > high:
        raise CalibrationError(f"{what} holds values outside {low} to {high}, the range of {dtype}")
    return array.astype(dtype)
