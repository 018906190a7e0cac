"""Finding what is not finite after a loss or a gradient was not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from onnxqat.bridge.state import quantizers
from onnxqat.training.distributed.tensors import is_sharded, local
from onnxqat.training.step import Seen, Step

Kind = Literal["input", "parameter", "scale", "tensor", "gradient", "nothing"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """The first value that is not finite.

    Attributes:
        kind: what it is: a gradient is that of a tensor or parameter, in the order of the backward pass.
        name: its name in the ONNX file, or the submodule's where a module is no graph.
    """

    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        return {
            "input": f"input {self.name!r} is not finite",
            "parameter": f"parameter {self.name!r} is not finite",
            "scale": f"the scale of tensor {self.name!r} is not finite",
            "tensor": f"tensor {self.name!r} is the first that is not finite",
            "gradient": f"the gradient of {self.name!r} is the first that is not finite",
            "nothing": "inputs, parameters, tensors and their gradients are finite",
        }[self.kind]


def find(step: Step, seen: Sequence[Seen]) -> Finding:
    """What is not finite, in the order in which to suspect it: inputs, parameters, tensors in graph order, gradients.

    The forward passes are run again with the random numbers that they had. Of a model in shards, where a forward pass
    takes all processes, only inputs and parameters are looked at.

    Args:
        step: module and loss.
        seen: what the forward passes of the step were given.
    """
    for one in seen:
        for name, value in one.batch.inputs.items():
            if not _finite(value):
                return Finding("input", name)
    found = _parameters(step.module)
    if any(is_sharded(p) for p in step.module.parameters()):
        return found or Finding("nothing")
    for one in seen if found is None else ():
        found = found or _tensors(step, one)
    for one in seen if found is None else ():
        found = found or _gradients(step, one)
    return found or Finding("nothing")


def _finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(torch.isfinite(value).all())


def _parameters(module: nn.Module) -> Finding | None:
    names = getattr(module, "parameter_names", {})
    tensors = {f"{path}.scale": q.tensor for path, q in quantizers(module)}
    for key, parameter in module.named_parameters():
        if not _finite(local(parameter)):
            scale = key in tensors
            return Finding("scale", tensors[key]) if scale else Finding("parameter", names.get(key, key))
    return None


def _tensors(step: Step, seen: Seen) -> Finding | None:
    """The first NaN or infinity of the forward pass; minus infinity, which masks are made of, only without another."""
    bad: list[str] = []
    masks: list[str] = []

    def look(name: str, value: Tensor) -> None:
        if not bad and value.is_floating_point() and not bool(torch.isfinite(value).all()):
            (masks if bool(((value < 0) | torch.isfinite(value)).all()) else bad).append(name)

    with torch.no_grad():
        seen.random.restore()
        step.loss_of(Watched(step.forward, look), seen.batch, seen.target)
    found = bad or masks
    return Finding("tensor", found[0]) if found else None


def _gradients(step: Step, seen: Seen) -> Finding | None:
    """The first gradient, in the order of the backward pass, with a NaN or an infinity."""
    bad: list[str] = []

    def hook(name: str) -> Callable[[Tensor], None]:
        def look(gradient: Tensor) -> None:
            if not bad and not _finite(gradient):
                bad.append(name)

        return look

    def watch(name: str, value: Tensor) -> None:
        if value.requires_grad:
            value.register_hook(hook(name))  # type: ignore[no-untyped-call]

    names = getattr(step.module, "parameter_names", {})
    trained = [(key, p) for key, p in step.module.named_parameters() if p.requires_grad]
    # Not backward(): where several processes train, that would wait for gradients of the others.
    handles = [p.register_hook(hook(names.get(key, key))) for key, p in trained]  # type: ignore[no-untyped-call]
    try:
        seen.random.restore()
        loss = step.loss_of(Watched(step.forward, watch), seen.batch, seen.target)
        if loss.requires_grad:
            torch.autograd.grad(loss, [p for _, p in trained], allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return Finding("gradient", bad[0]) if bad else None


class Watched(nn.Module):
    """`module`, with each tensor that it computes shown to `look` under its ONNX name.

    A module that is no fx graph shows the outputs of its submodules.
    """

    def __init__(self, module: nn.Module, look: Callable[[str, Tensor], None]) -> None:
        super().__init__()
        self._held = (module,)  # in a tuple, because it is looked at and not part of this one
        self._look = look

    def forward(self, *inputs: Any) -> Any:
        """What the module returns."""
        module = self._held[0]
        if isinstance(module, fx.GraphModule):
            return _Shown(module, self._look).run(*inputs)
        handles = [
            child.register_forward_hook(lambda _m, _i, result, path=path: self._show(path, result))
            for path, child in module.named_modules()
            if path
        ]
        try:
            return module(*inputs)
        finally:
            for handle in handles:
                handle.remove()

    def _show(self, path: str, result: Any) -> None:
        if isinstance(result, Tensor):
            self._look(path, result)


class _Shown(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, look: Callable[[str, Tensor], None]) -> None:
        super().__init__(module)
        self._look = look
        # Of tensors that one node stands for, the last is the one that it computes.
        self._names = {node: name for name, node in getattr(module, "tensor_nodes", {}).items()}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and show its result."""
        result = super().run_node(n)
        if isinstance(result, Tensor) and n.op not in ("placeholder", "get_attr", "output"):
            self._look(self._names.get(n.name, n.meta.get("onnx_name", n.name)), result)
        return result
