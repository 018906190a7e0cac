"""Inputs that are searched so that quantizers meet ties, where runtimes that round otherwise part."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import onnx

from onnxqat.calibration import accumulators
from onnxqat.graph import io, qdq
from onnxqat.graph.quantizer import Quantizer
from onnxqat.runtime.session import Session, main_values

NEAR = 1e-4
"""Distance from the middle between two codes, in steps, within which one float32 sum and another may part."""


@dataclasses.dataclass(frozen=True, eq=False)
class Hunt:
    """A network, whose quantizers' inputs are looked at.

    Attributes:
        session: with these inputs as outputs.
        quantizers: by the name of their input.
        name: of the network's input.
        grid: smallest and largest step of that input, and its scale.
    """

    session: Session
    quantizers: dict[str, Quantizer]
    name: str
    grid: tuple[int, int, float]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Hunt:
        """Look at the activations of `model` that a node computes."""
        graph = io.load(model)
        known, name = main_values(graph.graph), str(graph.graph.inputs[0].name)
        found = {q.tensor: q for q in qdq.quantizers(graph) if q.role == "activation" and not q.stored}
        low, high = (int(end) for end in accumulators.steps_of(found[name]))
        scale = float(found[name].qparams.scale)
        inner = {tensor: q for tensor, q in found.items() if tensor != name and tensor in known}
        return cls(Session(graph, optimize=False, tensors=list(inner)), inner, name, (low, high, scale))

    def counts(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Values of each sample at a tie of the quantizer that reads them, saturated ones aside."""
        values = self.session.run({self.name: x}, list(self.quantizers))
        total = np.zeros(len(x), np.int64)
        for tensor, q in self.quantizers.items():
            place = values[tensor] / q.qparams.scale + q.qparams.zero_point
            inside = (place > q.qparams.qtype.quant_min) & (place < q.qparams.qtype.quant_max)
            near = np.abs(np.abs(place - np.rint(place)) - 0.5) <= NEAR
            total += (near & inside).reshape(len(x), -1).sum(1)
        return total

    def search(self, x: npt.NDArray[np.float32], rounds: int = 30, seed: int = 0) -> npt.NDArray[np.float32]:
        """Change single steps of `x`, sample by sample, and keep what meets no fewer ties."""
        low, high, scale = self.grid
        random = np.random.default_rng(seed)
        steps = np.clip(np.rint(x / scale), low, high)
        best = self.counts((steps * scale).astype(np.float32))
        for _ in range(rounds):
            moved = random.random(steps.shape) < 0.03
            other = np.where(moved, np.clip(steps + random.integers(-3, 4, steps.shape), low, high), steps)
            found = self.counts((other * scale).astype(np.float32))
            keep = found >= best
            steps[keep], best = other[keep], np.maximum(best, found)
        return np.asarray(steps * scale, np.float32)
