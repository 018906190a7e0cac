"""Feature losses: inner tensors of student and teacher, compared by name.

``"mse"`` is the hint of Romero et al., "FitNets", ICLR 2015, relative to the size of the teacher's tensor.
``"attention"`` compares where activations are large: Zagoruyko and Komodakis, "Paying More Attention to Attention",
ICLR 2017, equation 2 with sums of squares over channels.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from onnxqat.bridge.module import OnnxModule
from onnxqat.errors import UsageError
from onnxqat.training.objective.losses import Loss, Objective, relative_error

FeatureDistance = Literal["mse", "attention"]
Names: TypeAlias = "Mapping[str, str] | Sequence[str]"

QUIET = 0.01
"""Part of a tensor's mean square that a channel counts as at least: behind a Relu there are channels that are 0."""


@dataclasses.dataclass(frozen=True)
class Features:
    """Inner tensors that the feature loss compares, and its distance and weight.

    Attributes:
        names: tensor of the student -> tensor of the teacher, names in the ONNX files (of a teacher that is another
            torch module: submodules); or names and glob patterns of tensors that both have under the same name.
        distance: ``"mse"``: squared difference over the teacher's mean square, per channel as in
            :func:`onnxqat.training.objective.losses.relative_error`, a channel next to 0 counting as :data:`QUIET` of the
            tensor; shapes (N, ...) are the same. ``"attention"``: squared distance of the maps of energy over
            channels, each map of length 1; shapes (N, C, ...) may differ in C.
        weight: factor of the mean over all pairs in the loss.
    """

    names: Names
    distance: FeatureDistance = "mse"
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.distance not in ("mse", "attention"):
            raise UsageError("option-invalid", f"there is no feature loss {self.distance!r}", hint="mse or attention")
        if not 0.0 <= self.weight < float("inf"):
            raise UsageError("option-invalid", f"the weight of the feature loss is {self.weight}; it must be >= 0")

    def pairs(self, student: OnnxModule, teacher: nn.Module) -> list[tuple[str, str]]:
        """The pairs of names, patterns resolved.

        Raises:
            UsageError: ``pattern-no-match``; that names exist is seen where the tensors are exposed.
        """
        if isinstance(self.names, Mapping):
            found = list(self.names.items())
        else:
            both = [name for name in student.tensor_nodes if name in _names(teacher)]
            found = [(name, name) for pattern in self.names for name in _matching(pattern, both)]
        if not found:
            raise UsageError("option-invalid", "the feature loss has no tensor to compare")
        return list(dict.fromkeys(found))


def _names(teacher: nn.Module) -> set[str]:
    return set(teacher.tensor_nodes if isinstance(teacher, OnnxModule) else dict(teacher.named_modules()))


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    found = [name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)]
    if not found:
        raise UsageError(
            "pattern-no-match",
            f"no tensor that student and teacher both have has a name that matches {pattern!r}",
            hint="give pairs of names where they differ: STUDENT=TEACHER",
        )
    return found


@dataclasses.dataclass(frozen=True)
class FeatureLoss:
    """`base` on the outputs plus the feature loss on the tensors behind them.

    Attributes:
        base: loss of outputs, labels and teacher's outputs.
        features: how tensors are compared.
        pairs: names of the tensors behind the outputs, of the student and of the teacher.
    """

    base: Objective
    features: Features
    pairs: tuple[tuple[str, str], ...]

    def __call__(self, outputs: Sequence[Tensor], labels: Tensor | None = None, teacher: Any = None) -> Tensor:
        """The scalar loss.

        Raises:
            UsageError: ``option-invalid`` for tensors whose shapes cannot be compared.
        """
        count = len(self.pairs)
        loss = self.base(outputs[:-count], labels, teacher[:-count])
        compared = zip(self.pairs, outputs[-count:], teacher[-count:], strict=True)
        distances = [self._distance(names, s.float(), t.float()) for names, s, t in compared]
        return loss + self.features.weight * torch.stack(distances).mean()

    def check_labels(self, outputs: Sequence[Tensor], labels: Tensor) -> None:
        """As the base has it.

        Raises:
            DataError: ``data-labels``.
        """
        if isinstance(self.base, Loss):
            self.base.check_labels(outputs, labels)

    def _distance(self, names: tuple[str, str], student: Tensor, teacher: Tensor) -> Tensor:
        attention = self.features.distance == "attention"
        skipped = slice(1, 2) if attention else slice(0, 0)
        shapes = [list(t.shape) for t in (student, teacher)]
        if attention and student.ndim < 3:
            raise UsageError("option-invalid", f"tensor {names[0]!r} of shape {shapes[0]} has no map for attention")
        for shape in shapes:
            del shape[skipped]
        if shapes[0] != shapes[1]:
            whole = [tuple(t.shape) for t in (student, teacher)]
            raise UsageError(
                "option-invalid",
                f"tensor {names[0]!r} has shape {whole[0]}, {names[1]!r} of the teacher {whole[1]}",
                hint="compare tensors of the same shape; attention lets the number of channels differ",
            )
        if attention:
            return attention_distance(student, teacher)
        return relative_error(student, teacher, floor=QUIET)


def attention_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean over samples of the squared distance of two attention maps of length 1; a scalar from 0 to 2.

    Args:
        student: float32, (N, C, ...).
        teacher: float32, the same shape but for C.
    """
    maps = [functional.normalize(t.square().sum(1).flatten(1), dim=1) for t in (student, teacher)]
    return (maps[0] - maps[1]).square().sum(1).mean()
