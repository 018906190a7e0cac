"""Student and teacher of a run, and the loss that fits them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import onnx_ir as ir
from torch import nn

from onnxqat.bridge.importer import to_torch
from onnxqat.bridge.state import quantizers, set_state
from onnxqat.errors import ModelError, UsageError
from onnxqat.training import methods
from onnxqat.training.frozen_constants import freeze_constants
from onnxqat.training.losses import Loss


def student(graph: ir.Model, method: str) -> nn.Module:
    """The module that trains, with quantizers of `method`.

    Raises:
        ModelError: ``model-not-quantized``.
    """
    module = to_torch(graph, quantizer_factory=methods.factory(method))
    if not any(True for _ in quantizers(module)):
        raise ModelError(
            "model-not-quantized", "the model has no quantizer to train", hint="insert them first: onnxqat insert-qdq"
        )
    freeze_constants(module, graph)
    return module


def teacher(given: Any, student: nn.Module, *, has_labels: bool) -> nn.Module | None:
    """What is imitated: `given`; without it and without labels, the student with its quantizers off.

    Raises:
        UsageError: ``option-invalid`` when the student has no float weights to teach with.
    """
    if isinstance(given, nn.Module):
        return given.eval()
    if given is not None:
        return to_torch(given).eval()
    if has_labels:
        return None
    if any(q.codes_name is not None and q.role == "weight" for _, q in quantizers(student)):
        raise UsageError(
            "option-invalid",
            "there are no labels, and the model holds integer weights, so it cannot be its own float teacher",
            hint="pass the float model as teacher",
        )
    own = copy.deepcopy(student).eval()
    set_state(own, "float")
    return own.requires_grad_(False)


def adapted(loss: Loss, graph: ir.Model) -> Loss:
    """`loss` for a model that ends in Softmax, whose output is no logits."""
    outputs = graph.graph.outputs
    node = outputs[0].producer() if outputs else None
    while node is not None and node.op_type in ("DequantizeLinear", "QuantizeLinear", "Clip", "Identity", "Cast"):
        first = node.inputs[0]
        node = first.producer() if first is not None else None
    if node is not None and node.op_type == "Softmax":
        return dataclasses.replace(loss, outputs="probabilities")
    return loss
