"""Grids as inputs of a model: tensors are fake-quantized by scales that each run gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph import build
from onnxqat.types import QParams

_NAME = "grids"


class FedGrids:
    """A copy of a model with a further input, float32 (rows, 4): scale, lowest step, highest step, and 1 where it counts.

    Steps are codes less the zero point, so that one subtraction and one addition are saved on every value; the result is
    that of :func:`onnxqat.numerics.fake_quantize`.

    Attributes:
        model: the copy.
        graph: its main graph.
        name: of the input.
    """

    def __init__(self, model: ir.Model, rows: int) -> None:
        self.model = model.clone()
        self.graph = self.model.graph
        self._names = build.Names(self.model)
        self.name = self._names.fresh(_NAME)
        self._grids = ir.Value(name=self.name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([rows, 4]))
        self.graph.inputs.append(self._grids)
        column = self._node("Gather", [self._grids, self._constant(3, np.int64)], axis=1)
        self._on = self._node("Greater", [column, self._constant(0, np.float32)], dtype=ir.DataType.BOOL)
        self._numbers = [self._constant(index, np.int64) for index in range(3)]

    def on_grid(self, row: int, value: ir.Value) -> ir.Value:
        """`value` on the grid of that row, or as it is where the row does not count."""
        number = self._constant(row, np.int64)
        on = self._node("Gather", [self._on, number], dtype=ir.DataType.BOOL, axis=0)
        # A branch and not a Where, and all but the choice inside: of hundreds of tensors one counts in a run, and small
        # networks would spend most of their time on the others.
        inside: list[ir.Node] = []
        outside: list[ir.Node] = []
        grid = self._node("Gather", [self._grids, number], inside, axis=0)
        scale, low, high = (self._node("Gather", [grid, index], inside, axis=0) for index in self._numbers)
        steps = self._node("Round", [self._node("Div", [value, scale], inside)], inside)
        clipped = self._node("Min", [self._node("Max", [steps, low], inside), high], inside)
        return self._node(
            "If",
            [on],
            then_branch=_branch(inside, self._node("Mul", [clipped, scale], inside)),
            else_branch=_branch(outside, self._node("Identity", [value], outside)),
        )

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        nodes: list[ir.Node] | None = None,
        *,
        dtype: ir.DataType = ir.DataType.FLOAT,
        **attributes: Any,
    ) -> ir.Value:
        """The output of a new node at the end of `nodes`, of the graph without."""
        name = self._names.fresh(f"{_NAME}.{op_type}")
        made = build.node(op_type, inputs, [name], attributes, dtype=dtype, name=name)
        (self.graph if nodes is None else nodes).append(made)
        return made.outputs[0]

    def _constant(self, value: float, dtype: type[np.generic]) -> ir.Value:
        return build.constant(self.graph, self._names.fresh(f"{_NAME}.constant"), np.asarray(value, dtype))


def _branch(nodes: Sequence[ir.Node], result: ir.Value) -> ir.Graph:
    return ir.Graph([], [result], nodes=nodes, name=f"{result.name}.branch")


def row(qparams: QParams) -> tuple[float, float, float, float]:
    """The row that stands for per-tensor parameters."""
    zero = int(qparams.zero_point)
    return float(qparams.scale), qparams.qtype.quant_min - zero, qparams.qtype.quant_max - zero, 1.0


def off(rows: int) -> npt.NDArray[np.float32]:
    """Rows of which none counts."""
    return np.tile(np.asarray([1, 0, 0, 0], np.float32), (rows, 1))
