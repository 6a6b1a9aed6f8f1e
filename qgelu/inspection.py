"""The sites of a model."""

from os import PathLike

import onnx

from qgelu.graph.findings import Site
from qgelu.graph.normal_form import normal_form
from qgelu.graph.sites import find_sites
from qgelu.pipeline import as_model


def inspect(model: str | PathLike[str] | onnx.ModelProto) -> list[Site]:
    """Return every activation of a model: its name, variant, tensors and scope.

    Parameters
    ----------
    model : path or ModelProto

    Raises
    ------
    QGeluError
        If the model cannot be read.
    """
    return list(find_sites(normal_form(as_model(model))).sites)
