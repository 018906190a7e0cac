"""Tensors that share a range, and the candidates for it."""

from __future__ import annotations

import dataclasses

from onnxqat.calibration.observers.auto import Observer
from onnxqat.types import QParams


@dataclasses.dataclass(frozen=True)
class Group:
    """Tensors that share a range.

    Attributes:
        roots: the observers that have the choice: one, or several that saw the same values, as in front of a Transpose
            and behind it.
        values: an observer of what all members held.
        candidates: parameters by name, the widest range first, equal ones once.
        members: each tensor with the (node name, input index) that read it quantized; None for all.
    """

    roots: tuple[Observer, ...]
    values: Observer
    candidates: dict[str, QParams]
    members: tuple[tuple[str, frozenset[tuple[str, int]] | None], ...]

    @property
    def chosen(self) -> QParams:
        """The parameters of the choice so far."""
        return self.grid(self.choice)

    @property
    def choice(self) -> str:
        """The name of the choice so far."""
        return self.roots[0].choice

    def grid(self, name: str) -> QParams:
        """The parameters of the observer `name`, which may equal those of a candidate of another name."""
        return self.candidates.get(name) or self.values.read_as(name).qparams()

    def take(self, name: str) -> None:
        """Choose the observer `name`."""
        for root in self.roots:
            root.choice = name
