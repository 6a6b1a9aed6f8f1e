"""FFNs at widths that no executor takes: MatMulInteger multiplies 8-bit codes.

What 9 to 16 bits would give is simulated in float: for reports, where it is called so, never for files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from qgelu.errors import QGeluError
from qgelu.ffn import FloatFfn, as_channels
from qgelu.ffn_search import search_block
from qgelu.graph.editor import GraphEditor
from qgelu.graph.findings import Site
from qgelu.graph.rewrite_simulated import rewrite_simulated_ffn

if TYPE_CHECKING:
    from calibration import Calibration


@dataclass(frozen=True)
class SimulatedModel:
    """A model with simulated FFNs.

    Attributes
    ----------
    model : ModelProto
    simulated : tuple of str
        Sites; the others are in float.
    """

    model: onnx.ModelProto
    simulated: tuple[str, ...]


def simulate_ffns(
    model: onnx.ModelProto, sites: Sequence[Site], statistics: "Calibration", bits: int
) -> SimulatedModel:
    """Return a model whose FFNs round to codes of so many bits, in float arithmetic.

    Parameters
    ----------
    model : ModelProto
        Float model, prepared: the sites are of this very one.
    sites : sequence of Site
    statistics : Calibration
    bits : int
        2 to 16.
    """
    editor = GraphEditor(model)
    done: list[str] = []
    taken: set[str] = set()
    for site in sites:
        ffn = site.ffn
        if ffn is None or not taken.isdisjoint(ffn.first.node_outputs):
            continue
        linears = (ffn.first.weight, ffn.first.bias, ffn.second.weight, ffn.second.bias)
        block = FloatFfn(*linears, site.activation, site.alpha)
        try:
            found = search_block(block, statistics.tensors[ffn.first.input], statistics.tensors[site.output], bits)
            element_type = site.element_type or onnx.TensorProto.FLOAT
            rewrite_simulated_ffn(
                editor, site, ffn, found.input, as_channels(found.output), found.first, found.second, element_type
            )
        except QGeluError:
            continue
        done.append(site.name)
        taken.update(ffn.second.node_outputs)
    return SimulatedModel(editor.finish(), tuple(done))
