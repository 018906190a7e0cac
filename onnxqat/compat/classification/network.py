"""The float network and the teacher of a run: an ONNX file, or a module of a zoo that is exported."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from onnxqat.compat.classification.settings import Settings
from onnxqat.data.inputs import InputInfo, of_graph
from onnxqat.errors import DataError, ModelError, UsageError
from onnxqat.graph import files_read, io

WRAPPER = "module."
TEACHER = "resnet101"  # the manual's architecture of weights that --teacher-path names alone
EXAMPLES = 2
"""Samples of the batch that a module is exported with; 1 would look like an axis to broadcast."""


def network(settings: Settings) -> ir.Model:
    """The network to train: ``--model-path`` where it is an ONNX file, else ``--arch`` of ``--model-zoo``.

    A module keeps its BatchNormalization where it may train with it.

    Raises:
        UsageError: ``dependency-missing`` for a zoo that is not installed, ``name-unknown``, ``option-invalid``.
        ModelError, UnsupportedError: what cannot be read or exported.
    """
    kept = "keep" if settings.not_qat else settings.batch_norm
    return _model(settings, settings.arch, settings.model_path, settings.pretrained, kept)


def teacher(settings: Settings, float_graph: ir.Model | None = None) -> ir.Model | None:
    """The network to learn from; None without ``--distill-method``.

    Args:
        settings: of the run; ``--teacher-path`` and ``--teacher-arch`` name a teacher.
        float_graph: the network in float before it was quantized: the teacher where none is named.

    Raises:
        UsageError, ModelError, UnsupportedError: as of :func:`network`.
    """
    if settings.distill_method is None:
        return None
    if settings.teacher_path is None and settings.teacher_arch is None:
        if float_graph is None:
            raise UsageError(
                "option-invalid",
                "a run that goes on from quantized weights has no float network to learn from",
                hint="name the teacher: --teacher-path FLOAT.onnx",
            )
        return float_graph
    arch = settings.teacher_arch or TEACHER
    return _model(settings, arch, settings.teacher_path, settings.teacher_path is None, "fold")


def image_input(model: ir.Model) -> InputInfo:
    """The one input of `model`.

    Raises:
        DataError: ``data-input-name`` where there are more.
    """
    found = of_graph(model.graph)
    if len(found) != 1:
        names = ", ".join(i.name for i in found)
        raise DataError("data-input-name", f"a classifier of images has one input, this model has {names}")
    return found[0]


def check_classes(model: ir.Model, settings: Settings) -> None:
    """Refuse a model whose first output has another number of classes than ``--num-classes``.

    Raises:
        UsageError: ``option-invalid``.
    """
    shape = model.graph.outputs[0].shape if model.graph.outputs else None
    classes = shape[1] if shape is not None and len(shape) == 2 else None
    if isinstance(classes, int) and classes != settings.num_classes:
        raise UsageError(
            "option-invalid",
            f"the model has {classes} classes, not {settings.num_classes}",
            hint=f"--num-classes {classes}",
        )


def _model(settings: Settings, arch: str, path: str | None, pretrained: bool, batch_norm: str) -> ir.Model:
    if path is not None and path.endswith(".onnx"):
        return io.load(path)
    module = _module(settings, arch, pretrained and path is None)
    if path is not None:
        _load(module, Path(path))
    from onnxqat.from_torch import export

    image = torch.zeros(EXAMPLES, 3, settings.image_size, settings.image_size)
    options: dict[str, Any] = {"batch_norm": batch_norm, "opset": settings.opset_version}
    return export.run(module.eval(), image, input_names=["input"], output_names=["output"], **options).model


def _module(settings: Settings, arch: str, pretrained: bool) -> nn.Module:
    """Architecture `arch`: a function of ``torchvision.models``, or of the module that the zoo names."""
    zoo = settings.model_zoo
    name = "torchvision.models" if zoo == "torchvision" else zoo
    try:
        home = _imported(name)
    except ImportError as error:
        raise UsageError(
            "dependency-missing",
            f"--model-zoo {zoo} cannot be imported: {error}",
            hint="install it, name a module of the current folder or of this Python, or give an ONNX file with --model-path",
        ) from None
    make = getattr(home, arch, None)
    if not callable(make):
        from onnxqat import discover

        raise discover.unknown("architecture", arch, [n for n in dir(home) if not n.startswith("_")])
    options: dict[str, Any] = {"num_classes": settings.num_classes}
    if pretrained:
        options |= {"weights": "DEFAULT"} if zoo == "torchvision" else {"pretrained": True}
    try:
        made = make(**options)
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        line = str(error).splitlines()[0]
        raise UsageError("option-invalid", f"{name}.{arch} cannot be made with {options}: {line}") from None
    if not isinstance(made, nn.Module):
        raise UsageError("option-invalid", f"{name}.{arch} makes {type(made).__name__}, not a torch module")
    return made


def _imported(name: str) -> ModuleType:
    """A module of this Python, or of the current folder, which an installed command does not search by itself."""
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(os.getcwd())


def _load(module: nn.Module, path: Path) -> None:
    """Load a state dict, alone or in a checkpoint, into `module`; the prefix of wrappers is taken off."""
    if not path.is_file():
        raise ModelError("model-not-found", f"{path}: no such file")
    files_read.note(path, "the weights")
    try:
        held: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises nearly anything on a damaged file
        hint = "save a state dict: a file that holds whole modules runs code when it is read"
        raise UsageError(
            "option-invalid", f"{path}: not a file of tensors: {type(error).__name__}", hint=hint
        ) from None
    held = held.get("state_dict", held) if isinstance(held, dict) else {}
    tensors = {str(k).removeprefix(WRAPPER): v for k, v in held.items() if isinstance(v, Tensor)}
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        line = " ".join(str(error).split())[:300]
        raise UsageError("option-invalid", f"{path} does not fit {type(module).__name__}: {line}") from None
