"""A BatchNormalization kept in front of its layer's quantizers is folded for good: the results become constants."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx_ir as ir

from onnxqat.graph import batchnorm, build, data_movement, folded_batchnorm, qdq, query, walk
from onnxqat.graph.folded_batchnorm import ComputedFold
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused, is_private
from onnxqat.passes._quantized_weight import overwrite
from onnxqat.passes.derive_bias import put_on_grid

RULE = "BatchNormalization folded"


class StoreBatchnorm(Pass):
    """The weight and bias that the graph computes from a BatchNormalization become constants; quantizers stay.

    1. Both are computed as runtimes do it, in float32, so that every code is the one of before.
    2. A bias that the graph rounds to the grid of the accumulator becomes int32 on that grid, or stays float there
       with ``bias="snapped"``, or is not rounded with ``bias="float"``. Any other bias becomes a float constant where
       the computed one was, in front of its quantizer if it has one.
    3. A weight that other nodes read stays theirs; the layer gets a constant ``<weight>_folded``.
    4. Left alone, with the reason: values that are not finite, and arithmetic that another tool has changed.

    The function stays the same, bit for bit, but for ``bias="float"``. ::

        factor = gamma / Sqrt(variance + epsilon)
        y = Conv(x, DQ(Q(w * Reshape(factor))), beta - mean * factor)
        y = Conv(x, DQ(Q(folded)), folded_bias)

    Args:
        bias: ``"int32"``, ``"snapped"`` or ``"float"``: the form of biases on the grid of an accumulator.
    """

    def __init__(self, bias: Literal["int32", "snapped", "float"] = "int32") -> None:
        self.bias = bias

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Store the computed constants; see the class."""
        log = Log()
        layers = [node for node in walk.nodes(model) if folded_batchnorm.is_computed(node)]
        on_grid: list[ir.Node] = []
        for layer in layers:
            fold = folded_batchnorm.find(layer)
            if fold is None:
                log.left("BatchNormalization is not folded: what computes its weight and bias was changed", layer)
                continue
            arrays = fold.folded()
            if not all(np.isfinite(array).all() for array in arrays):
                log.left("BatchNormalization is not folded: float32 cannot hold what it gives", layer)
                continue
            _store(fold, *arrays, context.names)
            log.did("BatchNormalization folded into the quantized weight", layer)
            if fold.rounding:
                on_grid.append(layer)
        if on_grid and self.bias != "float":
            readable = data_movement.carried(qdq.quantizers(model, every=True))
            for layer in on_grid:
                plain = layer.inputs[2]
                put_on_grid(layer, readable, "int32" if self.bias == "int32" else "float", RULE, context.names)
                drop_unused(plain)
        return log.result()


def _store(fold: ComputedFold, weight: np.ndarray, bias: np.ndarray, names: build.Names) -> None:
    """Store the folded weight and bias, and remove the arithmetic that computed them."""
    layer, constants = fold.layer, fold.constants()
    first = fold.arithmetic[0]
    scope, raw = walk.scope_of(first), fold.weight
    private = is_private(raw)
    held = raw if private else build.constant(scope, names.fresh(f"{raw.name}_folded"), weight, before=first)
    base = f"{layer.name or layer.outputs[0].name}_bias"
    made = build.constant(scope, names.fresh(base), bias, before=first)
    fold.folded_weight.replace_all_uses_with(held)
    (fold.rounding[-1].outputs[0] if fold.rounding else fold.folded_bias).replace_all_uses_with(made)
    shapes = [node.inputs[1] for node in fold.arithmetic if node.op_type == "Reshape"]
    for node in (*reversed(fold.rounding), *reversed(fold.arithmetic)):
        if not any(map(query.is_used, node.outputs)):
            walk.scope_of(node).remove(node, safe=True)
    if private:
        overwrite(raw, weight, names)
    for value in (*constants[1:], *shapes):
        drop_unused(value)
    layer.metadata_props.pop(batchnorm.KEPT)
    layer.metadata_props.pop(folded_batchnorm.MOMENTUM, None)
    if fold.rounding:
        layer.metadata_props.pop(qdq.BIAS_GRID, None)
