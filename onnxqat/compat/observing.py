"""The observers of a prepared module: what runs through its quantizers while they calibrate."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.calibration.observers import create
from onnxqat.calibration.observers._base import BaseObserver, NonFiniteError
from onnxqat.calibration.row_dynamic_range import RowSizes
from onnxqat.calibration.weights import weight_qparams
from onnxqat.errors import DataError
from onnxqat.types import TensorSpec


class Observing:
    """One observer for each activation tensor that the plan wants observed.

    Args:
        specs: tensor name to how it is quantized.
        groups: tensor name to the root of its group; tensors of a group are quantized alike.
        watched: tensors whose row sizes count.
        weights: constants by name, and how each is quantized.

    Attributes:
        renamed: what a quantized file calls a tensor, to its name in the plan: graph outputs, whose name goes to the
            dequantized tensor.
    """

    def __init__(
        self,
        specs: Mapping[str, TensorSpec],
        groups: Mapping[str, str],
        watched: Mapping[str, RowSizes],
        weights: Mapping[str, TensorSpec],
    ) -> None:
        self.specs = dict(specs)
        self.groups = dict(groups)
        self.sizes = dict(watched)
        self.weights = dict(weights)
        self.renamed: dict[str, str] = {}
        self._visited: set[str] = set()
        self.observers: dict[str, BaseObserver] = {name: create(spec) for name, spec in specs.items()}

    def clear(self) -> None:
        """Forget what was observed."""
        self._visited = set()
        self.observers = {name: create(spec) for name, spec in self.specs.items()}
        self.sizes = {name: RowSizes() for name in self.sizes}

    @property
    def seen(self) -> set[str]:
        """Tensors that were there; one that is empty in every batch has the range zero."""
        return self._visited | {name for name, observer in self.observers.items() if observer.count}

    def attach(self, module: nn.Module, first: Mapping[str, str]) -> None:
        """Watch the quantizers of `module`; `first` is the path of the one that reads a tensor itself, by its name."""
        detach(module)
        for path, quantizer in quantizers(module):
            tensor = self.planned(quantizer)
            if tensor is not None:
                quantizer.register_forward_pre_hook(_Hook(self, tensor, first.get(quantizer.tensor) == path))
            elif quantizer.role == "weight" and quantizer.tensor in self.weights and not quantizer.transforms_weight:
                quantizer.register_forward_pre_hook(_WeightHook(self.weights[quantizer.tensor]))

    def planned(self, quantizer: FakeQuantize) -> str | None:
        """The tensor of the plan whose range gives `quantizer` its scale; None for weights, biases and fixed scales."""
        tensor = self.renamed.get(quantizer.tensor, quantizer.tensor)
        return tensor if tensor in self.specs and quantizer.role == "activation" else None

    def update(self, tensor: str, values: Tensor) -> None:
        """Add the values of `tensor` to its observer.

        Raises:
            DataError: ``data-non-finite``.
        """
        observer = self.observers[tensor]
        self._visited.add(tensor)
        values = values.detach().float()
        if tensor in self.sizes:
            self.sizes[tensor].update(values.cpu().numpy())
        if observer.spec.observer == "minmax" and observer.spec.axis is None and values.numel():
            values = torch.stack(torch.aminmax(values))  # as good for it, and little to copy from a GPU
        try:
            observer.update(values.cpu().numpy())
        except NonFiniteError:
            raise DataError("data-non-finite", f"tensor {tensor!r} has NaN or infinity while calibrating") from None

    def merged(self, tensor: str) -> BaseObserver:
        """Return a new observer with everything that the tie group of `tensor` has observed so far."""
        root = self.groups.get(tensor, tensor)
        members = [t for t in self.specs if self.groups.get(t, t) == root and self.observers[t].count] or [tensor]
        first = copy.deepcopy(self.observers[members[0]])
        for member in members[1:]:
            other = copy.deepcopy(self.observers[member])
            other.spec = first.spec
            first.merge(other)
        return first


def detach(module: nn.Module) -> None:
    """Take the hooks of an :class:`Observing` off the quantizers of `module`."""
    for _, quantizer in quantizers(module):
        hooks = quantizer._forward_pre_hooks  # noqa: SLF001 - a handle would not survive deepcopy and pickle
        for key in [key for key, hook in hooks.items() if isinstance(hook, (_Hook, _WeightHook))]:
            del hooks[key]


class _WeightHook:
    """Runs before a weight's quantizer: in ``calibrate_quantized`` gives it the scale of the weight as it is now."""

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec

    def __call__(self, quantizer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        assert isinstance(quantizer, FakeQuantize)
        if quantizer.state == "calibrate_quantized":
            quantizer.set_qparams(weight_qparams(arguments[0].detach().float().cpu().numpy(), self.spec))


class _Hook:
    """Runs before a quantizer: observes its input, and in ``calibrate_quantized`` gives it the scale of what was seen."""

    def __init__(self, observing: Observing, tensor: str, reads_it: bool) -> None:
        self.observing, self.tensor, self.reads_it = observing, tensor, reads_it

    def __call__(self, quantizer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        assert isinstance(quantizer, FakeQuantize)
        if quantizer.state not in ("calibrate", "calibrate_quantized"):
            return
        if self.reads_it:
            self.observing.update(self.tensor, arguments[0])
        if quantizer.state == "calibrate_quantized" and self.tensor in self.observing.seen:
            quantizer.set_qparams(self.observing.merged(self.tensor).qparams())
