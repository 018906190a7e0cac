"""Activation-aware scaling of weights that alone are quantized (AWQ), searched on calibration data.

Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", MLSys 2024, section 3.2: the
factor of a channel is its mean absolute activation to a power a, and a is the one of a grid in [0, 1] with which the
outputs of the layers have the least squared error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.calibration.weights import weight_qparams
from onnxqat.equalization import method
from onnxqat.equalization.method import Situation
from onnxqat.passes import _layer_channels as layers
from onnxqat.passes import _linked_layers as linked
from onnxqat.passes import awq, smoothquant
from onnxqat.passes._base import Pass
from onnxqat.passes.cross_layer_equalization import SMALLEST
from onnxqat.placement import planner
from onnxqat.types import FloatArray, TensorSpec

STEPS = 20
"""Steps of the grid of exponents, as in the authors' code."""


class Method(method.Method):
    """Runs :class:`~onnxqat.passes.awq.Awq` on products of the main graph whose weights alone are quantized.

    By name alone: the search quantizes each weight 21 times.
    """

    rows = True

    def tensors(self, situation: Situation) -> Mapping[str, int]:
        """Inputs of such products; see the base class."""
        return {link.name: -1 for link in _links(situation)}

    def made(self, situation: Situation) -> Pass | None:
        """The pass with the factors of all tensors for which some exponent is better than 0; see the base class."""
        rows = situation.ranges.rows(self.tensors(situation))
        if not rows:
            return None
        plan = planner.plan(situation.model, situation.table, situation.chosen)
        specs = {e.tensor: e.decision for e in plan.edges if isinstance(e.decision, TensorSpec)}
        found = {}
        for link in _links(situation):
            known = all(str(reader.inputs[1].name) in specs for reader in link.readers if reader.inputs[1] is not None)
            factors = _searched(link, rows[link.name], specs) if known and link.name in rows else None
            if factors is not None:
                found[link.name] = factors
        return awq.Awq(found) if found else None


def _links(situation: Situation) -> Iterator[linked.Link]:
    """Links of the main graph to products that read floats and have quantized weights."""
    for link in smoothquant.links(situation.model.graph):
        ends = (link.source, *link.readers)
        alone = all(
            situation.input_type(n.op_type) is None and situation.weight_type(n.op_type) is not None
            for n in link.readers
        )
        if alone and link.repeat == 1 and not any(situation.chosen.reason(node) for node in ends):
            yield link


def _searched(link: linked.Link, rows: FloatArray, specs: Mapping[str, TensorSpec]) -> FloatArray | None:
    """The factors of the best exponent, float32 (C,); None where that is 0."""
    sizes = np.abs(rows).mean(axis=0, dtype=np.float64)
    if not sizes.any():
        return None
    sizes = np.maximum(sizes, sizes.max() * SMALLEST)
    best, least = None, np.inf
    for step in range(STEPS + 1):
        factors = sizes ** (step / STEPS)
        factors /= np.sqrt(factors.max() * factors.min())  # as in the authors' code: the middle keeps its size
        error = sum(_error(reader, rows, factors, specs) for reader in link.readers)
        if error < least:
            best, least = factors if step else None, error
    return None if best is None else best.astype(np.float32)


def _error(reader: ir.Node, rows: FloatArray, factors: layers.Array, specs: Mapping[str, TensorSpec]) -> float:
    """Squared error of a layer's output over `rows`, with its weight quantized after scaling."""
    weight = layers.scaled_weight(reader, inputs=factors).astype(np.float32)
    spec = specs[str(reader.inputs[1].name)] if reader.inputs[1] is not None else None
    assert spec is not None
    lost = numerics.fake_quantize(weight, weight_qparams(weight, spec)) - weight
    by_output = layers.in_groups(reader, lost)[0, :, :, 0] / factors
    return float(np.square(rows.astype(np.float64) @ by_output.T).sum())
