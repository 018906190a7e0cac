"""The black box: a folder with all that a step needs to be done again, written when its loss or gradient is not finite.

``before.safetensors`` is a checkpoint of the state before the step, from which a run can go on; ``batch-0.safetensors``
holds the inputs, labels, teacher's outputs and random numbers of the step (one file for each process that trains);
``scales.safetensors`` the scales before each of the last steps; ``box.json``, written last, the rest. No pickle: the box
of a stranger runs no code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from onnxqat.bridge.quantizers.fake_quantize import STATES, State
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.errors import InputError
from onnxqat.graph import atomic, files_read, io
from onnxqat.training.callbacks.callback import StepRecord
from onnxqat.training.data.batches import Batch
from onnxqat.training.execution.execution import Execution
from onnxqat.training.loop import checkpoint, documents
from onnxqat.training.loop.non_finite import Finding, find
from onnxqat.training.loop.progress import Progress
from onnxqat.training.loop.random_state import RandomState
from onnxqat.training.loop.scale_history import ScaleHistory
from onnxqat.training.loop.step import Seen, Step
from onnxqat.training.objective import distillation
from onnxqat.training.objective.losses import Loss, Objective
from onnxqat.training.objective.relevance import DifferenceWeights
from onnxqat.training.optim.moving_average import MovingAverage

FORMAT = "onnxqat-black-box-1"


@dataclasses.dataclass(frozen=True)
class Replay:
    """A step done again.

    Attributes:
        step: its number, counted from 0.
        epoch: epochs done before it.
        recorded: loss and norm of the gradients in the run, penalties and all processes included.
        repeated: loss and norm of the gradients now, of the batches of process `rank`, without penalties; None where
            the loss is not known here.
        finding: the first value that is not finite.
        same: whether it is the value that this process found in the run.
        rank: number of the process whose batches these are.
        scales: name of each tensor with a scale, and its scales before each of the last steps.
    """

    step: int
    epoch: int
    recorded: tuple[float, float]
    repeated: tuple[float, float] | None
    finding: Finding
    same: bool
    rank: int
    scales: dict[str, Tensor]


class Recorded(Protocol):
    """The state of a run that a box holds."""

    @property
    def step(self) -> Step:
        """The training step, with the batch that it saw last."""

    @property
    def average(self) -> MovingAverage | None:
        """The moving average, where one is kept."""

    @property
    def progress(self) -> Progress:
        """Counters, losses and scores so far."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings that a resumed run has to agree with."""

    @property
    def stateful(self) -> Mapping[str, checkpoint.Stateful]:
        """Objects whose state belongs to the run's."""

    @property
    def history(self) -> ScaleHistory:
        """Scales of the last steps."""


def write(folder: Path, steps: Recorded, record: StepRecord, finding: Finding, random: RandomState) -> None:
    """Write the box of a step whose gradients have not been used.

    Args:
        folder: is made; files in it that have these names are replaced.
        steps: of the run, in the state before the step.
        record: of the step.
        finding: what was not finite.
        random: state of the random generators before the step.

    Raises:
        ModelError: ``output-not-writable``.
    """
    step, world = steps.step, steps.step.world
    atomic.make_folder(folder)
    if world.writer:
        atomic.remove(folder / "box.json")  # of an earlier run: beside new batches it would be the box of another step
    _write_seen(folder / f"batch-{world.rank}.safetensors", step.seen, finding)
    checkpoint.save(
        folder / "before.safetensors",
        step.module,
        optimizer=step.optimizer,
        average=None if steps.average is None else steps.average.values,
        progress=steps.progress,
        settings=steps.settings,
        stateful=steps.stateful,
        random=random,
        writes=world.writer,
    )
    scales = steps.history.tensors()
    if not world.writer:
        return
    io.write_atomic(folder / "scales.safetensors", safetensors.torch.save(scales))
    document = {
        "format": FORMAT,
        "step": record.step - 1,
        "epoch": record.epoch,
        "loss": repr(record.loss),
        "gradient_norm": repr(record.gradient_norm),
        "found": str(finding),
        "processes": world.size,
        "settings": dict(steps.settings),
        "precision": step.execution.precision,
        "objective": _fields(step.loss) if type(step.loss) is Loss else None,
        "quantizers": {path: [q.quant_min, q.quant_max, q.state] for path, q in quantizers(step.module)},
        "rates": dict(record.rates),
        "torch": torch.__version__,
    }
    io.write_atomic(folder / "box.json", json.dumps(document, indent=1).encode())


