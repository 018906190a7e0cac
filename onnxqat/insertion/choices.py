"""Choices for single tensors and nodes beside those of the table and of the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from onnxqat.calibration.observers._base import BaseObserver


@dataclasses.dataclass(frozen=True)
class Choices:
    """Deviations from table, user and calibration.

    Attributes:
        observers: tensor name to the name of the observer whose range it gets.
        seen: an observer of that kind for each of these tensors that is an activation.
        widths: node name to bits of weights and of activations.
        left_out: names of nodes that stay float, each with the reason.
    """

    observers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seen: Mapping[str, BaseObserver] = dataclasses.field(default_factory=dict)
    widths: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)


NONE = Choices()


def merged(parts: Iterable[Choices]) -> Choices:
    """All of `parts`; of two that contradict each other the later."""
    result: dict[str, dict[str, object]] = {field.name: {} for field in dataclasses.fields(Choices)}
    for part in parts:
        for name, known in result.items():
            known.update(getattr(part, name))
    return Choices(**result)  # type: ignore[arg-type]
