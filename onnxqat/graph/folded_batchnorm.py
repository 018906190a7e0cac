"""A layer whose weight and bias the graph computes from those in front of folding, and from a BatchNormalization.

What is quantized is the folded weight, on whatever grid the hardware has, and what trains are the factors of it::

    factor = gamma / Sqrt(variance + epsilon)
    y = Conv(x, quantized(w * Reshape(factor)), quantized(beta - mean * factor))

That is arithmetic of constants, which every runtime does in float32 to the same bits: folding it, at deployment, stores
the results and changes nothing else. A bias on the grid of the accumulator is rounded in the graph as well, by
``Round(bias / s) * s`` with ``s`` the product of the two scales, since QuantizeLinear has no int32.

The layer carries the note ``onnxqat.batch_norm``, by which the bridge knows what to normalize by in training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.graph import qdq, query, walk
from onnxqat.graph.batchnorm import KEPT
from onnxqat.graph.quantizer import Quantizer

COMPUTED = "computed"  # what KEPT says on such a layer
MOMENTUM = "onnxqat.batch_norm_momentum"  # on such a layer: that of the BatchNormalization
DEFAULT_MOMENTUM = 0.9
SMALLEST_FACTOR = 1e-15  # that is divided by: its square is still a normal number


@dataclasses.dataclass(frozen=True, eq=False)
class ComputedFold:
    """One such layer.

    Attributes:
        layer: Conv, ConvTranspose or Gemm.
        weight: in front of folding.
        gamma, beta, mean, variance: float32 (C,) constants.
        epsilon: float32 constant, one value.
        momentum: share of the old statistics that stays, as of ONNX.
        folded_weight: input of the weight's quantizer.
        folded_bias: beta - mean * factor, in front of any rounding.
        arithmetic: the nodes that compute the two, in order.
        rounding: the nodes that put the bias on the grid of the accumulator; empty where that is not done.
    """

    layer: ir.Node
    weight: ir.Value
    gamma: ir.Value
    beta: ir.Value
    mean: ir.Value
    variance: ir.Value
    epsilon: ir.Value
    momentum: float
    folded_weight: ir.Value
    folded_bias: ir.Value
    arithmetic: tuple[ir.Node, ...]
    rounding: tuple[ir.Node, ...]

    def constants(self) -> tuple[ir.Value, ...]:
        """Constants that weight and bias are computed from: weight, gamma, beta, mean, variance, epsilon."""
        return self.weight, self.gamma, self.beta, self.mean, self.variance, self.epsilon

    def folded(self) -> tuple[np.ndarray, np.ndarray]:
        """Weight and bias as runtimes compute them, float32."""
        weight, *vectors = (np.asarray(query.constant_array(value), np.float32) for value in self.constants())
        reshape = next(node for node in self.arithmetic if node.op_type == "Reshape")
        shape = np.asarray(query.constant_array(reshape.inputs[1]))
        return fold(weight, vectors, tuple(shape.tolist()))


def fold(weight: np.ndarray, vectors: Sequence[np.ndarray], shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The arithmetic of the nodes in float32.

    Args:
        weight: in front of folding.
        vectors: gamma, beta, mean, variance and epsilon.
        shape: of the factor beside the weight.
    """
    gamma, beta, mean, variance, epsilon = vectors
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(variance + epsilon)
        return weight * factor.reshape(shape), beta - mean * factor


def is_computed(layer: ir.Node) -> bool:
    """Check whether `layer` carries the note."""
    return layer.metadata_props.get(KEPT) == COMPUTED


def find(layer: ir.Node) -> ComputedFold | None:
    """Match the arithmetic in front of `layer`; None without the note, and where another tool has changed it."""
    if not is_computed(layer) or len(layer.inputs) < 3:
        return None
    scaled = _made_by(_unquantized(layer.inputs[1]), "Mul")
    rounding, bias = _unrounded(layer.inputs[2])
    shifted = _made_by(_unquantized(bias), "Sub")
    reshape = _made_by(None if scaled is None else scaled.inputs[1], "Reshape")
    factor = _made_by(None if reshape is None else reshape.inputs[0], "Div")
    deviation = _made_by(None if factor is None else factor.inputs[1], "Sqrt")
    widened = _made_by(None if deviation is None else deviation.inputs[0], "Add")
    centre = _made_by(None if shifted is None else shifted.inputs[1], "Mul")
    nodes = (widened, deviation, factor, reshape, scaled, centre, shifted)
    if any(node is None for node in nodes):
        return None
    made = [node for node in nodes if node is not None]
    widened, deviation, factor, reshape, scaled, centre, shifted = made
    found = scaled.inputs[0], factor.inputs[0], shifted.inputs[0], centre.inputs[0], *widened.inputs
    if any(query.constant_tensor(v) is None for v in found) or centre.inputs[1] is not factor.outputs[0]:
        return None
    weight, gamma, beta, mean, variance, epsilon = (value for value in found if value is not None)
    momentum = layer.metadata_props.get(MOMENTUM, "")
    return ComputedFold(
        layer,
        weight,
        gamma,
        beta,
        mean,
        variance,
        epsilon,
        float(momentum) if _is_number(momentum) else DEFAULT_MOMENTUM,
        scaled.outputs[0],
        shifted.outputs[0],
        tuple(made),
        rounding,
    )


def every(model: ir.Model) -> list[ComputedFold]:
    """All of them, in graph order."""
    return [found for node in walk.nodes(model) if (found := find(node)) is not None]


def held(quantizer: Quantizer) -> np.ndarray | None:
    """Values of the constant, or of the folded weight or bias, that `quantizer` reads; None for anything else."""
    found = query.constant_array(quantizer.input)
    if found is not None or quantizer.role == "activation":
        return found
    for node, _ in quantizer.uses:
        fold = find(node)
        if fold is not None:
            weight, bias = fold.folded()
            return weight if quantizer.input is fold.folded_weight else bias
    return None


def _is_number(text: str) -> bool:
    try:
        return 0.0 <= float(text) <= 1.0
    except ValueError:
        return False


def _made_by(value: ir.Value | None, operator: str) -> ir.Node | None:
    node = query.producer(value)
    return node if node is not None and node.op_type == operator and not node.domain else None


def _unquantized(value: ir.Value | None) -> ir.Value | None:
    """Input of the quantizer that makes `value`; `value` itself if none does."""
    node = query.producer(value)
    while node is not None and (qdq.is_qdq(node) or node.op_type == "Clip"):
        value = node.inputs[0]
        node = query.producer(value)
    return value


def _unrounded(value: ir.Value | None) -> tuple[tuple[ir.Node, ...], ir.Value | None]:
    """Return the nodes that round a bias to a grid, and their input."""
    multiplied = _made_by(value, "Mul")
    rounded = _made_by(None if multiplied is None else multiplied.inputs[0], "Round")
    divided = _made_by(None if rounded is None else rounded.inputs[0], "Div")
    if multiplied is None or rounded is None or divided is None or divided.inputs[1] is not multiplied.inputs[1]:
        return (), value
    scale = _made_by(divided.inputs[1], "Mul")
    return (() if scale is None else (scale, divided, rounded, multiplied)), divided.inputs[0]