def _write_seen(path: Path, seen: Sequence[Seen], finding: Finding) -> None:
    tensors: dict[str, Tensor] = {}
    values = []
    for index, one in enumerate(seen):
        held = {f"input/{name}": value for name, value in one.batch.inputs.items()}
        if one.batch.labels is not None:
            held["labels"] = one.batch.labels
        known = one.target is not None and all(isinstance(value, Tensor) for value in one.target)
        held.update({f"target/{i}": value for i, value in enumerate(one.target or ()) if known})
        drawn, rest = one.random.written()
        held.update({f"random/{key}": value for key, value in drawn.items()})
        tensors.update({f"{index}/{key}": v.detach().to("cpu", copy=True).contiguous() for key, v in held.items()})
        values.append({"random": rest, "weight": one.batch.weight, "samples": one.batch.samples})
    document = {"found": dataclasses.asdict(finding), "seen": values}
    io.write_atomic(path, safetensors.torch.save(tensors, {"onnxqat": json.dumps(document)}))


def replay(folder: Path, model: io.ModelSource, *, loss: Objective | None = None) -> Replay:
    """Do the step of a black box again and name the first value that is not finite. On the CPU.

    Args:
        folder: the box.
        model: the QDQ model that was trained, as it was given to the run.
        loss: the loss of the run, where it was not a :class:`Loss`; without it, only the forward pass is done again.

    Raises:
        QatError: ``checkpoint-mismatch`` when the box is damaged or of another model.
        ModelError: what is wrong with the model.
    """
    box = _read_box(folder / "box.json")
    settings = box.settings
    module = distillation.student(
        io.load(model),
        settings.method,
        grad_bits=settings.grad_bits,
        batch_norm=settings.batch_norm,
        arithmetic=settings.arithmetic,
    )
    checkpoint.load(folder / "before.safetensors", module)
    _set_quantizers(folder, module, box.quantizers)
    module.train()
    known = loss if loss is not None else _objective(folder, box.objective)
    step = Step(
        module=module,
        forward=module,
        loss=known if known is not None else _no_loss,
        optimizer=torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.0),
        execution=Execution(precision=box.precision),
    )
    recorded = (float(box.loss), float(box.gradient_norm))
    for rank in range(box.processes):
        seen, found = _read_seen(folder / f"batch-{rank}.safetensors")
        finding = _find_origin(folder, step, seen)
        if finding.kind != "nothing" or finding != found:
            break
    scales, _ = _read(folder / "scales.safetensors")
    return Replay(
        step=box.step,
        epoch=box.epoch,
        recorded=recorded,
        repeated=None if known is None else _repeated_loss(step, seen),
        finding=finding,
        same=finding == found,
        rank=rank,
        scales={key.removeprefix("scale/"): value for key, value in scales.items() if key.startswith("scale/")},
    )


def _find_origin(folder: Path, step: Step, seen: Sequence[Seen]) -> Finding:
    names = set(cast(Any, step.module).input_names)
    if any(set(one.batch.inputs) != names for one in seen):
        raise _damaged(folder, f"its batches are not those of a model with the inputs {', '.join(sorted(names))}")
    try:
        return find(step, seen)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:  # torch's, of shapes and types
        raise _damaged(folder, f"its batches do not fit the model ({str(error).partition(chr(10))[0]})") from None


