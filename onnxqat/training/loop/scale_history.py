"""The scales of the last steps, for the black box."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor, nn

from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.training.distributed.tensors import whole

LENGTH = 32
"""Steps that are remembered."""


class ScaleHistory:
    """Copies of all scales before each of the last steps, on their device; one launch a step, nothing is waited for.

    Args:
        module: whose scales; derived ones follow from others and are left out.
    """

    def __init__(self, module: nn.Module) -> None:
        found = {id(q.scale): (q.tensor, q.scale) for _, q in quantizers(module) if not q.derived}
        self._names = [name for name, _ in found.values()]
        self._scales: list[Tensor] = [scale for _, scale in found.values()]
        self._held: deque[tuple[int, list[Tensor]]] = deque(maxlen=LENGTH)

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Remember the scales before step `step`."""
        if self._scales:
            self._held.append((step, list(torch._foreach_mul(self._scales, 1.0))))  # noqa: SLF001

    def forget(self, step: int) -> None:
        """Forget step `step` and those behind it."""
        while self._held and self._held[-1][0] >= step:
            self._held.pop()

    def tensors(self) -> dict[str, Tensor]:
        """``steps``, int64 of shape (n,), and ``scale/<tensor>``, float32 of shape (n, ...), on the CPU."""
        held = {"steps": torch.tensor([step for step, _ in self._held], dtype=torch.int64)}
        for index, name in enumerate(self._names if self._held else ()):
            held[f"scale/{name}"] = torch.stack([whole(scales[index]).cpu() for _, scales in self._held])
        return held
