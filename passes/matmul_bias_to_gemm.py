"""A product with a constant matrix and the constant that is added behind it made one Gemm, which has a bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onnxqat.graph import build, linear, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._gemm_layer import GemmLayer
from onnxqat.passes._setting import Setting


class MatmulBiasToGemm(Pass):
    """MatMul with a constant matrix and Add of a constant row become Gemm, whose bias is part of the accumulator.

    It is what onnxruntime's MatMulAddFusion does where all sizes but one are known; here the bias can be put on the
    accumulator's grid too, and the sum is rounded once.

    1. An input of two axes is the Gemm's. Another goes through a Reshape to rows (``<x>_rows``, made once for all
       layers that read it), and the result through one to what it was, behind a Relu or Clip that alone reads it.
    2. Where more than one size of the input is unknown, or their number is, the second Reshape takes them from the
       input's Shape.
    3. The node keeps the name of the MatMul, the result that of the Add.
    4. Left alone: a matrix that is computed or has another number of axes, a product that others read, a constant that
       is no row, and layers of which `left_out` is true for one of the two nodes.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        h = MatMul(x, w)  y = Add(h, b)
        y = Gemm(x, w, b)
    """

    def __init__(self, left_out: Callable[[ir.Node], Any] = lambda node: None) -> None:
        self.left_out = left_out

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run where the table asks for it; nodes that the user took out stay."""
        if setting.table.matmul_bias != "gemm":
            return None
        return cls() if setting.selection is None else cls(setting.selection.reason)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Join each layer; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            rows: dict[ir.Value, ir.Value] = {}
            for node in list(scope):
                added = linear.bias_behind(node)
                if added is not None and not self.left_out(node) and not self.left_out(added):
                    GemmLayer(scope, context.names, node, added, {build.CREATED_BY: self.name}).join(rows)
                    log.did("MatMul and Add of a constant became Gemm", node)
        return log.result()
