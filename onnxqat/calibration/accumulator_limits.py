"""Weight scales raised so that no input makes a sum of a layer leave its accumulator.

A channel whose sums can pass the width gets a larger scale, and so smaller codes, by no more than it takes; the bias,
whose grid is the product of the scales, shrinks with them. The weights themselves stay, so that training starts from the
function of the float model, and can win back what the coarser grid costs: it keeps within the width by making weights
small instead (``onnxqat.training.callbacks.accumulators``).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.calibration import accumulators
from onnxqat.calibration.accumulators import Layer
from onnxqat.calibration.columns import filters_of
from onnxqat.errors import UsageError
from onnxqat.graph import query
from onnxqat.types import IntArray, QParams, Remark

_ROUNDS, _STEP = 32, 1.005
"""Most raises of a scale, and the least factor of each: rounding can leave a channel up to half a code of each weight too
large after the first time."""


@dataclasses.dataclass
class Limits:
    """Parameters of weights whose scales were raised.

    Attributes:
        bits: of the accumulator.
        grids: by the name of the weight.
        raised: scales that were raised.
        all: scales of these layers' weights.
        factor: the largest raise.
        nodes: layers with a raised scale.
    """

    bits: int
    grids: dict[str, QParams] = dataclasses.field(default_factory=dict)
    raised: int = 0
    all: int = 0
    factor: float = 1.0
    nodes: list[str] = dataclasses.field(default_factory=list)

    def remarks(self) -> list[Remark]:
        """Return what there is to say."""
        if not self.raised:
            return [Remark(f"no input makes a sum leave {self.bits} bits", source="accumulators")]
        text = (
            f"{self.raised} of {self.all} weight scales, in {len(self.nodes)} layers, were raised, by up to {self.factor:.3g}, "
            f"so that no input makes a sum leave {self.bits} bits"
        )
        return [Remark(text, tuple(self.nodes), "accumulators")]


def limits(model: ir.Model, bits: int) -> Limits:
    """Return parameters of weights with which the sums of `model` stay within `bits`.

    Args:
        model: with quantizers, in the form that trains; it is not changed.
        bits: of the accumulators of its layers, signed.

    Raises:
        UsageError: ``option-invalid``: a layer has no room for a single product.
    """
    found = Limits(bits)
    for layer in accumulators.layers(model):
        values = query.constant_array(layer.weight.input)
        if layer.codes is None or values is None or layer.weight.stored or values.shape != layer.codes.shape:
            continue
        before = found.grids.get(layer.weight.tensor, layer.weight.qparams)
        after = _within(layer, np.asarray(values, np.float32), before, bits)
        found.all += before.scale.size
        if after is before:
            continue
        ratio = after.scale / layer.weight.qparams.scale
        found.grids[layer.weight.tensor] = after
        found.raised += int((after.scale > before.scale).sum())
        found.factor = max(found.factor, float(ratio.max()))
        found.nodes.append(query.label(layer.node))
    return found


def _within(layer: Layer, values: npt.NDArray[np.float32], qparams: QParams, bits: int) -> QParams:
    for _ in range(_ROUNDS):
        codes = numerics.quantize(values, qparams)
        if not codes.any() and qparams is not layer.weight.qparams:
            break
        steps = codes - numerics.spread(qparams.zero_point, qparams, codes.shape).astype(np.int64)
        ends = accumulators.ends(filters_of(steps, layer.node), layer.steps, _moved_bias(layer, qparams))
        worst = np.maximum(ends.high / (2.0 ** (bits - 1) - 1), -ends.low / 2.0 ** (bits - 1))
        if (worst <= 1.0).all():
            return qparams
        qparams = _raised(qparams, worst)
    raise UsageError(
        "option-invalid",
        f"node {query.label(layer.node)!r}: accumulators of {bits} bits hold next to none of its products",
        hint="a wider accumulator, or narrower activations: --bits",
    )


def _moved_bias(layer: Layer, qparams: QParams) -> IntArray | None:
    """Codes of the bias where the weight has the parameters `qparams`: its grid gets coarser with that of the weight."""
    if layer.bias is None:
        return None
    share = (layer.weight.qparams.scale.astype(np.float64) / qparams.scale).reshape(-1)
    fits = share.size in (1, layer.bias.size)
    size = np.ceil(np.abs(layer.bias) * (share if fits else share.max()))
    return np.asarray(np.sign(layer.bias) * size.astype(np.int64))


def _raised(qparams: QParams, worst: npt.NDArray[np.float64]) -> QParams:
    factor: npt.NDArray[np.float64] = np.where(worst > 1.0, np.maximum(worst, _STEP), 1.0)
    if qparams.axis is None:
        factor = np.asarray(factor.max())
    elif factor.shape != qparams.scale.shape:  # groups, or a stack of matrices
        factor = factor.reshape(-1, qparams.scale.size).max(0)
    larger = np.where(factor > 1.0, np.nextafter(qparams.scale * factor, np.inf), qparams.scale).astype(np.float32)
    return dataclasses.replace(qparams, scale=numerics.shorten(larger, qparams.scale_bits).astype(np.float32))
