"""The weights of a module with their quantizers, as codes and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from onnxqat.bridge.folded_batchnorm import FoldedBatchNorm, WeightFold
from onnxqat.bridge.kernels import grids, reference
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.graph.folded_batchnorm import SMALLEST_FACTOR


@dataclasses.dataclass(frozen=True)
class Folded:
    """A BatchNormalization that the graph folds into a weight in front of its quantizer.

    Attributes:
        fold: how.
        gamma: as it trains.
        variance: the stored one.
    """

    fold: WeightFold
    gamma: Tensor
    variance: Tensor

    @torch.no_grad()
    def factor(self) -> Tensor:
        """Return the factor of the weight; float32, broadcasts to it."""
        return self.fold.factor(self.gamma, self.variance)


@dataclasses.dataclass(frozen=True)
class QuantizedWeight:
    """A weight that trains, and the integer grid that it is rounded to.

    Attributes:
        name: key in the state dict.
        weight: the master weight.
        quantizer: its quantizer.
        folded: what multiplies the weight in between; None where nothing does.
    """

    name: str
    weight: nn.Parameter
    quantizer: FakeQuantize
    folded: Folded | None = None

    def value(self) -> Tensor:
        """Return the tensor that is rounded, float32, differentiable in the weight; gamma gets no gradient."""
        weight = self.weight.to(torch.float32)
        return weight if self.folded is None else weight * self.folded.factor()

    @torch.no_grad()
    def weight_of(self, value: Tensor) -> Tensor:
        """The weight of which `value` is what is rounded; as it is in a channel whose factor is too small to divide by."""
        if self.folded is None:
            return value
        factor = self.folded.factor()
        live = factor.abs() > SMALLEST_FACTOR
        return torch.where(live, value / torch.where(live, factor, torch.ones_like(factor)), self.weight)

    @torch.no_grad()
    def steps(self) -> tuple[Tensor, Tensor]:
        """The code of each weight less the zero point, and the scale for each weight: float32, broadcast to it."""
        q, w = self.quantizer, self.weight
        scale, zero = self.q_scale(), q.effective_zero_point().to(torch.float32)
        if q.block_size is not None and q.axis is not None:
            scale, zero = (self._of_blocks(v) for v in (scale, zero))
        else:
            scale, zero = (reference.along_axis(v, q.axis, w.ndim) for v in (scale, zero))
        codes = torch.round(self.value() / scale)
        return torch.minimum(torch.maximum(codes, q.quant_min - zero), q.quant_max - zero), scale

    def q_scale(self) -> Tensor:
        """The scale that forward uses, without a gradient."""
        return self.quantizer.effective_scale().detach()

    def _of_blocks(self, values: Tensor) -> Tensor:
        """A blocked scale or zero point as one value for each weight."""
        q, w = self.quantizer, self.weight
        assert q.axis is not None
        assert q.block_size is not None
        rows = grids.to_rows(torch.zeros_like(w, dtype=torch.float32), q.axis, q.block_size)
        held = grids.scale_of_rows(values, q.axis)[:, None].expand_as(rows)
        return grids.from_rows(held, w, q.axis, q.block_size)


def quantized_weights(module: nn.Module) -> Iterator[QuantizedWeight]:
    """The trainable weights of `module` that are rounded to the nearest code of an integer grid, each once.

    Where the graph folds a BatchNormalization into a weight, it is the folded weight that is rounded. Left out are
    float grids, and methods that change a weight before they round it, or choose how to round.
    """
    names: dict[str, str] = getattr(module, "parameter_names", {})
    keys = {onnx_name: key for key, onnx_name in names.items()}
    parameters = dict(module.named_parameters())
    tensors = module.state_dict(keep_vars=True)
    norms = (one for one in module.modules() if isinstance(one, FoldedBatchNorm))
    folds = {one.fold.folded: one.fold for one in norms if one.fold is not None}
    seen: set[int] = set()
    for _, q in quantizers(module):
        fold = folds.get(q.tensor) if q.role == "weight" else None
        name = q.tensor if fold is None else fold.weight
        key = keys.get(name if q.codes_name is None else q.codes_name)
        weight = None if key is None else parameters.get(key)
        if q.role != "weight" or q.derived or q.qtype.is_float or q.transforms_weight:
            continue
        if key is not None and weight is not None and weight.requires_grad and id(weight) not in seen:
            seen.add(id(weight))
            folded = None if fold is None else Folded(fold, tensors[keys[fold.gamma]], tensors[keys[fold.variance]])
            yield QuantizedWeight(key, weight, q, folded)
