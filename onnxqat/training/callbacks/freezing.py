"""Iterative freezing: a weight that keeps hopping between two codes is held at the code that it had most often.

Nagel et al., "Overcoming Oscillations in Quantization-Aware Training", ICML 2022, section 4.2 and algorithm 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from onnxqat.errors import UsageError
from onnxqat.training.callbacks.callback import Callback, Run
from onnxqat.training.callbacks.quantized_weights import QuantizedWeight, quantized_weights

MOMENTUM = 0.01
"""Part of a frequency and of a mean code that one step replaces (the paper's m)."""
START = 0.1
"""The authors' threshold at the start of a run, where hardly a weight reaches it."""
PAPER = 0.01
"""The authors' threshold at the end, for 4 bits; 0.011 for 3."""


@dataclasses.dataclass
class _Track:
    """Oscillation statistics of the weights of one tensor; the tensors have its shape."""

    weight: QuantizedWeight
    codes: Tensor  # float32: of the step before, less the zero point
    direction: Tensor  # int8: of the last change, 0 before there was one
    frequency: Tensor  # float32: exponential moving average of oscillations
    mean: Tensor  # float32: of the codes
    frozen: Tensor  # bool
    held: Tensor  # float32: what a frozen weight is held at; empty where that follows from codes and scale
    grid: tuple[int, int]

    def tensors(self) -> dict[str, Tensor]:
        return {key: getattr(self, key) for key in ("codes", "direction", "frequency", "mean", "frozen", "held")}


class Freezing(Callback):
    """Counts changes of a code against the direction of the change before, and freezes what oscillates too often.

    The threshold on the frequency falls from :data:`START` to its final value along a half cosine. A frozen weight
    stays at the rounded mean of its codes, times the scale as it learns on.

    Where the graph folds a BatchNormalization into the weight, codes are those of the folded weight, and a frozen weight
    stays where the factor of that step puts it on its code. It does not follow the factor from then on: the statistics
    follow the weight, and one that followed them would grow or shrink without end. A drifting factor can so carry it to
    the next code, slowly; it is its own gradient that no longer moves it.

    Args:
        threshold: final threshold, oscillations per step, > 0 and at most :data:`START`.

    Raises:
        UsageError: ``option-invalid``.
    """

    name = "freezing"
    needs_whole_weights = True

    def __init__(self, threshold: float = PAPER) -> None:
        if not 0.0 < threshold <= START:
            raise UsageError("option-invalid", f"the threshold of freezing is {threshold}; it is > 0 and <= {START}")
        self.threshold = threshold
        self._total = 1
        self._tracks: dict[str, _Track] = {}
        self._state: Mapping[str, Any] = {}

    def start(self, run: Run) -> None:
        """See the base class."""
        self._total = run.schedule.total_steps
        self._tracks = {each.name: _track(each) for each in quantized_weights(run.module)}
        for name, track in self._tracks.items():
            for key, value in track.tensors().items():
                if f"{name}.{key}" in self._state:
                    value.copy_(self._state[f"{name}.{key}"])

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """See the base class."""
        rest = 0.5 * (1.0 + math.cos(math.pi * (step + 1) / self._total))
        threshold = self.threshold + (START - self.threshold) * rest
        for name, track in self._tracks.items():
            quantizer = track.weight.quantizer
            if (quantizer.quant_min, quantizer.quant_max) != track.grid:
                self._tracks[name] = _track(track.weight)  # a width of a progressive run has begun
                continue
            _update_track(track, threshold)

    def frozen(self) -> int:
        """Count the frozen weights; waits for the device."""
        return sum(int(track.frozen.sum()) for track in self._tracks.values())

    def restored(self, run: Run) -> None:
        """See the base class."""
        self.start(run)

    def state_dict(self) -> dict[str, Any]:
        """See the base class."""
        return {f"{name}.{key}": v for name, track in self._tracks.items() for key, v in track.tensors().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See the base class; the weights are known when the run starts."""
        self._state = dict(state)


def _track(weight: QuantizedWeight) -> _Track:
    codes, _ = weight.steps()
    zeros = torch.zeros_like(codes)
    grid = (weight.quantizer.quant_min, weight.quantizer.quant_max)
    held = zeros.clone() if weight.folded is not None else zeros.new_zeros(0)
    return _Track(weight, codes.clone(), zeros.to(torch.int8), zeros.clone(), codes.clone(), zeros.bool(), held, grid)


def _update_track(track: _Track, threshold: float) -> None:
    """One step of algorithm 1, in place."""
    codes, scale = track.weight.steps()
    weight = track.weight.weight
    codes = torch.where(track.frozen, track.codes, codes)
    change = torch.sign(codes - track.codes).to(torch.int8)
    oscillated = (change * track.direction) < 0
    track.frequency.lerp_(oscillated.to(torch.float32), MOMENTUM)
    track.mean.lerp_(codes, MOMENTUM)
    newly = (track.frequency > threshold) & ~track.frozen
    codes = torch.where(newly, track.mean.round(), codes)
    track.frozen |= newly
    track.direction.copy_(torch.where(change != 0, change, track.direction))
    track.codes.copy_(codes)
    where = track.weight.weight_of(codes * scale)
    if track.weight.folded is not None:
        where = track.held.copy_(torch.where(newly, where, track.held))
    weight.copy_(torch.where(track.frozen, where, weight))
