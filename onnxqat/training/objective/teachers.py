"""Teachers: any model with the student's inputs and outputs, one or several of them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.module import OnnxModule
from onnxqat.data.inputs import InputInfo, of_graph
from onnxqat.errors import UsageError
from onnxqat.graph import io, query
from onnxqat.passes import convert_to_float32
from onnxqat.training.objective.losses import Objective, OutputKind


class TeacherAdapter(nn.Module):
    """A teacher from a file, called with the student's inputs; returns what stands beside the student's outputs.

    Inputs and outputs go by name where the teacher has the student's names, else by position.

    Args:
        module: the teacher.
        student: the module that learns.

    Raises:
        UsageError: ``option-invalid`` where neither names nor numbers fit.
    """

    def __init__(self, module: OnnxModule, student: OnnxModule) -> None:
        super().__init__()
        self.module = module
        self._inputs = places("inputs", module.input_names, student.input_names)
        self._outputs = places("outputs", student.output_names, module.output_names)
        self._count = len(module.output_names)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Outputs in the student's order, then whatever the teacher's view exposes."""
        result = self.module(*(inputs[place] for place in self._inputs))
        found = (result,) if isinstance(result, Tensor) else tuple(result)
        return (*(found[place] for place in self._outputs), *found[self._count :])


def places(what: str, wanted: Sequence[str], there: Sequence[str]) -> list[int]:
    """Return the index in `there` of each of `wanted`: by name where all are there, else by position.

    Args:
        what: kind of the names, for the error.
        wanted: names in the order that is asked for.
        there: names in the order of the teacher.

    Raises:
        UsageError: ``option-invalid`` where neither fits.
    """
    if set(wanted) <= set(there):
        return [list(there).index(name) for name in wanted]
    if len(wanted) == len(there):
        return list(range(len(wanted)))
    raise UsageError(
        "option-invalid",
        f"the teacher's {what} do not fit the model's: {', '.join(wanted)} against {', '.join(there)}",
        hint=f"give a network with {what} of these names, or as many of them in the same order",
    )


class TeacherEnsemble(nn.Module):
    """Several teachers, asked one after the other.

    Args:
        members: the teachers.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, *inputs: Tensor) -> tuple[tuple[Tensor, ...], ...]:
        """The outputs of each."""
        results = [member(*inputs) for member in self.members]
        return tuple((r,) if isinstance(r, torch.Tensor) else tuple(r) for r in results)


class CouncilLoss:
    """The mean over teachers of a loss.

    Args:
        losses: of outputs, labels and the outputs of one teacher, one for each.
    """

    def __init__(self, losses: Sequence[Objective]) -> None:
        self.losses = losses

    def __call__(self, outputs: Sequence[Tensor], labels: Tensor | None = None, teacher: Any = None) -> Tensor:
        """The scalar loss; `teacher` holds the outputs of each teacher."""
        pairs = zip(self.losses, teacher, strict=True)
        return torch.stack([loss(outputs, labels, found) for loss, found in pairs]).mean()


@dataclasses.dataclass(frozen=True)
class TeacherSpec:
    """A teacher as the user gave it.

    Attributes:
        module: in eval mode.
        outputs: what its first output is; None where that is not known.
        inputs: what it takes; empty where that is not known.
    """

    module: nn.Module
    outputs: OutputKind | None = None
    inputs: tuple[InputInfo, ...] = ()


def load(given: Any) -> list[TeacherSpec]:
    """The teachers in `given`: a model of any kind that :func:`onnxqat.to_torch` takes, a module, or a list of them."""
    several = given if isinstance(given, (list, tuple)) else [given]
    return [_load(each) for each in several]


def _load(given: Any) -> TeacherSpec:
    if isinstance(given, nn.Module):
        return TeacherSpec(given.eval())
    graph = convert_to_float32.convert(io.load(given))  # torch's CPU is slow in half precision, or lacks it
    return TeacherSpec(to_torch(graph).eval(), output_kind(graph), tuple(of_graph(graph.graph)))


def check_others(given: Sequence[Any], student: io.ModelSource) -> None:
    """Refuse the file of the student as its own teacher: it differs from that in nothing, so there is nothing to learn.

    Raises:
        UsageError: ``option-invalid``.
    """
    if not isinstance(student, (str, os.PathLike)) or not os.path.exists(student):
        return
    named = [each for each in given if isinstance(each, (str, os.PathLike)) and os.path.exists(each)]
    if any(os.path.samefile(student, each) for each in named):
        text = f"the teacher {os.fspath(student)} is the file that is trained, from which it has nothing to learn"
        raise UsageError("option-invalid", text, hint="pass the float model that it was made from")


def check_inputs(given: Sequence[TeacherSpec], student: ir.Model) -> None:
    """Refuse a teacher whose inputs have other sizes than the student's; batch sizes may differ.

    Raises:
        UsageError: ``option-invalid``.
    """
    theirs = tuple(of_graph(student.graph))
    for teacher in given:
        if not teacher.inputs:
            continue
        order = places("inputs", [i.name for i in teacher.inputs], [i.name for i in theirs])
        for wanted, there in zip(teacher.inputs, (theirs[place] for place in order), strict=True):
            one, two = wanted.shape, there.shape
            if one is None or two is None:
                continue
            pairs = list(zip(one, two, strict=False))[1:]
            if len(one) != len(two) or any(a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int)):
                raise UsageError(
                    "option-invalid",
                    f"the teacher's input {wanted} does not take what the model's input {there} does",
                    hint="a teacher takes the inputs of the model",
                )


def output_kind(graph: ir.Model) -> OutputKind:
    """Tell probabilities, which a model that ends in Softmax returns, from logits."""
    outputs = graph.graph.outputs
    node = outputs[0].producer() if outputs else None
    while node is not None and node.op_type in ("DequantizeLinear", "QuantizeLinear", "Clip", "Identity", "Cast"):
        node = query.producer(node.inputs[0])
    return "probabilities" if node is not None and node.op_type == "Softmax" else "logits"
