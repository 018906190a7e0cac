"""Learn the rounding of one block's weights, and the scales of its activations, from what goes in and should come out."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.training.methods import qdrop
from onnxqat.training.optim.optimizers import ScaleGuard
from onnxqat.training.reconstruction.blocks import Block
from onnxqat.training.reconstruction.cache import Cache
from onnxqat.training.reconstruction.execution import GraphRunner

HELD_OUT = 8
"""Every so many-th batch is kept from the learning, to judge it by, where there are as many."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a block's optimization.

    Attributes:
        iterations: steps of Adam.
        learning_rate: learning rate of the roundings.
        scale_learning_rate: learning rate of the scales of activations, as a share of the scale; 0 leaves them.
        drop: probability with which an element of an activation, or of the block's input, is taken from the float
            network (Wei et al., "QDrop", ICLR 2022).
        seed: of the choice of samples.
    """

    iterations: int
    learning_rate: float
    scale_learning_rate: float
    drop: float
    seed: int


@dataclasses.dataclass(frozen=True)
class Samples:
    """Inputs and target of a block over the data.

    Attributes:
        quantized: values of the block's entries where everything in front of it is quantized.
        floating: the same in the float network.
        target: values of its exit in the float network.
    """

    quantized: Sequence[Cache]
    floating: Sequence[Cache]
    target: Cache

    @property
    def by_sample(self) -> bool:
        """Check whether axis 0 of entries and target counts samples, so that samples can be mixed across batches."""
        return len({cache.shape[:1] for cache in (*self.quantized, self.target)} - {()}) == 1 and bool(
            self.target.shape
        )


def learn(
    runner: GraphRunner, block: Block, samples: Samples, settings: Settings, device: torch.device
) -> tuple[float, float]:
    """Train the block and keep what it learned where that has the smaller error.

    Returns:
        Mean squared error at the block's exit before and after, in eval mode, on batches that were held out where there
        are enough.
    """
    held = [i for i in range(len(samples.target)) if len(samples.target) >= HELD_OUT and i % HELD_OUT == HELD_OUT - 1]
    judged = held or range(len(samples.target))
    used = np.asarray([i for i in range(len(samples.target)) if i not in held])
    quantizers = (*block.layers, *(block.activations if settings.scale_learning_rate else ()))
    kept = [copy.deepcopy(q.state_dict()) for q in quantizers]
    before = error(runner, block, samples, judged, device)
    _train(runner, block, samples, settings, used, device)
    after = error(runner, block, samples, judged, device)
    if not after < before:
        for quantizer, state in zip(quantizers, kept, strict=True):
            quantizer.load_state_dict(state)
    return before, after


@torch.no_grad()
def error(runner: GraphRunner, block: Block, samples: Samples, batches: Sequence[int], device: torch.device) -> float:
    """Mean squared error at the exit of `block` over some batches."""
    nodes = runner.between(block.entries, [block.exit])
    total = 0.0
    for index in batches:
        inputs = {n: cache.batch(index, device) for n, cache in zip(block.entries, samples.quantized, strict=True)}
        (found,) = runner.run(nodes, inputs, [block.exit])
        total += float((found - samples.target.batch(index, device)).float().square().mean())
    return total / len(batches)


def _train(
    runner: GraphRunner,
    block: Block,
    samples: Samples,
    settings: Settings,
    used: np.ndarray,
    device: torch.device,
) -> None:
    random = np.random.default_rng(settings.seed)
    nodes = runner.between(block.entries, [block.exit])
    inside = [q for n in nodes if isinstance(q := runner.submodule(n), FakeQuantize)]
    optimizer = torch.optim.Adam(_groups(block, settings))
    schedule = CosineAnnealingLR(optimizer, settings.iterations)
    guard = ScaleGuard(nn.ModuleList(block.activations))
    for quantizer in inside:
        quantizer.train()
    for step in range(settings.iterations):
        inputs, target = _draw(block, samples, settings, random, used, device)
        (found,) = runner.run(nodes, inputs, [block.exit])
        loss = _distance(found, target)
        for quantizer in block.layers:
            penalty = quantizer.penalty(step / settings.iterations)
            loss = loss if penalty is None else loss + penalty
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        guard.before()
        optimizer.step()
        guard.after()
        schedule.step()
    for quantizer in inside:
        quantizer.eval()


def _groups(block: Block, settings: Settings) -> list[dict[str, object]]:
    # A weight that two layers share has one quantizer for both, and activations that share parameters have one scale.
    roundings = list(dict.fromkeys(p for q in block.layers for _, p in q.named_parameters() if p.requires_grad))
    groups: list[dict[str, object]] = [{"params": roundings, "lr": settings.learning_rate}]
    if settings.scale_learning_rate:
        for scale in dict.fromkeys(q.scale for q in block.activations if q.scale.requires_grad):
            rate = settings.scale_learning_rate * float(scale.detach().abs().mean())
            groups.append({"params": [scale], "lr": rate})
    return groups


def _draw(
    block: Block,
    samples: Samples,
    settings: Settings,
    random: np.random.Generator,
    used: np.ndarray,
    device: torch.device,
) -> tuple[dict[fx.Node, Tensor], Tensor]:
    """Inputs and target of one step."""
    if samples.by_sample:
        size = samples.target.shape[0]
        chosen = random.choice(len(used) * size, size, replace=False)
        order = np.sort(used[chosen // size] * size + chosen % size)
        values = [[c.samples(order, device) for c in caches] for caches in (samples.quantized, samples.floating)]
        target = samples.target.samples(order, device)
    else:
        index = int(random.choice(used))
        values = [[c.batch(index, device) for c in caches] for caches in (samples.quantized, samples.floating)]
        target = samples.target.batch(index, device)
    inputs: dict[fx.Node, Tensor] = {}
    for node, quantized, floating in zip(block.entries, *values, strict=True):
        mixed = quantized
        if settings.drop and quantized.is_floating_point():
            mixed = qdrop.mixed(floating, quantized, settings.drop)
        inputs[node] = mixed
    return inputs, target


def _distance(found: Tensor, target: Tensor) -> Tensor:
    """Squared error, summed over channels and averaged over the rest, as in BRECQ: the weight of the penalty goes with it."""
    squared = (found.float() - target.float()).square()
    return squared.sum(1).mean() if squared.ndim > 1 else squared.mean()
