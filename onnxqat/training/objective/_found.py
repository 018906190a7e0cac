"""Look-up of a loss: a file of the user's, another package's entry point, or a function.

A loss file has ``loss``: a function of the outputs, the labels or None, and the teacher's outputs or None, that returns a
scalar; or an object that is called so, such as a ``Loss``.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from onnxqat import extension
from onnxqat.errors import UsageError
from onnxqat.training.objective.losses import Loss, Objective

LossSource: TypeAlias = "str | Objective"
"""A loss as users give it: a function or an object, the path of a file, or the name of an entry point."""


def _lacks(module: ModuleType) -> str | None:
    return None if callable(getattr(module, "loss", None)) else "there is no function loss(outputs, labels, teacher)"


KIND = extension.Kind(name="loss", package="", group="onnxqat.losses", lacks=_lacks, page="docs/objectives.md")


def made(source: LossSource | None) -> Objective | None:
    """The loss that `source` names or is; errors that one of a file raises name the file.

    Raises:
        UsageError: ``name-unknown``; ``option-invalid`` for a file without a loss, or something that is not called.
    """
    if isinstance(source, str):
        found = extension.load(KIND, source).loss
        return found if isinstance(found, Loss) else _FromFile(source, found)
    if source is not None and not callable(source):
        raise UsageError("option-invalid", f"{source!r} is no loss", hint="give a function, a Loss or a file")
    return source


class _FromFile:
    """The loss of a file.

    Args:
        name: as it was given.
        function: what computes it.
    """

    def __init__(self, name: str, function: Objective) -> None:
        self._name, self._function = name, extension.blamed(KIND, name, function)

    def __call__(self, outputs: Sequence[Tensor], labels: Tensor | None = None, teacher: Any = None) -> Tensor:
        """The scalar loss.

        Raises:
            UsageError: ``extension-failed``: the function raised, or gave something else than a scalar.
        """
        loss = self._function(outputs, labels, teacher)
        if isinstance(loss, Tensor) and loss.ndim == 0 and torch.is_floating_point(loss):
            return loss
        given = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(
            "extension-failed", f"the loss {self._name} gave {given}", hint="return a float scalar, such as a mean"
        )
