"""One imported module takes over what another, of nearly the same graph, has: for quantizers that data moved."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.state import parameter_ids, quantizers

ATTRIBUTES = ("input_names", "output_names", "input_types", "output_types")
MAPS = ("parameter_names", "tensor_nodes", "quantizers")


def same_structure(old: OnnxModule, new: OnnxModule) -> bool:
    """Check whether both modules have the same code and quantizers, on the same grids and shared in the same way."""
    return old.code == new.code and _described(old) == _described(new)


def _described(module: OnnxModule) -> list[tuple[Any, ...]]:
    """For each quantizer its path, its grid, and which of them, by number, was the first with its scale."""
    numbers: dict[int, int] = {}
    found = []
    for index, (path, quantizer) in enumerate(quantizers(module)):
        scale = quantizer.__dict__["_parameters"].get("scale", quantizer)  # derived ones have none
        first = numbers.setdefault(id(scale), index)
        found.append((path, quantizer.qtype, quantizer.axis, tuple(quantizer.zero_point.shape), first))
    return found


def take_scales(old: OnnxModule, new: OnnxModule, *, but: Collection[str] = ()) -> None:
    """Give the quantizers of `old` what those of `new` on the same path have learned and start with.

    Args:
        old: gets scales, zero points and what else the method has, in place.
        new: has them.
        but: tensors whose quantizers keep what they have.
    """
    given = dict(quantizers(new))
    for path, quantizer in quantizers(old):
        found = given.get(path)
        if found is not None and quantizer.tensor not in but and found.qtype == quantizer.qtype:
            quantizer.load_state_dict(found.state_dict())


def take_structure(old: OnnxModule, new: OnnxModule) -> None:
    """Make `old` compute what `new` does, in place: weights stay the Parameters that an optimizer may hold.

    Scales are the Parameters of `old` where it has a quantizer of that name, with the values of `new`. What is not in
    `new` goes; hooks on inner tensors of `old` are lost, those on the module itself stay.
    """
    device = next(old.parameters()).device
    new.to(device)
    new.train(old.training)
    before = dict(old.named_parameters(remove_duplicate=False))
    taken: dict[int, nn.Parameter] = {}
    used: set[int] = set()
    of_quantizers = parameter_ids(new)
    for key, parameter in new.named_parameters(remove_duplicate=False):
        kept = before.get(key)
        if id(parameter) in taken or kept is None or kept.shape != parameter.shape or id(kept) in used:
            continue
        if id(parameter) in of_quantizers:
            with torch.no_grad():
                kept.copy_(parameter)
        taken[id(parameter)] = kept
        used.add(id(kept))
    for child in new.modules():
        for name, parameter in child.__dict__["_parameters"].items():
            if parameter is not None and id(parameter) in taken:
                child.__dict__["_parameters"][name] = taken[id(parameter)]
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        old.__dict__[name] = new.__dict__[name]
    for name in (*ATTRIBUTES, *MAPS):
        setattr(old, name, getattr(new, name))
    old.graph = new.graph
