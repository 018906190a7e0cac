"""Optimizers with the parameter groups of quantization-aware training, and the guard that keeps scales positive."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from onnxqat.bridge.state import quantizers
from onnxqat.errors import UsageError

# Low, because the usual start is a trained network with folded BatchNormalization, whose gradients are large.
DEFAULT_LEARNING_RATE: dict[str, float] = {"sgd": 1e-3, "adam": 1e-4, "adamw": 1e-4}


def scales(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters of quantizers by state dict key, each once (quantizers may share a scale)."""
    inside = {id(p) for _, q in quantizers(module) for p in q.parameters()}
    return {key: p for key, p in module.named_parameters() if id(p) in inside and p.requires_grad}


def parameter_groups(
    module: nn.Module,
    *,
    learning_rate: float,
    scale_learning_rate: float | None = None,
    weight_decay: float = 0.0,
    relative_scales: bool = False,
) -> list[dict[str, Any]]:
    """Groups ``weights`` (two dimensions or more, decayed), ``biases`` (the rest, not decayed) and ``scales``.

    Args:
        module: the module; frozen parameters are left out.
        learning_rate: of weights and biases.
        scale_learning_rate: of the parameters of quantizers; None: `learning_rate`, or see `relative_scales`.
        weight_decay: of the weights. A decayed scale would shrink the grid under the weights, so scales have none.
        relative_scales: for optimizers whose steps do not depend on the size of the gradient (Adam). Without an
            explicit `scale_learning_rate`, scales are grouped by their power of two and each group learns at
            `learning_rate` times that power, so that a step changes a scale by about that fraction.
    """
    learned = scales(module)
    rest = [p for key, p in module.named_parameters() if p.requires_grad and key not in learned]
    groups: list[dict[str, Any]] = [
        {"name": "weights", "params": [p for p in rest if p.ndim >= 2], "weight_decay": weight_decay},
        {"name": "biases", "params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    for group in groups:
        group["lr"] = learning_rate
    if scale_learning_rate is not None or not relative_scales:
        rate = learning_rate if scale_learning_rate is None else scale_learning_rate
        groups.append({"name": "scales", "params": list(learned.values()), "weight_decay": 0.0, "lr": rate})
    else:
        by_power: dict[int, list[nn.Parameter]] = {}
        for parameter in learned.values():
            size = float(parameter.detach().abs().mean())
            by_power.setdefault(round(math.log2(size)) if size > 0 else 0, []).append(parameter)
        groups += [
            {"name": f"scales of 2^{power}", "params": params, "weight_decay": 0.0, "lr": learning_rate * 2.0**power}
            for power, params in sorted(by_power.items())
        ]
    return [group for group in groups if group["params"]]


def make(
    name: str,
    module: nn.Module,
    *,
    learning_rate: float | None = None,
    scale_learning_rate: float | None = None,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
) -> Optimizer:
    """The optimizer `name` (``"sgd"``, ``"adam"``, ``"adamw"``) over the groups of :func:`parameter_groups`.

    Args:
        name: which optimizer; `momentum` goes with ``"sgd"``.
        module: the module to train.
        learning_rate: None: 0.001 for SGD, 0.0001 for Adam and AdamW.
        scale_learning_rate: None: as :func:`parameter_groups` says.
        weight_decay: of weights of two dimensions or more.
        momentum: of SGD.

    Raises:
        UsageError: ``option-invalid`` for an unknown name, a rate that is not positive or nothing to train.
    """
    if name not in DEFAULT_LEARNING_RATE:
        known = ", ".join(DEFAULT_LEARNING_RATE)
        raise UsageError("option-invalid", f"there is no optimizer {name!r}", hint=f"one of: {known}")
    rate = DEFAULT_LEARNING_RATE[name] if learning_rate is None else learning_rate
    for value in (rate, rate if scale_learning_rate is None else scale_learning_rate):
        if not (math.isfinite(value) and value >= 0):
            raise UsageError("option-invalid", f"a learning rate is {value}; it must be finite and >= 0")
    groups = parameter_groups(
        module,
        learning_rate=rate,
        scale_learning_rate=scale_learning_rate,
        weight_decay=weight_decay,
        relative_scales=name != "sgd",
    )
    if not groups:
        raise UsageError("option-invalid", "the module has no trainable parameter")
    if name == "sgd":
        return SGD(groups, lr=rate, momentum=momentum)
    return Adam(groups, lr=rate) if name == "adam" else AdamW(groups, lr=rate)


class ScaleGuard:
    """Limits what one step does to a scale: at least half, at most twice what it was. So no scale reaches zero.

    Call :meth:`before` in front of and :meth:`after` behind ``optimizer.step()``; neither waits for the device.

    Attributes:
        limited: how often a scale tensor was limited, a tensor on the device of the scales.
    """

    FACTOR = 2.0

    def __init__(self, module: nn.Module) -> None:
        found = {id(q.scale): q.scale for _, q in quantizers(module) if not q.derived and q.scale.requires_grad}
        self._scales: list[Tensor] = list(found.values())
        self._before: list[Tensor] = []
        device = self._scales[0].device if self._scales else torch.device("cpu")
        self.limited = torch.zeros((), dtype=torch.int64, device=device)

    @torch.no_grad()
    def before(self) -> None:
        """Remember the scales."""
        if self._scales:
            self._before = list(torch._foreach_mul(self._scales, 1.0))  # noqa: SLF001 - one launch for all scales

    @torch.no_grad()
    def after(self) -> None:
        """Bring every scale back into its limits and count."""
        if not self._scales:
            return
        change = torch._foreach_mul(self._scales, -1.0)  # noqa: SLF001
        torch._foreach_maximum_(self._scales, torch._foreach_mul(self._before, 1.0 / self.FACTOR))  # noqa: SLF001
        torch._foreach_minimum_(self._scales, torch._foreach_mul(self._before, self.FACTOR))  # noqa: SLF001
        torch._foreach_add_(change, self._scales)
        sizes = torch.stack(list(torch._foreach_norm(change, float("inf"))))  # noqa: SLF001
        self.limited += (sizes > 0).sum()
