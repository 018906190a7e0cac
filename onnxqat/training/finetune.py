"""Fine-tune a QDQ model: import, train, write back."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from onnxqat.bridge.importer import to_torch
from onnxqat.bridge.state import quantizers, set_state
from onnxqat.bridge.write_back import write_back
from onnxqat.calibration.inputs import of_graph, static_batch
from onnxqat.calibration.preprocess import Preprocess, parse
from onnxqat.errors import ModelError, UsageError
from onnxqat.graph import io, walk
from onnxqat.training import batches, holdout, methods, optimizers
from onnxqat.training.checkpoint import Progress
from onnxqat.training.fit import Augment, Fitted, Loop, MovingAverage, Precision, Report, fit
from onnxqat.training.losses import Loss
from onnxqat.training.schedule import CosineSchedule

__all__ = ["FinetuneResult", "Report", "finetune", "fit", "freeze_constants"]

# Constants that are settings of an operator and no weights: (operator, input index).
SETTINGS = frozenset(
    {
        ("BatchNormalization", 3),
        ("BatchNormalization", 4),
        ("Clip", 1),
        ("Clip", 2),
        ("Div", 1),
        ("Pad", 2),
        ("Pow", 1),
        ("Range", 0),
        ("Range", 1),
        ("Range", 2),
        ("Resize", 1),
        ("Resize", 2),
        ("Where", 1),
        ("Where", 2),
    }
)


@dataclasses.dataclass
class FinetuneResult:
    """What a run gives.

    Attributes:
        model: the tuned model, of the kind that was given; the output path when a path was given.
        module: the trained module, in eval mode, with the weights that were written.
        steps: optimizer steps, those before a resume included.
        losses: mean training loss of every epoch.
        best_epoch: epoch of the best score, counted from 1; 0 when that is the start, or no epoch was finished.
        best_score: its score.
        written: which weights were written: ``"best"``, ``"start"`` when no epoch scored higher, and where nothing
            could be scored ``"average"`` or ``"last"``.
        limited_scales: how often a step would have more than doubled or less than halved a scale; more than a few
            mean that the scales' learning rate is too high.
        seconds: wall time of the training loop of this call.
    """

    model: Any
    module: nn.Module
    steps: int
    losses: list[float]
    best_epoch: int
    best_score: float | None
    written: str
    limited_scales: int
    seconds: float


def finetune(
    model: io.ModelSource,
    data: Any,
    *,
    labels: Any = None,
    preprocess: str | Preprocess | None = None,
    teacher: io.ModelSource | nn.Module | None = None,
    method: str = "lsq",
    epochs: int | None = None,
    max_steps: int | None = None,
    batch_size: int = 32,
    optimizer: str = "adamw",
    learning_rate: float | None = None,
    scale_learning_rate: float | None = None,
    weight_decay: float = 0.0,
    warmup_steps: int | None = None,
    loss: Loss | None = None,
    ema: float | None = None,
    gradient_norm: float | None = None,
    precision: Precision = "float32",
    augment: Augment | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    output: str | os.PathLike[str] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[Report], None] | None = None,
) -> FinetuneResult:
    """Train weights and scales of a QDQ model through its quantizers and write them back into it.

    Learns from labels, from a teacher, or from both (`loss` mixes them). With neither, the teacher is the model
    itself with its quantizers off, which works on a hundred unlabelled samples.

    Args:
        model: QDQ model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        data: what :func:`onnxqat.training.batches.make` takes: arrays, a path, an iterable or a callable of batches.
        labels: labels of array data.
        preprocess: preprocessing line for a folder of images.
        teacher: float model, or a module that takes the same inputs.
        method: how scales learn, a file of ``onnxqat/training/methods``.
        epochs: passes over the data; 1 when `max_steps` is not given either.
        max_steps: end after so many steps.
        batch_size: samples a batch, where the model does not prescribe it.
        optimizer: ``"adamw"``, ``"adam"`` or ``"sgd"`` (momentum 0.9).
        learning_rate: of weights and biases; None: 0.001 for SGD, 0.0001 for Adam and AdamW.
        scale_learning_rate: of scales; None: the same for SGD, relative to the size of the scale for Adam and AdamW.
        weight_decay: of weights of two dimensions or more; scales and biases have none.
        warmup_steps: None: a twentieth of the run.
        loss: None: ``Loss()``.
        ema: decay of a moving average of the weights, which is then evaluated and written; None: no average.
        gradient_norm: limit on the norm of the gradient.
        precision: ``"bfloat16"``: autocast around the model; quantizers compute in float32.
        augment: changes the inputs of a batch (dict from name to tensor), for student and teacher alike.
        evaluate: score of the module before the first step and after each epoch, higher is better; the best is
            written, the start included. None: minus the loss on samples that are held out, where there are no labels
            and at least 100 samples, else on training samples (:mod:`onnxqat.training.holdout`); the last epoch that
            beats the start is written, or the start where none does.
        seed: of the order of samples and of torch's random generator, which is as before afterwards.
        device: None: CUDA where there is one.
        output: where to write the model; needed when `model` is a path.
        checkpoint_dir: folder for ``last.safetensors`` and ``best.safetensors``.
        resume: go on from ``last.safetensors`` where it exists.
        progress: called after each step.

    Returns:
        The result; ``result.model`` is the tuned model.

    Raises:
        ModelError: ``model-not-quantized`` when there is no quantizer; the file's errors.
        UsageError: ``option-invalid``, ``name-unknown``.
        DataError: what is wrong with the data.
        QatError: ``training-diverged``, ``checkpoint-mismatch``.
    """
    if isinstance(model, (str, os.PathLike)) and output is None:
        raise UsageError("option-invalid", f"no output path for the tuned {os.fspath(model)!r}")
    graph = io.load(model)
    module = _student(graph, method)
    inputs = of_graph(graph.graph)
    line = parse(preprocess) if isinstance(preprocess, str) else preprocess
    source = batches.make(data, labels, inputs, batch_size=batch_size, seed=seed, preprocess=line)
    has_labels = labels is not None or _yields_labels(source)
    guide = _teacher(teacher, module, has_labels=has_labels)
    source, scored = holdout.split(source, has_labels=has_labels) if evaluate is None else (source, ())
    schedule = _schedule(source, epochs, max_steps, warmup_steps)
    place = _place(device)
    module.to(place)
    loop = Loop(
        module=module,
        batches=source,
        loss=_adapted(loss or Loss(), graph),
        optimizer=optimizers.make(
            optimizer,
            module,
            learning_rate=learning_rate,
            scale_learning_rate=scale_learning_rate,
            weight_decay=weight_decay,
        ),
        schedule=schedule,
        teacher=guide.to(place) if guide is not None else None,
        augment=augment,
        precision=precision,
        average=MovingAverage(module, ema) if ema is not None else None,
        evaluate=evaluate,
        scored=scored,
        gradient_norm=gradient_norm,
        progress=progress,
        folder=Path(checkpoint_dir) if checkpoint_dir is not None else None,
        settings={"method": method, "optimizer": optimizer, "seed": seed, **dataclasses.asdict(schedule)},
    )
    loop.settings["batch_size"] = static_batch(inputs) or batch_size
    start = time.perf_counter()
    with _seeded(seed, place):
        state = loop.run(resume=resume)
    seconds = time.perf_counter() - start
    written = _choose(loop, state)
    tuned = write_back(module.cpu(), model, output, metadata={"onnxqat.method": method})
    return FinetuneResult(tuned, module, written=written, seconds=seconds, **_summary(state.progress))


def _summary(progress: Progress) -> dict[str, Any]:
    return {
        "steps": progress.step,
        "losses": progress.losses,
        "best_epoch": progress.best_epoch,
        "best_score": progress.best_score,
        "limited_scales": progress.limited_scales,
    }


def _student(graph: ir.Model, method: str) -> nn.Module:
    module = to_torch(graph, quantizer_factory=methods.factory(method))
    if not any(True for _ in quantizers(module)):
        raise ModelError(
            "model-not-quantized", "the model has no quantizer to train", hint="insert them first: onnxqat insert-qdq"
        )
    freeze_constants(module, graph)
    return module


def freeze_constants(module: nn.Module, model: ir.Model) -> list[str]:
    """Take the gradient from constants that are settings and no weights; returns their ONNX names.

    1. Constants of one element, such as an epsilon, an exponent or a factor.
    2. What an operator reads as a setting: see ``SETTINGS`` (statistics, bounds, divisors, fill values).

    Args:
        module: what :func:`onnxqat.to_torch` made.
        model: the model that it was made from.
    """
    settings = {
        str(node.inputs[index].name)  # type: ignore[union-attr]
        for node in walk.nodes(model)
        for index in range(len(node.inputs))
        if (node.op_type, index) in SETTINGS and node.inputs[index] is not None
    }
    inside = {id(p) for _, q in quantizers(module) for p in q.parameters()}
    names: dict[str, str] = getattr(module, "parameter_names", {})
    frozen = []
    for key, parameter in module.named_parameters():
        if id(parameter) not in inside and (parameter.numel() <= 1 or names.get(key) in settings):
            parameter.requires_grad_(False)
            frozen.append(names.get(key, key))
    return frozen


def _schedule(
    source: batches.Batches, epochs: int | None, max_steps: int | None, warmup_steps: int | None
) -> CosineSchedule:
    for name, value in (("epochs", epochs), ("max_steps", max_steps)):
        if value is not None and value < 1:
            raise UsageError("option-invalid", f"{name} is {value}; it must be at least 1")
    total = max_steps
    if epochs is not None or max_steps is None:
        if source.steps is not None:
            whole = source.steps * (epochs or 1)
            total = whole if max_steps is None else min(whole, max_steps)
        elif max_steps is None:
            raise UsageError(
                "option-invalid", "the length of the data is not known", hint="say how many steps to take: max_steps"
            )
    assert total is not None
    return CosineSchedule(total, total // 20 if warmup_steps is None else warmup_steps)


def _yields_labels(source: batches.Batches) -> bool:
    """Whether the first batch of the data has labels; arrays and files are read again for it."""
    if isinstance(source, batches.DataBatches) and not source.repeatable:
        return True
    first = next(iter(source.epoch(0)), None)
    return first is not None and first.labels is not None


def _teacher(teacher: Any, student: nn.Module, *, has_labels: bool) -> nn.Module | None:
    if isinstance(teacher, nn.Module):
        return teacher.eval()
    if teacher is not None:
        return to_torch(teacher).eval()
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


def _adapted(loss: Loss, graph: ir.Model) -> Loss:
    """`loss` for a model that ends in Softmax, whose output is no logits."""
    outputs = graph.graph.outputs
    node = outputs[0].producer() if outputs else None
    while node is not None and node.op_type in ("DequantizeLinear", "QuantizeLinear", "Clip", "Identity", "Cast"):
        first = node.inputs[0]
        node = first.producer() if first is not None else None
    if node is not None and node.op_type == "Softmax":
        return dataclasses.replace(loss, outputs="probabilities")
    return loss


def _place(device: str | torch.device | None) -> torch.device:
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise UsageError("option-invalid", f"there is no device {str(device)!r}", hint="cpu or cuda") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("option-invalid", "torch finds no CUDA device here", hint="choose the device cpu")
    return place


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's random generators seeded for the length of a ``with`` block."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _choose(loop: Loop, fitted: Fitted) -> str:
    """Put the weights to write into the module: the best where they can be scored, the average, or the last."""
    if loop.has_score:
        loop.module.load_state_dict(fitted.best)
        return "best" if fitted.progress.best_epoch else "start"
    if loop.average is not None:
        with torch.no_grad():
            for key, parameter in loop.module.named_parameters():
                if key in loop.average.values:
                    parameter.copy_(loop.average.values[key])
        return "average"
    return "last"
