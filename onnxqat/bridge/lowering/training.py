"""Optimizer steps of ai.onnx.preview.training: one node updates any number of tensors.

Inputs are the learning rate, the number of the step, and then groups of n tensors: weights, gradients and what the
optimizer remembers; outputs are the new weights and memories in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from onnxqat.bridge.importing.builder import Lowered, NodeView


def adagrad_step(
    rate: torch.Tensor,
    step: torch.Tensor,
    x: torch.Tensor,
    gradient: torch.Tensor,
    squares: torch.Tensor,
    decay_factor: float,
    epsilon: float,
    norm_coefficient: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adagrad: new weight, new sum of squared gradients."""
    rate = rate / (1 + step * decay_factor)
    regularized = norm_coefficient * x + gradient
    squares = squares + regularized * regularized
    return (x - rate * regularized / (squares.sqrt() + epsilon)).to(x.dtype), squares


def adam_step(
    rate: torch.Tensor,
    step: torch.Tensor,
    x: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    squares: torch.Tensor,
    alpha: float,
    beta: float,
    epsilon: float,
    norm_coefficient: float,
    norm_coefficient_post: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Adam: new weight, new mean of gradients and of their squares; step 0 has no correction of the bias."""
    regularized = norm_coefficient * x + gradient
    mean = alpha * mean + (1 - alpha) * regularized
    squares = beta * squares + (1 - beta) * (regularized * regularized)
    count = step.clamp(min=1).to(torch.float64)  # step 0 is selected below; a NaN there would spoil gradients
    correction = torch.sqrt(1 - torch.pow(beta, count)) / (1 - torch.pow(alpha, count))
    rate = torch.where(step > 0, rate * correction, rate.to(torch.float64))
    updated = x - rate.to(x.dtype) * (mean / (squares.sqrt() + epsilon))
    return (1 - norm_coefficient_post) * updated, mean, squares


def momentum_step(
    rate: torch.Tensor,
    step: torch.Tensor,
    x: torch.Tensor,
    gradient: torch.Tensor,
    velocity: torch.Tensor,
    alpha: float,
    beta: float,
    norm_coefficient: float,
    nesterov: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient descent with momentum: new weight, new velocity; the gradient of step 0 counts in full."""
    regularized = norm_coefficient * x + gradient
    share = torch.where(step > 0, torch.full_like(rate, beta), torch.ones_like(rate)).to(x.dtype)
    velocity = alpha * velocity + share * regularized
    direction = regularized + alpha * velocity if nesterov else velocity
    return (x - rate * direction).to(x.dtype), velocity


def _steps(n: NodeView, function: Callable[..., Any], memories: int, options: list[Any]) -> Lowered:
    groups = memories + 2
    count = (n.count - 2) // groups
    if count * groups + 2 != n.count:
        raise n.refuse(f"{n.count} inputs")
    rate, step = n.tensor(0), n.tensor(1)
    results: list[fx.Node | None] = [None] * (count * (memories + 1))
    for i in range(count):
        tensors = [n.tensor(2 + i + count * group) for group in range(groups)]
        both = n.call(function, rate, step, *tensors, *options)
        for group in range(memories + 1):
            results[i + count * group] = n.item(both, group)
    return tuple(results)


def _options(n: NodeView, **defaults: float) -> list[Any]:
    return [float(n.attr(name, default)) for name, default in defaults.items()]


def ai_onnx_preview_training_adagrad(n: NodeView) -> Lowered:
    """Adagrad 1."""
    return _steps(n, adagrad_step, 1, _options(n, decay_factor=0.0, epsilon=1e-6, norm_coefficient=0.0))


def ai_onnx_preview_training_adam(n: NodeView) -> Lowered:
    """Adam 1."""
    defaults = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-6, "norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
    return _steps(n, adam_step, 2, _options(n, **defaults))


def ai_onnx_preview_training_momentum(n: NodeView) -> Lowered:
    """Momentum 1, standard and Nesterov."""
    mode = str(n.attr("mode"))
    if mode not in ("standard", "nesterov"):
        raise n.refuse(f"mode {mode}")
    options = _options(n, alpha=0.0, beta=0.0, norm_coefficient=0.0)
    return _steps(n, momentum_step, 1, [*options, mode == "nesterov"])
