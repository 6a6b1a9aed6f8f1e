"""Plans as JSON. What is read back is the integers; the certificate is proved again, never trusted."""

import base64
import binascii
import json
import zlib
from dataclasses import asdict, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qgelu.activations import canonical_name, check_alpha
from qgelu.errors import QGeluError
from qgelu.ibert_plan import IBertParameters, ibert_plan_from_parameters
from qgelu.narrow import NarrowParameters
from qgelu.plan import Plan
from qgelu.polynomial import FORMATS, TailPolynomial, family_of
from qgelu.polynomial_plan import polynomial_plan_from_parameters
from qgelu.qparams import AccumulatorParams, QParams
from qgelu.table_plan import TablePlan, check_per_tensor, table_plan_from_table
from qgelu.wide import WideParameters

FORMAT: Final = "qgelu.plan"
VERSION: Final = 1

_LONGEST_LISTED: Final = 256
"""Entries of a table up to which it is listed in every file, for people to read."""


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _params_to_dict(params: QParams | AccumulatorParams) -> dict[str, Any]:
    return {field.name: _plain(getattr(params, field.name)) for field in fields(params)}


def _packed_table(table: NDArray[Any]) -> dict[str, str]:
    """Return a table's differences, little-endian int32, in zlib and base64: 65,536 entries take about 2 KB."""
    steps = np.diff(table.astype(np.int64), prepend=0).astype("<i4")
    return {"zlib": base64.b64encode(zlib.compress(steps.tobytes(), 9)).decode()}


def _unpacked_table(packed: dict[str, Any], entries: int) -> NDArray[np.int64]:
    size = 4 * entries
    try:
        decoder = zlib.decompressobj()
        content = decoder.decompress(base64.b64decode(packed["zlib"], validate=True), size + 1)
    except (binascii.Error, zlib.error) as error:
        raise QGeluError(f"plan: table cannot be unpacked: {error}") from None
    if len(content) != size:
        raise QGeluError(f"plan: table does not have {entries} entries")
    return np.cumsum(np.frombuffer(content, "<i4"), dtype=np.int64)


def plan_to_dict(plan: Plan, *, packed: bool = False) -> dict[str, Any]:
    """Return a plan as JSON values (format ``qgelu.plan``, version 1).

    Parameters
    ----------
    packed : bool
        Whether tables of 65,536 entries are packed instead of listed: for files.
    """
    parameters = plan.parameters()
    if packed and isinstance(plan, TablePlan) and plan.table.size > _LONGEST_LISTED:
        parameters = {"table": _packed_table(plan.table)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": plan.kind,
        "activation": plan.activation,
        "alpha": plan.alpha,
        "input": _params_to_dict(plan.input),
        "output": _params_to_dict(plan.output),
        "parameters": parameters,
        "certificate": asdict(plan.certificate),
    }


def plan_to_json(plan: Plan) -> str:
    """Return a plan as JSON text (format ``qgelu.plan``, version 1)."""
    return json.dumps(plan_to_dict(plan))


def _integers(value: Any, name: str, dtype: str, ndim: int) -> NDArray[Any]:
    try:
        wide = np.array(value)
    except ValueError:
        raise QGeluError(f"plan: {name} is ragged") from None
    if wide.dtype.kind not in "iu" or wide.ndim != ndim or wide.size == 0:
        raise QGeluError(f"plan: {name} must be a non-empty {ndim}-D array of whole numbers")
    info = np.iinfo(dtype)
    if wide.min() < info.min or wide.max() > info.max:
        raise QGeluError(f"plan: {name} leaves {dtype}")
    array = wide.astype(dtype)
    array.setflags(write=False)
    return array