def _repeated_loss(step: Step, seen: Sequence[Seen]) -> tuple[float, float]:
    """Loss and norm of the gradients of the forward passes in `seen`."""
    total = max(1, sum(one.batch.all_samples for one in seen))
    step.optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros(())
    for one in seen:
        one.random.restore()
        part = step.loss_of(step.forward, one.batch, one.target) * (one.batch.weight * (one.batch.all_samples / total))
        part.backward()  # type: ignore[no-untyped-call]
        loss += part.detach()
    norm = step.world.norm([p.grad for p in step.module.parameters() if p.grad is not None])
    return float(loss), float(norm)


def _no_loss(outputs: Sequence[Tensor], labels: Tensor | None, target: Any) -> Tensor:
    """Stands for a loss that is not known: zero, differentiable, whatever the outputs are."""
    return torch.zeros((), requires_grad=True)


def _fields(loss: Loss) -> dict[str, Any]:
    """The fields of `loss` as JSON values."""
    fields = dataclasses.asdict(dataclasses.replace(loss, weights=()))
    held = [None if weights is None else weights.fields() for weights in loss.weights]
    return {**fields, "weights": held}


def _objective(folder: Path, fields: Any) -> Loss | None:
    if fields is None:
        return None
    try:
        held = fields.get("weights", ())
        weights = tuple(None if weights is None else DifferenceWeights.made(weights) for weights in held)
        return Loss(**{**fields, "weights": weights})
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(folder, f"its loss cannot be made: {error}") from None


def _set_quantizers(folder: Path, module: nn.Module, held: Mapping[str, tuple[int, int, str]]) -> None:
    for path, quantizer in quantizers(module):
        entry = held.get(path)
        if entry is None or entry[2] not in STATES:
            raise _damaged(folder, f"it says nothing of quantizer {path!r}")
        quantizer.quant_min, quantizer.quant_max = entry[:2]
        quantizer.state = cast(State, entry[2])


def _read_box(path: Path) -> documents.Box:
    if not path.is_file():
        raise InputError(
            "checkpoint-mismatch",
            f"{path.parent}: not a black box",
            hint="it is called OUTPUT.black_box and holds box.json",
        )
    try:
        files_read.note(path, "the black box")
        box = documents.parse(documents.Box, path.read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(path, f"not a black box of format {FORMAT}: {error}") from None
    if box.format != FORMAT:
        raise _damaged(path, f"not a black box of format {FORMAT}")
    return box


def _read(path: Path) -> tuple[dict[str, Tensor], str]:
    try:
        files_read.note(path, "the black box")
        with safetensors.safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("onnxqat", "null")
            return {key: file.get_tensor(key) for key in file.keys()}, text  # noqa: SIM118 - not a dict
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise _damaged(path, str(error)) from None


def _read_seen(path: Path) -> tuple[list[Seen], Finding]:
    tensors, text = _read(path)
    seen = []
    try:
        document = documents.parse(documents.SeenBatches, text)
        for index, value in enumerate(document.seen):
            held = _below(str(index), tensors)
            inputs, targets, drawn = (_below(kind, held) for kind in ("input", "target", "random"))
            target = [targets[str(i)] for i in range(len(targets))] if targets else None
            batch = Batch(inputs, held.get("labels"), value.weight, value.samples)
            seen.append(Seen(batch, target, RandomState.read(drawn, value.random.model_dump(exclude_none=True))))
    except (KeyError, ValueError) as error:
        raise _damaged(path, f"it is damaged: {error}") from None
    return seen, Finding(**document.found.model_dump())


def _below(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors whose key begins with `name` and a slash, by the rest of it."""
    return {key.partition("/")[2]: t for key, t in tensors.items() if key.startswith(f"{name}/")}


def _damaged(path: Path, message: str) -> InputError:
    return InputError("checkpoint-mismatch", f"{path}: {message}")
