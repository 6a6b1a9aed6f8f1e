"""What the finder reports: activations, the linear layers around them, and near misses."""

from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

from qgelu.activations import Activation
from qgelu.qparams import QParams


@dataclass(frozen=True, eq=False)
class Linear:
    """``input @ weight + bias``, from MatMul (and Add) or Gemm.

    Nodes are identified by the name of their first output.
    """

    input: str
    """Float tensor that enters the matmul."""
    output: str
    """Tensor after the bias; the matmul's own output if there is none."""
    weight: NDArray[Any]
    """[K, N], float32 (float64 if stored so); Gemm's transB and alpha are folded in. Read only."""
    bias: NDArray[Any] | None
    """[N]; Gemm's beta is folded in. Read only."""
    weight_name: str
    """The initializer or constant that the weight came from: for messages, and to see tied weights."""
    node_outputs: tuple[str, ...]
    """The nodes this consists of, in topological order."""


@dataclass(frozen=True, eq=False)
class Ffn:
    """Linear layer, activation, linear layer; shape-only nodes in between keep the last axis as it is."""

    first: Linear
    second: Linear
    before: tuple[str, ...]
    """Shape-only nodes from ``first.output`` to the activation's input, in order."""
    after: tuple[str, ...]
    """Shape-only nodes from the activation's output to ``second.input``, in order."""


@dataclass(frozen=True, eq=False)
class Codes:
    """A tensor of codes in a model that is quantized there already, per tensor."""

    tensor: str
    params: QParams


@dataclass(frozen=True, eq=False)
class Site:
    """One occurrence of an activation: ``output = f(input + bias)``.

    ``bias`` is None except for the fused nodes that add one themselves (BiasGelu, FastGelu with a bias);
    it is included in ``ffn.first.bias`` where there is an ``ffn``.
    """

    name: str
    """Unique and stable: name of the node that makes the output, or the output tensor if that has none."""
    activation: Activation
    alpha: float
    """Slope of quick_gelu; 1.702 for the others, which do not use it."""
    input: str
    output: str
    scope: Literal["ffn", "activation"]
    reason: str
    """Empty for scope ffn, else why it is only an activation."""
    region: tuple[str, ...]
    """First outputs of the nodes that compute f, in topological order; others may use them too."""
    ffn: Ffn | None = None
    bias: NDArray[Any] | None = None
    element_type: int | None = None
    """ONNX element type of input and output; None if it is not known."""
    shape: tuple[int | str | None, ...] | None = None
    """Of the input: sizes, names of symbolic sizes, None where nothing is known."""
    input_codes: Codes | None = None
    """What the input is dequantized from, if it is."""
    output_codes: Codes | None = None
    """What the output is quantized to, if nothing else reads it."""
    subgraph: str = ""
    """Which If branch, Loop body or Scan body it is in, in words; empty in the main graph."""

    def codes_with(self, bits: int) -> tuple[Codes | None, Codes | None]:
        """Return the model's own codes before and after the activation that have so many bits."""
        before, after = (
            codes if codes is not None and codes.params.bits == bits else None
            for codes in (self.input_codes, self.output_codes)
        )
        return before, after


@dataclass(frozen=True)
class NearMiss:
    """Something like an activation that was left alone: the node it was seen from, and why."""

    anchor: str
    reason: str


@dataclass(frozen=True)
class Findings:
    """All sites and near misses of a model, in topological order; the main graph first, then what is inside it."""

    sites: tuple[Site, ...]
    near_misses: tuple[NearMiss, ...]
