"""Where ONNX Runtime's uint8 x int8 matmuls are not exact: x86 CPUs without VNNI.

There its kernels (MLAS, AVX2 and AVX-512) use PMADDUBSW, which adds the products of two neighbouring codes in int16 and
saturates: 2 * 255 * 127 = 64,770 does not fit. VNNI, SSE4.1's fallbacks in 32 bits and AArch64 add in int32. Codes and
weights whose product is at most 32,767 / 2 never saturate: 8-bit codes with 7-bit weights, or 7-bit codes with 8-bit
weights.
"""

from collections.abc import Mapping
from typing import Final, Literal, get_args

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from qgelu.errors import QGeluError
from qgelu.kernels.cpu import host, lacks_vnni

TargetCpu = Literal["host", "vnni", "no-vnni"]
TARGET_CPUS: Final[tuple[str, ...]] = get_args(TargetCpu)

_LARGEST_SUM: Final = (1 << 15) - 1
_WEIGHT_TYPES: Final = (TensorProto.INT8, TensorProto.INT4)


def check_target_cpu(target_cpu: str) -> None:
    """Raise QGeluError unless the CPU is one of :data:`TARGET_CPUS`."""
    if target_cpu not in TARGET_CPUS:
        raise QGeluError(f"target CPU {target_cpu!r} is not known: use one of {', '.join(TARGET_CPUS)}")


def _can_saturate(weight: TensorProto, bits: int) -> bool:
    try:
        largest = int(np.abs(numpy_helper.to_array(weight).astype(np.int64)).max(initial=0))
    except (TypeError, ValueError) as error:
        raise QGeluError(f"tensor {weight.name!r} does not fit its shape {list(weight.dims)}: {error}") from None
    return 2 * ((1 << bits) - 1) * largest > _LARGEST_SUM


def saturating_blocks(model: onnx.ModelProto, blocks: Mapping[str, int]) -> tuple[str, ...]:
    """Return the FFNs of a quantized model with a matmul in which two products can leave int16.

    Parameters
    ----------
    model : ModelProto
    blocks : mapping of str to int
        Bits of the uint8 codes by the site's name, FFNs only.
    """
    found = set()
    for tensor in model.graph.initializer:
        if tensor.data_type not in _WEIGHT_TYPES or len(tensor.dims) != 2:
            continue
        for name, bits in blocks.items():
            if name not in found and tensor.name.startswith(f"qgelu/{name}/") and _can_saturate(tensor, bits):
                found.add(name)
    return tuple(name for name in blocks if name in found)


def pair_saturation_notes(model: onnx.ModelProto, blocks: Mapping[str, int], target_cpu: str) -> tuple[str, ...]:
    """Return what a user must know about a CPU without VNNI, one line; nothing if it does not matter.

    Parameters
    ----------
    model, blocks
        As for :func:`saturating_blocks`.
    target_cpu : str
        "host" (the one that this runs on), "vnni" or "no-vnni".
    """
    if target_cpu == "vnni" or (target_cpu == "host" and not lacks_vnni(*host())):
        return ()
    count = len(saturating_blocks(model, blocks))
    if count == 0:
        return ()
    which = "this CPU has" if target_cpu == "host" else "the target CPU has"
    what = "1 FFN" if count == 1 else f"{count} FFNs"
    return (
        f"{which} no VNNI: ONNX Runtime adds pairs of products in 16 bits there, which can saturate in {what}; "
        "7-bit weights (--weight-bits 7) or activations of 7 bits (--bits 7) cannot",
    )
