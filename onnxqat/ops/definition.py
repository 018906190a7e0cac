"""Definition of one operator: a row of the table."""

from __future__ import annotations

import dataclasses
from typing import Literal

InputRole = Literal["data", "weight", "bias", "parameter"]


@dataclasses.dataclass(frozen=True)
class OpDef:
    """Properties of an operator that hold for every backend.

    Attributes:
        name: ONNX operator type.
        since: oldest schema version whose semantics the lowering implements.
        reviewed: newest schema version (`since_version`) that somebody has read; a test fails when onnx has a newer one.
        inputs: role of each input, the last one repeated for variadic operators. ``data``: a float tensor that may
            carry Q/DQ; ``weight``: data that is usually constant; ``bias``: added to the accumulator;
            ``parameter``: shapes, indices, axes, bounds, masks: never quantized.
        domain: operator domain, "" for ai.onnx.
        passthrough: every output element is an input element (or 0), so that the output lies on the input's grid.
        weight_axis: output-channel axis of the weight, None where there is no weight; ``"gemm"`` depends on transB.
        output_range: smallest and largest value that the output can take, whatever the input.
        family: file name in ``bridge/lowering/``; filled in by the lookup.
    """

    name: str
    since: int
    reviewed: int
    inputs: tuple[InputRole, ...] = ("data",)
    domain: str = ""
    passthrough: bool = False
    weight_axis: int | Literal["gemm"] | None = None
    output_range: tuple[float, float] | None = None
    family: str = ""

    def role(self, index: int) -> InputRole:
        """Role of input `index`; variadic operators repeat their last role."""
        return self.inputs[min(index, len(self.inputs) - 1)] if self.inputs else "parameter"
