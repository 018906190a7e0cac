"""Weights that keep every sum within the accumulator that a file was made for, whatever the input is.

Behind each step, channels whose sums some input could make too large are projected onto those that no input can: the L1
norm of a channel's integer weights is bounded by the width of the accumulator and the largest step of the input (Colbert
et al., "A2Q: Accumulator-Aware Quantization with Guaranteed Overflow Avoidance", ICCV 2023). The nearest point of an L1
ball is reached by soft thresholding: all weights of the channel lose the same amount, and the smallest become 0 (Colbert
et al., "A2Q+: Improving Accumulator-Aware Weight Quantization", ICML 2024, where it is the start of training). Here it
is the bound of :mod:`onnxqat.calibration.accumulators` that must hold, of the codes as they are rounded, bias included:
where the input has no negative steps, positive and negative weights have budgets of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.calibration import accumulators
from onnxqat.calibration.accumulators import Layer
from onnxqat.calibration.columns import filters_of
from onnxqat.training.callbacks.callback import Callback, Run
from onnxqat.training.callbacks.quantized_weights import QuantizedWeight, quantized_weights

_INSIDE = 0.49
"""Largest distance of a projected weight from its code, in steps: float32 then rounds it there again, whatever the scale."""

_HALVINGS = 24
"""Steps of the search for a threshold: codes have at most 15 bits of magnitude, and what is left is below a part in 500."""


@dataclasses.dataclass(frozen=True)
class _Bounded:
    """A weight, the quantizer of its layer's input, and the bias of the layer.

    Attributes:
        weight: what trains.
        input: its steps are those that the weight multiplies.
        order: index of each weight by filter, int64 (filters, D).
        bias: float parameter, or None.
        layer: of the file, which says whether steps of the input are negative.
    """

    weight: QuantizedWeight
    input: FakeQuantize
    order: Tensor
    bias: Tensor | None
    layer: Layer

    def limits(self, bits: int) -> tuple[float, float, Tensor, Tensor]:
        """Smallest and largest step of the input, and what the products may come to above and below 0, (filters,)."""
        zero = float(self.input.effective_zero_point())
        low, high = self.input.quant_min - zero, self.input.quant_max - zero
        low = 0.0 if int(self.layer.steps[0]) == 0 else min(low, 0.0)
        device = self.order.device
        room = torch.full((len(self.order),), 2.0 ** (bits - 1) - 1, dtype=torch.float64, device=device)
        above, below = room, room + 1
        if self.bias is not None:
            scale = self.input.effective_scale().double() * self.weight.q_scale().double()
            codes = (self.bias.detach().double().reshape(-1) / scale.reshape(-1)).round()
            above, below = above - codes.clamp(min=0), below + codes.clamp(max=0)
        return low, max(high, 0.0), above, below


class KeptWidth(Callback):
    """Keeps the sums of all layers whose weights train within an accumulator, for any input.

    Args:
        model: the file, with quantizers.
        bits: of the accumulator, signed.
    """

    name = "accumulators"
    needs_whole_weights = True

    def __init__(self, model: ir.Model, bits: int) -> None:
        self.bits = bits
        self._layers = [layer for layer in accumulators.layers(model) if layer.codes is not None]
        self._bounded: list[_Bounded] = []

    def start(self, run: Run) -> None:
        """See the base class."""
        self._bounded = _bounded(run.module, self._layers)
        self.keep()

    def after_step(self, step: int) -> None:
        """See the base class."""
        self.keep()

    def before_score(self) -> None:
        """See the base class: a moving average of weights within the width can leave it by roundings."""
        self.keep()

    @torch.no_grad()
    def keep(self) -> None:
        """Project the weights of channels that some input makes leave the width."""
        for each in self._bounded:
            _project(each, self.bits)


def _bounded(module: nn.Module, layers: list[Layer]) -> list[_Bounded]:
    weights = {each.quantizer.tensor: each for each in quantized_weights(module)}
    inputs = {q.tensor: q for _, q in quantizers(module) if q.role == "activation"}
    names: dict[str, str] = getattr(module, "parameter_names", {})
    parameters = dict(module.named_parameters())
    found = []
    for layer in layers:
        weight, source = weights.get(layer.weight.tensor), inputs.get(layer.input.tensor)
        if weight is None or source is None or layer.codes is None or weight.weight.shape != layer.codes.shape:
            continue
        order = filters_of(np.arange(layer.codes.size).reshape(layer.codes.shape), layer.node)
        names_of_bias = _names(layer.node.inputs[2]) if len(layer.node.inputs) > 2 else ()
        key = next((key for key, name in names.items() if name in names_of_bias), "")
        index = torch.from_numpy(np.ascontiguousarray(order.reshape(-1, order.shape[-1]))).to(weight.weight.device)
        found.append(_Bounded(weight, source, index, parameters.get(key), layer))
    return found


def _names(bias: ir.Value | None) -> list[str]:
    """Names of a bias: dequantized, and as it is in front of its quantizer; the module has either."""
    found = []
    while bias is not None:
        found.append(str(bias.name))
        node = bias.producer()
        bias = node.inputs[0] if node is not None and node.inputs else None
    return found


def _project(each: _Bounded, bits: int) -> None:
    low, high, above, below = each.limits(bits)
    codes, scale = each.weight.steps()
    rows = codes.reshape(-1)[each.order].double()
    outside = ~_fits(rows, low, high, above, below)
    if not bool(outside.any()):
        return
    of_rows = scale.expand_as(codes).reshape(-1)[each.order].double()
    values = each.weight.value().double().reshape(-1)[each.order] / of_rows
    values = rows + (values - rows).clamp(-0.5, 0.5)  # a weight beyond the end of the grid counts as the end
    kept = _kept(values[outside], low, high, above[outside], below[outside])
    kept = kept.round() + (kept - kept.round()).clamp(-_INSIDE, _INSIDE)
    flat = each.weight.value().double().reshape(-1).clone()
    flat[each.order[outside].reshape(-1)] = (kept * of_rows[outside]).reshape(-1)
    weight = each.weight.weight
    weight.copy_(each.weight.weight_of(flat.reshape(weight.shape).to(weight.dtype)))


def _fits(rows: Tensor, low: float, high: float, above: Tensor, below: Tensor) -> Tensor:
    """Check for each filter that no input makes its products leave their room."""
    positive, negative = rows.clamp(min=0).sum(1), -rows.clamp(max=0).sum(1)
    return (high * positive - low * negative <= above) & (high * negative - low * positive <= below)


def _kept(values: Tensor, low: float, high: float, above: Tensor, below: Tensor) -> Tensor:
    """`values`, in units of codes, where their codes fit: less of each as it takes."""
    if low == 0.0:  # positive and negative weights never meet in one end
        nothing = torch.full_like(above, torch.inf)
        positive = _thresholded(values.clamp(min=0), lambda rows: _fits(rows, low, high, above, nothing))
        negative = _thresholded(values.clamp(max=0), lambda rows: _fits(rows, low, high, nothing, below))
        return positive + negative
    return _thresholded(values, lambda rows: _fits(rows, low, high, above, below))


def _thresholded(values: Tensor, fits: Callable[[Tensor], Tensor]) -> Tensor:
    """`values` less the smallest amount for each row with which its codes fit."""
    least = torch.zeros_like(values[:, 0])
    most = values.abs().amax(1)
    done = fits(values.round())
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        good = fits(_soft(values, middle).round())
        least, most = torch.where(good, least, middle), torch.where(good, middle, most)
    return _soft(values, torch.where(done, torch.zeros_like(most), most))


def _soft(values: Tensor, amount: Tensor) -> Tensor:
    return values.sign() * (values.abs() - amount[:, None]).clamp(min=0)