def _read_polynomial(
    source: QParams | AccumulatorParams, output: QParams, name: Any, alpha: float, stored: dict[str, Any]
) -> Plan:
    tail_values = stored["tail"]
    lanes = tail_values["lanes"]
    if type(lanes) is not int or lanes not in FORMATS or tail_values["family"] != family_of(name):
        raise QGeluError(f"plan: no tail of family {tail_values['family']!r} in {lanes} lanes for {name}")
    coefficients = _integers(tail_values["coefficients"], "tail coefficients", "int32", 2)
    form = FORMATS[lanes]
    if coefficients.shape[0] != 1 << form.segment_bits:
        raise QGeluError(f"plan: tail has {coefficients.shape[0]} segments, not {1 << form.segment_bits}")
    cutoff, gain = float(tail_values["cutoff"]), float(tail_values["gain"])
    if not (0.0 < cutoff < 1e3 and 0.0 < gain < 1e9):
        raise QGeluError("plan: tail cutoff or gain out of range")
    tail = TailPolynomial(family_of(name), lanes, cutoff, gain, coefficients)
    kind: type[NarrowParameters] | type[WideParameters] = NarrowParameters if lanes == 16 else WideParameters
    channels = max(np.size(source.scale), np.size(output.scale))
    arrays = {}
    for field in fields(kind):
        if field.name == "coefficients":
            continue
        arrays[field.name] = _integers(
            stored[field.name], field.name, "int64" if field.name == "offset" and lanes == 32 else "int32", 1
        )
        if arrays[field.name].size != channels:
            raise QGeluError(f"plan: {field.name} has {arrays[field.name].size} channels, not {channels}")
    return polynomial_plan_from_parameters(source, output, name, alpha, kind(**arrays, coefficients=coefficients), tail)


def _read_ibert(
    source: QParams | AccumulatorParams, output: QParams, name: Any, alpha: float, stored: dict[str, Any]
) -> Plan:
    names = [field.name for field in fields(IBertParameters)]
    integers = IBertParameters(**{key: int(_integers(stored[key], key, "int32", 0)) for key in names})
    if isinstance(source, QParams) and not source.per_channel:
        zero = int(source.zero_point)
        values = (source.qmin - zero, source.qmax - zero)
    else:
        values = (-integers.limit, integers.limit)
    return ibert_plan_from_parameters(source, output, name, alpha, integers, values)


def plan_from_json(text: str) -> Plan:
    """Return the plan in JSON text, its certificate proved anew.

    Raises
    ------
    QGeluError
        If the text is not a plan of this version, or its integers are not usable.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise QGeluError("not a qgelu plan: its 'format' is not 'qgelu.plan'")
        if data["version"] != VERSION:
            raise QGeluError(f"plan version {data['version']!r} is not known: this package reads {VERSION}")
        name, alpha = canonical_name(data["activation"]), check_alpha(data["alpha"])
        output = QParams(**data["output"])
        source: QParams | AccumulatorParams
        source = QParams(**data["input"]) if "bits" in data["input"] else AccumulatorParams(**data["input"])
        stored = data["parameters"]
        if data["kind"] == "table" and isinstance(source, QParams):
            check_per_tensor(source, output)
            entries = 1 << (8 * source.dtype.itemsize)
            listed = stored["table"]
            if isinstance(listed, dict):
                listed = _unpacked_table(listed, entries)
            table = _integers(listed, "table", output.dtype.name, 1)
            if table.size != entries:
                raise QGeluError(f"plan: table has {table.size} entries")
            if table.min() < output.qmin or table.max() > output.qmax:
                raise QGeluError(f"plan: table leaves the codes {output.qmin} to {output.qmax}")
            return table_plan_from_table(source, output, name, alpha, table)
        if data["kind"] == "polynomial":
            return _read_polynomial(source, output, name, alpha, stored)
        if data["kind"] == "ibert":
            return _read_ibert(source, output, name, alpha, stored)
    except QGeluError:
        raise
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise QGeluError(f"plan is damaged: {type(error).__name__}: {error}") from None
    except (ValueError, RecursionError) as error:  # JSON's own errors, undecodable bytes, text for a number
        raise QGeluError(f"not a qgelu plan: {error}") from None
    raise QGeluError(f"plan kind {data['kind']!r} does not go with its input, or is not known")
