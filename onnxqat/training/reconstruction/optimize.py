"""Learn a block's weights or their rounding, and its scales, from what goes in and should come out."""

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
        learning_rate: learning rate of the roundings, or of the weights in quantization steps of theirs.
        scale_learning_rate: learning rate of scales, as a share of the scale; 0 leaves those of activations.
        drop: probability with which an element of an activation, or of the block's input, is taken from the float
            network (Wei et al., "QDrop", ICLR 2022).
        seed: of the choice of samples.
        weights: whether weights, their scales and biases learn, in place of the roundings.
    """

    iterations: int
    learning_rate: float
    scale_learning_rate: float
    drop: float
    seed: int
    weights: bool = False


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
    values = {p: p.detach().clone() for p in _weights_and_biases(runner, block)} if settings.weights else {}
    before = error(runner, block, samples, judged, device)
    _train(runner, block, samples, settings, used, device)
    after = error(runner, block, samples, judged, device)
    if not after < before:
        for quantizer, state in zip(quantizers, kept, strict=True):
            quantizer.load_state_dict(state)
        for parameter, value in values.items():
            parameter.data.copy_(value)
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
    """Optimize the rounding and scales of one block against its float outputs on drawn samples."""
    random = np.random.default_rng(settings.seed)
    nodes = runner.between(block.entries, [block.exit])
    inside = [q for n in nodes if isinstance(q := runner.submodule(n), FakeQuantize)]
    groups = _groups(block, settings) + (_groups_of_weights(runner, block, settings) if settings.weights else [])
    optimizer = torch.optim.Adam(groups)
    schedule = CosineAnnealingLR(optimizer, settings.iterations)
    guard = ScaleGuard(nn.ModuleList([*block.layers, *block.activations]))
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
    groups: list[dict[str, object]] = []
    if not settings.weights:
        roundings = list(dict.fromkeys(p for q in block.layers for _, p in q.named_parameters() if p.requires_grad))
        groups.append({"params": roundings, "lr": settings.learning_rate})
    if settings.scale_learning_rate:
        learned = (*block.activations, *(block.layers if settings.weights else ()))
        for scale in dict.fromkeys(q.scale for q in learned if q.scale.requires_grad):
            rate = settings.scale_learning_rate * float(scale.detach().abs().mean())
            groups.append({"params": [scale], "lr": rate})
    return groups


def _groups_of_weights(runner: GraphRunner, block: Block, settings: Settings) -> list[dict[str, object]]:
    """Groups of weights, at `learning_rate` of their quantization steps, and of biases, relative to their size as scales.

    Adam moves a value by about its rate at each step, so what `learning_rate` says is how far a weight gets.
    """
    groups: list[dict[str, object]] = []
    for parameter, quantizer in _weights_and_biases(runner, block).items():
        if quantizer is None:
            rate = settings.scale_learning_rate * float(parameter.detach().square().mean().sqrt())
        else:
            rate = settings.learning_rate * float(quantizer.effective_scale().detach().abs().mean())
        groups.append({"params": [parameter], "lr": rate})
    return groups


def _weights_and_biases(runner: GraphRunner, block: Block) -> dict[nn.Parameter, FakeQuantize | None]:
    """Parameters that the block reads and that learn, each with the quantizer of the block's weights that reads it."""
    found: dict[nn.Parameter, FakeQuantize | None] = {}
    for node in runner.between(block.entries, [block.exit]):
        parameter = runner.parameter(node)
        if parameter is not None and parameter.requires_grad and parameter.is_floating_point():
            readers = [q for user in node.users if isinstance(q := runner.submodule(user), FakeQuantize)]
            weights = [q for q in readers if q.role == "weight"]
            if all(q in block.layers for q in weights):  # others are learned with a block of theirs
                found[parameter] = next(iter(weights), None)
    return found


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
