"""A quantizer of a graph: QuantizeLinear, Clip where the grid is narrower than its type, and DequantizeLinear."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxqat.graph.notes import PRESCRIBED
from onnxqat.types import QParams, Role


@dataclasses.dataclass(eq=False)
class Quantizer:
    """One quantizer of a graph.

    Attributes:
        input: the float value that is quantized; for a stored quantizer the integer constant.
        outputs: the dequantized values, one a DequantizeLinear (some tools write one a consumer).
        quantize: QuantizeLinear, None for stored integers.
        clip: Clip between the two on grids narrower than their storage type.
        dequantize: the DequantizeLinear nodes.
        qparams: grid, scale and zero point, as they are in the file.
        role: what the consumers use it for.
        derived_from: for a bias, the quantizers of the activation and of the weight whose scales it multiplies.
    """

    input: ir.Value
    outputs: tuple[ir.Value, ...]
    quantize: ir.Node | None
    clip: ir.Node | None
    dequantize: tuple[ir.Node, ...]
    qparams: QParams
    role: Role = "activation"
    derived_from: tuple[Quantizer, Quantizer] | None = None

    @property
    def stored(self) -> bool:
        """True if the file holds integers (deploy form) instead of a float tensor."""
        return self.quantize is None

    @property
    def prescribed(self) -> bool:
        """True if the target has the parameters built in, so that training leaves them unchanged."""
        return any(PRESCRIBED in node.metadata_props for node in self.nodes)

    @property
    def tensor(self) -> str:
        """Name of the float tensor; for stored integers the name of the dequantized result."""
        return str(self.outputs[0].name if self.stored else self.input.name)

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that make up the quantizer, in graph order."""
        return tuple(n for n in (self.quantize, self.clip, *self.dequantize) if n is not None)

    @property
    def readers(self) -> list[ir.Node]:
        """Nodes that read the dequantized values."""
        return [node for value in self.outputs for node in value.consumers()]

    @property
    def uses(self) -> list[tuple[ir.Node, int]]:
        """Inputs that read the dequantized values: node and index."""
        return [use for value in self.outputs for use in value.uses()]

    @property
    def scales(self) -> tuple[ir.Value, ...]:
        """The constant scale values, each once (Q and DQ may hold copies)."""
        return self._parameters(1)

    @property
    def zero_points(self) -> tuple[ir.Value, ...]:
        """The constant zero point values, each once; empty where they are omitted."""
        return self._parameters(2)

    def _parameters(self, index: int) -> tuple[ir.Value, ...]:
        ends = [n for n in self.nodes if n is not self.clip]
        found = {id(v): v for n in ends if len(n.inputs) > index and (v := n.inputs[index]) is not None}
        return tuple(found.values())
