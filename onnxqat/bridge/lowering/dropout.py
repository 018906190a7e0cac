"""Dropout: a submodule that follows ``.train()`` and ``.eval()``.

==========================  ============================================================================
training_mode in the file   elements are dropped
==========================  ============================================================================
constantly false            never
constantly true             always: that is what the file computes
absent                      in ``.train()``; before version 7, where ``is_test`` is 0, always
computed, or a graph input  in ``.train()``, where it is true
==========================  ============================================================================

What is dropped is drawn from torch's generator; a ``seed`` in the file is not read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.importing.values import Dims

DEFAULT_RATIO = 0.5


class MaskedDropout(nn.Module):
    """Dropout that also returns which elements it kept.

    Args:
        always: whether elements are dropped outside of training too.
    """

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always

    def forward(self, x: torch.Tensor, ratio: Any, training_mode: torch.Tensor | None) -> tuple[Any, Any]:
        """Drop a share of `ratio` and scale up the rest; returns the result and a mask of the kept elements."""
        if not (self.training or self.always):
            return x, torch.ones_like(x, dtype=torch.bool)
        precise = torch.float64 if x.dtype is torch.float64 else torch.float32
        kept = torch.rand(x.shape, dtype=precise, device=x.device) >= ratio
        if isinstance(ratio, torch.Tensor):
            scale = 1 / (1 - ratio.to(precise))
        else:
            scale = torch.tensor(1 / (1 - ratio) if ratio < 1 else 0.0, dtype=precise, device=x.device)
        if training_mode is not None:
            kept = kept | ~training_mode
            scale = torch.where(training_mode, scale, torch.ones_like(scale))
        return torch.where(kept, (x * scale).to(x.dtype), torch.zeros_like(x)), kept

    def extra_repr(self) -> str:
        return "always" if self.always else ""


def _ratio(n: NodeView) -> Any:
    """The ratio as a number where it is known, otherwise as a tensor."""
    if n.opset < 12:
        return float(n.attr("ratio", DEFAULT_RATIO))
    if not n.has(1):
        return DEFAULT_RATIO
    known = n.static(1)
    return n.tensor(1) if known is None else float(known.reshape(()))


def dropout(n: NodeView) -> Lowered:
    """Dropout 1 to 22; see the table above."""
    always = _constant_mode(n)
    given = n.has(2) and always is None
    ratio = _ratio(n)
    if always is False or ratio == 0.0 or not n.is_float(0) or isinstance(n.value(0), Dims):
        if not n.wants(1):
            return n.value(0)
        return n.tensor(0), _mask(n, n.call(torch.ones_like, n.tensor(0), dtype=torch.bool))
    name = n.node.name or f"{n.node.outputs[0].name}_dropout"
    if always is None and not given and not n.wants(1) and isinstance(ratio, float):
        path = n.builder.add_module(name, nn.Dropout(ratio))
        return n.builder.emit("call_module", path, (n.tensor(0),), name=n.base)
    path = n.builder.add_module(name, MaskedDropout(bool(always)))
    both = n.builder.emit("call_module", path, (n.tensor(0), ratio, n.tensor(2) if given else None), name=n.base)
    return n.item(both, 0), (_mask(n, n.item(both, 1)) if n.wants(1) else None)


def _constant_mode(n: NodeView) -> bool | None:
    """Read from the file whether elements are dropped; None where it does not say so, or computes it."""
    if n.opset < 7:
        return not n.attr("is_test", 0)
    known = n.static(2)
    return None if known is None else bool(known.any())


def _mask(n: NodeView, kept: fx.Node) -> fx.Node:
    """The mask in the type of the operator's version: that of the data before version 10."""
    if n.opset >= 10:
        return kept
    kind = n.dtype(0)
    return n.call(torch.Tensor.to, kept, n.torch_dtype(kind))
