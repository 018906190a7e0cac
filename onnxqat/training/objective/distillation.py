"""Knowledge distillation: student and teacher of a run, and the loss that fits them.

The student is the quantized model, the teacher usually the float model that it was made from (Hinton et al.,
"Distilling the Knowledge in a Neural Network", 2015; for quantization Mishra and Marr, "Apprentice", ICLR 2018).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from torch import nn

from onnxqat.bridge.importing.frozen_constants import freeze_constants
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.state import quantizers, set_state
from onnxqat.errors import ModelError, UsageError
from onnxqat.graph import quantized_forms
from onnxqat.training import methods
from onnxqat.training.callbacks import batchnorm_statistics as batch_norms
from onnxqat.training.execution import gradient_quantization
from onnxqat.training.execution.in_float32 import before_casts
from onnxqat.training.objective import teachers
from onnxqat.training.objective.features import FeatureLoss, Features
from onnxqat.training.objective.inner_tensors import expose
from onnxqat.training.objective.losses import Loss, Objective, OutputKind
from onnxqat.training.objective.teachers import CouncilLoss, TeacherAdapter, TeacherEnsemble, TeacherSpec


def student(
    graph: ir.Model,
    method: str,
    *,
    grad_bits: int | None = None,
    batch_norm: batch_norms.Choice = "auto",
    arithmetic: str = "float",
) -> OnnxModule:
    """The module that trains.

    Args:
        graph: QDQ model.
        method: of its quantizers.
        grad_bits: width of gradients (:mod:`onnxqat.training.execution.gradient_quantization`).
        batch_norm: what BatchNormalization does (:mod:`onnxqat.training.callbacks.batchnorm_statistics`).
        arithmetic: what operators between quantizers compute, see :func:`onnxqat.to_torch`.

    Raises:
        UsageError: ``name-unknown``, ``option-invalid``.
        ModelError: ``model-not-quantized``; ``model-form`` for dynamic quantization and vendors' quantizers.
    """
    factory = methods.factory(method, limit_steps=False)
    module = to_torch(graph, quantizer_factory=factory, arithmetic=arithmetic)
    if not any(True for _ in quantizers(module)):
        raise quantized_forms.refusal(graph, "the model") or ModelError(
            "model-not-quantized", "the model has no quantizer to train", hint="insert them first: onnxqat insert-qdq"
        )
    freeze_constants(module, graph)
    methods.freeze_weights(module)
    if grad_bits is not None:
        gradient_quantization.quantize(module, grad_bits)
    batch_norms.set_mode(module, batch_norms.resolve(batch_norm, graph))
    return module


@dataclasses.dataclass
class DistillationSetup:
    """Student, teacher and loss of a run.

    Attributes:
        forward: module that gives the student's outputs: the student, or a view of it that shows inner tensors.
        teacher: module that is imitated; None without.
        loss: loss of the student's outputs, labels and the teacher's outputs.
    """

    forward: nn.Module
    teacher: nn.Module | None
    loss: Objective


def teachers_of(given: Any, student: nn.Module, *, has_labels: bool) -> list[TeacherSpec]:
    """Return the teachers: `given`; without it and without labels, the student with its quantizers off.

    Raises:
        UsageError: ``option-invalid`` when the student has no float weights to teach with.
    """
    if given is not None:
        return teachers.load(given)
    if has_labels:
        return []
    if any(q.codes_name is not None and q.role == "weight" for _, q in quantizers(student)):
        raise UsageError(
            "option-invalid",
            "there are no labels, and the model holds integer weights, so it cannot be its own float teacher",
            hint="pass the float model as teacher",
        )
    own = copy.deepcopy(student).eval()
    set_state(own, "float")
    return [TeacherSpec(own.requires_grad_(False))]


def lesson(
    student: OnnxModule,
    given: Sequence[TeacherSpec],
    *,
    loss: Objective | None = None,
    outputs: OutputKind = "logits",
    features: Features | None = None,
) -> DistillationSetup:
    """Put student, teachers and loss together.

    Args:
        student: what learns, on its device.
        given: teachers, on the same device.
        loss: None: ``Loss()``; a ``Loss`` is told what the outputs of student and teachers are.
        outputs: what the student's first output is.
        features: which inner tensors are compared, too.

    Raises:
        UsageError: ``option-invalid``, ``name-unknown``, ``pattern-no-match``.
    """
    base = loss if loss is not None else Loss()
    if features is not None and not given:
        raise UsageError("option-invalid", "inner tensors are compared with a teacher's, and there is no teacher")
    found = [features.pairs(student, each.module) if features else [] for each in given]
    if any(pairs != found[0] for pairs in found):
        raise UsageError("option-invalid", "the teachers do not all have the inner tensors that are to be compared")
    guides, losses, pairs = list[nn.Module](), list[Objective](), found[0] if found else []
    for each in given:
        told = _loss_for_outputs(base, outputs, each.outputs)
        losses.append(told if features is None else FeatureLoss(told, features, tuple(pairs)))
        module = expose(each.module, [name for _, name in pairs]) if pairs else each.module
        module = before_casts(module)
        guides.append(TeacherAdapter(module, student) if isinstance(module, OnnxModule) else module)
    forward = before_casts(expose(student, [name for name, _ in pairs]) if pairs else student)
    if not guides:
        return DistillationSetup(forward, None, _loss_for_outputs(base, outputs, None))
    if len(guides) == 1:
        return DistillationSetup(forward, guides[0], losses[0])
    return DistillationSetup(forward, TeacherEnsemble(guides), CouncilLoss(losses))


def _loss_for_outputs(loss: Objective, outputs: OutputKind, teacher: OutputKind | None) -> Objective:
    """`loss`, told what outputs are; one of the user's own knows."""
    if not isinstance(loss, Loss):
        return loss
    kind: OutputKind = "probabilities" if outputs == "probabilities" else loss.outputs
    return dataclasses.replace(loss, outputs=kind, teacher_outputs=loss.teacher_outputs or teacher)
