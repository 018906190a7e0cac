"""Quantization parameters under the names that the float model has, for tools that quantize by themselves."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxqat.graph import qdq
from onnxqat.passes._forms import float_name
from onnxqat.types import STORAGE, FloatArray, IntArray, QParams, Role


@dataclasses.dataclass(frozen=True)
class TensorRange:
    """One tensor of the float model.

    Attributes:
        name: its name there.
        role: what it is to its consumers.
        qparams: its parameters.
    """

    name: str
    role: Role
    qparams: QParams

    @property
    def signed(self) -> bool:
        """Check whether its storage type has negative codes."""
        return self.qparams.qtype.signed

    @property
    def bits(self) -> int:
        """Width of its storage type, or of its grid where that is narrower."""
        return self.qparams.qtype.bits

    @property
    def scales(self) -> FloatArray:
        """Scales as a vector, one per channel or a single one."""
        return np.atleast_1d(self.qparams.scale).astype(np.float32)

    @property
    def zero_points(self) -> IntArray:
        """Zero points as a vector of the same length."""
        return np.broadcast_to(np.atleast_1d(self.qparams.zero_point), self.scales.shape).astype(np.int64)

    @property
    def unsigned_offsets(self) -> IntArray:
        """Offsets, a vector like :attr:`scales`: value = (unsigned code 0..2**bits-1 + offset) * scale."""
        low = -(2 ** (self.bits - 1)) if self.signed else 0
        found: IntArray = low - self.zero_points
        return found

    @property
    def ends(self) -> tuple[FloatArray, FloatArray]:
        """Smallest and largest value of the grid, by channel."""
        qtype = self.qparams.qtype
        low, high = (((code - self.zero_points) * self.scales) for code in (qtype.quant_min, qtype.quant_max))
        return low.astype(np.float32), high.astype(np.float32)


def tensor_ranges(train: ir.Model) -> list[TensorRange]:
    """Activations and weights of the main graph in graph order, each name once; biases follow from the two.

    Left out: float8 grids and blocks, which the vendors' files have no words for.

    Args:
        train: QDQ model in either form.
    """
    found: dict[str, TensorRange] = {}
    for quantizer in qdq.quantizers(train):
        if quantizer.role == "bias" or quantizer.qparams.qtype.storage not in STORAGE:
            continue
        name = next((str(v.name) for v in quantizer.outputs if v.is_graph_output()), "")
        if not name:
            name = float_name(quantizer) if quantizer.stored else str(quantizer.input.name)
        found.setdefault(name, TensorRange(name, quantizer.role, quantizer.qparams))
    return list(found.values())
