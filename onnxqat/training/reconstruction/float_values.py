"""Tensors of the float model that a QDQ file was made from, as the targets of its blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.training.objective import inner_tensors
from onnxqat.training.objective.teachers import places
from onnxqat.training.reconstruction.cache import Cache
from onnxqat.training.reconstruction.execution import GraphRunner

ALIKE = 0.5
"""Largest squared error, relative to the power, of a tensor that a block computes in float from the teacher's, against the
teacher's own. Rounding on calibration data moves a function by less; a tensor that means something else in the file, since
a pass scaled its channels or took it from another place, is off by all its power or more."""


class FloatValues:
    """The tensors of a teacher, by the names that they have in the student too.

    Args:
        teacher: the float model, on the student's device.
        runner: nodes of the student.
        batches: its arguments.

    Raises:
        UsageError: ``option-invalid`` where the teacher's inputs are others.
    """

    def __init__(self, teacher: OnnxModule, runner: GraphRunner, batches: Sequence[Sequence[Tensor]]) -> None:
        self._module, self._runner, self._batches = teacher, runner, batches
        self._inputs = places("inputs", teacher.input_names, runner.module.input_names)

    @torch.no_grad()
    def replace(self, found: dict[fx.Node, Cache], device: torch.device) -> None:
        """Put the teacher's tensors into caches that hold what the student computes without quantizers, where they are alike.

        Args:
            found: node of the student to its values; changed.
            device: where the teacher runs.
        """
        names = {node: name for node in found if (name := self._name(node)) is not None}
        if not names:
            return
        view = inner_tensors.only(self._module, list(names.values()))
        alike = set(names)
        for index, batch in enumerate(self._batches):
            values = view(*(batch[place].to(device) for place in self._inputs))
            for node, value in zip(names, values, strict=True):
                if index == 0 and not is_alike(found[node].batch(0, device), value):
                    alike.discard(node)
                if node in alike:
                    found[node].store(index, value)

    def _name(self, node: fx.Node) -> str | None:
        """The teacher's name of the tensor that `node` gives when quantizers are off."""
        while True:
            name = node.meta.get("onnx_name")
            if name in self._module.tensor_nodes and node.op != "placeholder":
                return str(name)
            source = node.args[0] if node.args else None
            if not isinstance(self._runner.submodule(node), FakeQuantize) or not isinstance(source, fx.Node):
                return None
            node = source


def is_alike(own: Tensor, theirs: Tensor) -> bool:
    """Check whether the student's tensor, computed in float, means what the teacher's of that name does."""
    if own.shape != theirs.shape or own.dtype != theirs.dtype:
        return False
    noise = (own.double() - theirs.double()).square().sum()
    return bool(noise <= ALIKE * torch.minimum(own.double().square().sum(), theirs.double().square().sum()))
