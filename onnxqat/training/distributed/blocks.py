"""A module whose graph runs block by block, so that the parameters of one block at a time need to be whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from onnxqat.bridge.module import OnnxModule
from onnxqat.errors import QatError
from onnxqat.training.distributed.cut import ROOT, Cut, cut
from onnxqat.training.distributed.tensors import like, local, whole
from onnxqat.training.execution.in_float32 import before_casts, cast_types

BLOCK_BYTES = 2**26
"""Bytes of parameters of a block, where no single parameter is larger."""


class Blocks(nn.Module):
    """An :class:`OnnxModule` in blocks; parameters and state dict keep the names and the order of the flat module.

    Parameters that one block alone reads are that block's. Those that several blocks read (shared weights) are the
    root's, which hands them to the blocks.

    Args:
        module: its parameters and submodules are taken over, not copied; :meth:`flat` gives it back.
        block_bytes: bytes of parameters of a block.

    Attributes:
        input_names: ONNX names of the arguments of ``forward``.
        parameter_names: state dict key -> ONNX name.
    """

    def __init__(self, module: OnnxModule, *, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__()
        self.input_names, self.parameter_names = module.input_names, module.parameter_names
        self._parameter_keys = [key for key, _ in module.named_parameters()]
        self._state_keys = list(module.state_dict())
        self._cast_types = cast_types(module)
        plan = cut(before_casts(module), block_bytes)  # type: ignore[arg-type]
        found = {f"block_{number}": _block_module(module, plan, number) for number in range(plan.count)}
        self.root = _block_module(module, plan, ROOT, found)
        self._homes = {key: self._home(key, module) for key in {*self._parameter_keys, *self._state_keys}}
        # In a tuple, because its tensors are the blocks' from here on; its own are let go.
        self._flat = (module,)
        for name, parameter in module._parameters.items():  # noqa: SLF001 - its own, without those of submodules
            if parameter is not None:
                hollow = torch.empty_like(parameter, device="meta")
                module._parameters[name] = nn.Parameter(hollow, parameter.requires_grad)  # noqa: SLF001

    @property
    def blocks(self) -> list[nn.Module]:
        """The blocks in the order in which they run."""
        return [child for name, child in self.root.named_children() if name.startswith("block_")]

    def _home(self, key: str, module: nn.Module) -> tuple[nn.Module, str]:
        """The module that holds the tensor `key` of the flat module, and its name there."""
        path, _, name = key.rpartition(".")
        if path:
            return module.get_submodule(path), name
        for part in (*self.blocks, self.root):
            if name in part._parameters or name in part._buffers:  # noqa: SLF001 - of this part itself
                return part, name
        # Nothing reads it; checkpoints hold it all the same.
        tensor = getattr(module, name)
        if isinstance(tensor, nn.Parameter):
            self.root.register_parameter(name, tensor)
        else:
            self.root.register_buffer(name, tensor)
        return self.root, name

    def _tensor(self, key: str) -> Tensor:
        home, name = self._homes[key]
        return cast(Tensor, getattr(home, name))

    def divisible(self) -> list[nn.Parameter]:
        """The parameters that can be cut: those of at least one dimension that belong to no submodule of the graph."""
        tensors = (self._tensor(key) for key in self._parameter_keys if "." not in key)
        return [cast(nn.Parameter, tensor) for tensor in tensors if tensor.ndim]

    def forward(self, *inputs: Tensor, in_float32: bool = False) -> Any:
        """As the flat module; with `in_float32`, outputs are those of :func:`before_casts`."""
        found = self.root(*inputs)
        if in_float32 or not any(self._cast_types):
            return found
        results = found if isinstance(found, (tuple, list)) else (found,)
        cast_back = tuple(r if t is None else r.to(t) for r, t in zip(results, self._cast_types, strict=True))
        return cast_back if isinstance(found, (tuple, list)) else cast_back[0]

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters of the flat module, in its order."""
        if not recurse:
            yield from super().named_parameters(prefix, recurse, remove_duplicate)
            return
        for key in self._parameter_keys:
            yield f"{prefix}.{key}" if prefix else key, cast(nn.Parameter, self._tensor(key))

    def state_dict(self, *, keep_vars: bool = False, **_: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """The state dict of the flat module; tensors that are in shards stay so (:func:`whole` puts them together)."""
        found = {key: self._tensor(key) for key in self._state_keys}
        return found if keep_vars else {key: tensor.detach() for key, tensor in found.items()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Copy in a state dict of the flat module; its tensors are whole, or the parts that this process holds.

        Raises:
            QatError: ``checkpoint-mismatch`` where keys are missing or left over, and `strict`.
        """
        different = set(state_dict) ^ set(self._state_keys)
        if strict and different:
            raise QatError("checkpoint-mismatch", f"the state dict and the module differ in {min(different)!r}")
        for key in self._state_keys:
            if key in state_dict:
                tensor, value = self._tensor(key), state_dict[key]
                if value.shape == tensor.shape:
                    value = local(like(tensor, value))
                local(tensor).copy_(value)
        return None

    @torch.no_grad()
    def flat(self) -> OnnxModule:
        """The flat module on the CPU with the values of now; every process has to ask for it. Ends the blocks."""
        module = self._flat[0]
        for name, parameter in module._parameters.items():  # noqa: SLF001 - the ones that the constructor let go
            if parameter is not None:
                value = whole(self._tensor(name)).detach().to("cpu", copy=True)
                module._parameters[name] = nn.Parameter(value, parameter.requires_grad)  # noqa: SLF001
        return module.cpu()


class InFloat32(nn.Module):
    """A view of `blocks` that returns outputs in float32, as :func:`before_casts` is one of a flat module."""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, *inputs: Tensor) -> Any:
        """Through the blocks' own call, whose hooks put parameters together."""
        return self.blocks(*inputs, in_float32=True)


def _block_module(
    module: OnnxModule, plan: Cut, number: int, others: Mapping[str, nn.Module] | None = None
) -> fx.GraphModule:
    """The module of one block, or of the root with the blocks as submodules."""
    graph = plan.root() if number == ROOT else plan.block(number)
    targets = {str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")}
    held = {t: others[t] if others and t in others else _attribute(module, t) for t in sorted(targets)}
    return fx.GraphModule(held, graph)


def _attribute(module: nn.Module, target: str) -> Any:
    path, _, name = target.rpartition(".")
    return getattr(module.get_submodule(path), name)
