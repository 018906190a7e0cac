"""Finding what is not finite after a loss or a gradient was not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.graph.blame import MASK, Blame
from onnxqat.training.distributed.tensors import is_sharded, local
from onnxqat.training.loop.step import Seen, Step

Kind = Literal["input", "teacher", "parameter", "scale", "tensor", "gradient", "nothing"]

LARGEST_TARGET = 1e19  # the square of a larger difference is infinite in float32


@dataclasses.dataclass(frozen=True)
class Finding:
    """The first value that is not finite.

    Attributes:
        kind: what it is: a gradient is that of a tensor or parameter, in the order of the backward pass.
        name: its name in the ONNX file, or the submodule's where a module is no graph; of a teacher, the output's.
        sample: number in the batch, of what a teacher says.
    """

    kind: Kind
    name: str = ""
    sample: int | None = None

    def __str__(self) -> str:
        return {
            "input": f"input {self.name!r} is not finite",
            "teacher": f"output {self.name!r} of the teacher, the float model, is not finite, or too large for float32, "
            f"for sample {self.sample} of the batch",
            "parameter": f"parameter {self.name!r} is not finite",
            "scale": f"the scale of tensor {self.name!r} is not finite",
            "tensor": f"tensor {self.name!r} is the first that is not finite",
            "gradient": f"the gradient of {self.name!r} is the first that is not finite",
            "nothing": "inputs, parameters, tensors and their gradients are finite",
        }[self.kind]


def find(step: Step, seen: Sequence[Seen]) -> Finding:
    """Name what is not finite, in the order in which to suspect it.

    Inputs, what the teacher says, parameters, tensors, gradients, masks; then what the teacher says that is too large.

    Tensors come in graph order; constants, inputs and tensors of -inf are masks (:mod:`onnxqat.graph.blame`).
    The forward passes are run again with the random numbers that they had. Of a model in shards, where a forward pass
    takes all processes, only inputs and parameters are looked at.

    Args:
        step: module and loss.
        seen: what the forward passes of the step were given.
    """
    for one in seen:
        for name, value in one.batch.inputs.items():
            if _broken(value):
                return Finding("input", name)
    found = _of_teacher(step, seen, _broken) or _parameters(step.module)
    if any(is_sharded(p) for p in step.module.parameters()):
        return found or Finding("nothing")
    blame = Blame()
    for one in seen if found is None else ():
        _look_at_tensors(step, one, blame)
    if found is None and blame.settled:
        return _of_tensor(blame)
    for one in seen if found is None else ():
        found = found or _gradients(step, one)
    found = found or _of_tensor(blame)
    return (_of_teacher(step, seen, _too_large) if found.kind == "nothing" else None) or found


def _of_teacher(step: Step, seen: Sequence[Seen], is_bad: Callable[[Tensor], bool]) -> Finding | None:
    """The first output of a teacher that `is_bad`, and the sample."""
    names = getattr(step.module, "output_names", ())
    for one in seen:
        for teacher in _teachers(one.target):
            for index, value in enumerate(teacher):
                if is_bad(value):
                    name = names[index] if index < len(names) else str(index)
                    sample = next((i for i, row in enumerate(value) if is_bad(row)), 0) if value.ndim else 0
                    return Finding("teacher", name, sample)
    return None


def _teachers(target: Any) -> list[Sequence[Tensor]]:
    """Return the outputs of each teacher, where there may be several."""
    if target is None:
        return []
    return [target] if all(isinstance(value, Tensor) for value in target) else list(target)


def _too_large(value: Tensor) -> bool:
    return value.is_floating_point() and bool((value.abs() > LARGEST_TARGET).any())


def _of_tensor(blame: Blame) -> Finding:
    return Finding("nothing") if blame.name is None else Finding("tensor", blame.name)


def _finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(torch.isfinite(value).all())


def _broken(value: Tensor) -> bool:
    """Return True where `value` has NaN or +inf; constants and inputs of -inf are masks."""
    return value.is_floating_point() and bool((torch.isnan(value) | torch.isposinf(value)).any())


def _hides(value: Tensor) -> bool:
    return value.is_floating_point() and bool((value <= MASK).any())


def _parameters(module: nn.Module) -> Finding | None:
    names = getattr(module, "parameter_names", {})
    tensors = {f"{path}.scale": q.tensor for path, q in quantizers(module)}
    for key, parameter in module.named_parameters():
        scale = key in tensors
        if _broken(local(parameter)) or (scale and not _finite(local(parameter))):
            return Finding("scale", tensors[key]) if scale else Finding("parameter", names.get(key, key))
    return None


def _look_at_tensors(step: Step, seen: Seen, blame: Blame) -> None:
    """Show `blame` the tensors of a forward pass in the order in which they are computed."""

    def look(name: str, value: Tensor, sources: Sequence[Tensor] | None) -> None:
        if not blame.settled and not _finite(value):
            # Where sources are not known, -inf may come of a mask.
            masked = sources is None or any(_hides(source) for source in sources)
            blame.look(name, broken=_broken(value), minus_infinity=bool(torch.isneginf(value).any()), masked=masked)

    with torch.no_grad():
        seen.random.restore()
        step.loss_of(Watched(step.forward, look), seen.batch, seen.target)


def _gradients(step: Step, seen: Seen) -> Finding | None:
    """The first gradient, in the order of the backward pass, with a NaN or an infinity."""
    bad: list[str] = []

    def hook(name: str) -> Callable[[Tensor | None], None]:
        def look(gradient: Tensor | None) -> None:
            # None: a part of a split that the loss does not read.
            if not bad and gradient is not None and not _finite(gradient):
                bad.append(name)

        return look

    def watch(name: str, value: Tensor, _sources: Sequence[Tensor] | None) -> None:
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


Look = Callable[[str, Tensor, "Sequence[Tensor] | None"], None]


class Watched(nn.Module):
    """`module`, with each tensor that it computes shown to `look` under its ONNX name, and what it is computed from.

    A module that is no fx graph shows the outputs of its submodules, and None for what they are computed from.
    """

    def __init__(self, module: nn.Module, look: Look) -> None:
        super().__init__()
        self._held = (module,)  # in a tuple, because it is looked at and not part of this one
        self._look = look

    def forward(self, *inputs: Any) -> Any:
        """Return the result of the module."""
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
            self._look(path, result, None)


class _Shown(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, look: Look) -> None:
        super().__init__(module)
        self._look = look
        # Of tensors that one node stands for, the last is the one that it computes.
        self._names = {node: name for name, node in getattr(module, "tensor_nodes", {}).items()}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and show its result."""
        result = super().run_node(n)
        if isinstance(result, Tensor) and n.op not in ("placeholder", "get_attr", "output"):
            read = [self.env[source] for source in n.all_input_nodes]
            sources = [value for value in read if isinstance(value, Tensor)]
            self._look(self._names.get(n.name, n.meta.get("onnx_name", n.name)), result, sources)
        return result
