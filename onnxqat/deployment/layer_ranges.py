"""Layers of the float model with the quantization parameters of what they read and make."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxqat.deployment.ranges import TensorRange, tensor_ranges
from onnxqat.graph import query
from onnxqat.graph.layers import LAYERS

ACTIVATIONS = ("Relu", "Clip")
"""Operators that a runtime computes with the layer in front of them, whose result is then the layer's."""


@dataclasses.dataclass(frozen=True)
class QuantizedLayer:
    """A layer with a stored weight, as it stands in the float model.

    Attributes:
        name: of the node; that of its first output where the node has none.
        op_type: Conv, ConvTranspose, Gemm or MatMul.
        data: the range of the activation that it reads; None where that is not quantized.
        weight: the range of its weight.
        weight_shape: as stored.
        group: of a convolution, else 1.
        plain: False for a Gemm with factors or a transposed activation.
        transposed: the Gemm's weight has the output channels first, as Conv has.
        output: name of what it makes, behind a Relu or Clip that alone reads it.
        made: the range of that; None where it is not quantized.
    """

    name: str
    op_type: str
    data: TensorRange | None
    weight: TensorRange
    weight_shape: tuple[int, ...]
    group: int
    plain: bool
    transposed: bool
    output: str
    made: TensorRange | None

    @property
    def channels(self) -> int:
        """Number of output channels."""
        if self.op_type == "ConvTranspose":
            return self.weight_shape[1] * self.group
        first = self.op_type == "Conv" or self.transposed
        return self.weight_shape[0] if first else self.weight_shape[-1]


@dataclasses.dataclass(frozen=True)
class ModelRanges:
    """All that files of ranges say about one model.

    Attributes:
        tensors: activations and weights in graph order.
        layers: those with a quantized weight, in graph order.
    """

    tensors: tuple[TensorRange, ...]
    layers: tuple[QuantizedLayer, ...]

    @property
    def activations(self) -> tuple[TensorRange, ...]:
        """Ranges of activations."""
        return tuple(r for r in self.tensors if r.role == "activation")

    @property
    def weights(self) -> tuple[TensorRange, ...]:
        """Ranges of weights."""
        return tuple(r for r in self.tensors if r.role == "weight")


def model_ranges(train: ir.Model, plain: ir.Model) -> ModelRanges:
    """Ranges of `train` under the names of `plain`, and the layers that they belong to.

    Args:
        train: QDQ model in either form.
        plain: its float form; neither is changed.
    """
    tensors = tensor_ranges(train)
    return ModelRanges(tuple(tensors), tuple(_layers(plain, tensors)))


def _layers(plain: ir.Model, tensors: Sequence[TensorRange]) -> list[QuantizedLayer]:
    known = {r.name: r for r in tensors}
    found = []
    for node in plain.graph:
        if node.domain or node.op_type not in LAYERS:
            continue
        weight = node.inputs[1]
        stored = query.constant_tensor(weight)
        stated = known.get(str(weight.name)) if weight is not None else None
        if stored is None or stated is None or stated.role != "weight":
            continue
        found.append(_layer(node, known, stated, stored.numpy().shape))
    return found


def _layer(
    node: ir.Node, known: Mapping[str, TensorRange], weight: TensorRange, shape: tuple[int, ...]
) -> QuantizedLayer:
    data, made = node.inputs[0], node.outputs[0]
    readers = list(made.consumers())
    if known.get(str(made.name)) is None and len(readers) == 1 and readers[0].op_type in ACTIVATIONS:
        made = readers[0].outputs[0]
    factors = [query.attribute(node, name, 1.0) for name in ("alpha", "beta")]
    return QuantizedLayer(
        name=node.name or str(node.outputs[0].name),
        op_type=node.op_type,
        data=known.get(str(data.name)) if data is not None else None,
        weight=weight,
        weight_shape=shape,
        group=int(query.attribute(node, "group", 1)),
        plain=factors == [1.0, 1.0] and not query.attribute(node, "transA", 0),
        transposed=node.op_type == "Gemm" and bool(query.attribute(node, "transB", 0)),
        output=str(made.name),
        made=known.get(str(made.name)),
    )
