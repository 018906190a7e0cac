"""Checkpoints: one safetensors file with weights, scales, optimizer and random state; the rest as JSON in its metadata.

No pickle, so a checkpoint of a stranger runs no code. The file appears whole or not at all, and is loaded strictly:
everything has its final shape when the module is built.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from onnxqat.errors import InputError
from onnxqat.graph import io
from onnxqat.training.distributed.tensors import like, whole
from onnxqat.training.loop import documents
from onnxqat.training.loop.progress import Progress
from onnxqat.training.loop.random_state import RandomState

FORMAT = "onnxqat-checkpoint-1"


class Stateful(Protocol):
    """Object whose state a checkpoint holds: tensors and JSON values by name."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state."""

    def load_state_dict(self, state: Mapping[str, Any]) -> object:
        """Restore a state that :meth:`state_dict` returned; tensors are on the CPU."""


def save(
    path: Path,
    module: nn.Module,
    *,
    optimizer: Optimizer | None = None,
    average: Mapping[str, Tensor] | None = None,
    progress: Progress | None = None,
    settings: Mapping[str, Any] | None = None,
    stateful: Mapping[str, Stateful] | None = None,
    random: RandomState | None = None,
    writes: bool = True,
) -> None:
    """Write a checkpoint.

    Args:
        path: the file.
        module: its state dict is stored under ``model/``; keys are derived from the names in the ONNX file.
        optimizer: stored under ``optimizer/<parameter index>/``; hyperparameters go to the metadata.
        average: exponential moving average of parameters, stored under ``average/``.
        progress: where the run stands.
        settings: what a resumed run has to agree with, JSON values.
        stateful: by name, stored under ``state/<name>/``; what is no tensor goes to the metadata.
        random: state of the random generators; None: as they are now.
        writes: False in all processes but one, of several that train together: they only give their shards.

    Raises:
        ModelError: ``output-not-writable``.
    """
    tensors = {f"model/{key}": value for key, value in module.state_dict().items()}
    tensors.update({f"average/{key}": value for key, value in (average or {}).items()})
    document: dict[str, Any] = {
        "format": FORMAT,
        "progress": dataclasses.asdict(progress or Progress()),
        "settings": dict(settings or {}),
    }
    if optimizer is not None:
        state = optimizer.state_dict()
        document["optimizer"] = {"groups": state["param_groups"], "numbers": {}}
        for index, entries in state["state"].items():
            for key, value in entries.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{index}/{key}"] = value
                else:
                    document["optimizer"]["numbers"][f"{index}/{key}"] = value
    document["states"] = {}
    for name, keeper in (stateful or {}).items():
        held = keeper.state_dict()
        tensors.update({f"state/{name}/{key}": v for key, v in held.items() if isinstance(v, Tensor)})
        document["states"][name] = {key: v for key, v in held.items() if not isinstance(v, Tensor)}
    drawn, document["random"] = (random or RandomState.capture()).written()
    tensors.update({f"random/{key}": value for key, value in drawn.items()})
    # Copies, because shared parameters share memory, which the format does not hold.
    stored = {}
    for key, value in tensors.items():
        gathered = whole(value.detach())
        if writes:
            stored[key] = gathered.to("cpu", copy=True).contiguous()
    if not writes:
        return
    io.write_atomic(path, safetensors.torch.save(stored, {"onnxqat": json.dumps(document)}))


def load(
    path: Path,
    module: nn.Module,
    *,
    optimizer: Optimizer | None = None,
    average: dict[str, Tensor] | None = None,
    settings: Mapping[str, Any] | None = None,
    stateful: Mapping[str, Stateful] | None = None,
    random: bool = False,
) -> Progress:
    """Load a checkpoint in place, strictly; nothing changes when it does not fit.

    Args:
        path: the file.
        module: gets the state dict; before or after its first forward.
        optimizer: gets its state and hyperparameters.
        average: gets the moving average.
        settings: compared with the stored ones.
        stateful: get their states.
        random: restore the random generators of torch, numpy and Python.

    Raises:
        QatError: ``checkpoint-mismatch`` when the file is damaged, lacks or has too much of anything, or a shape,
            dtype or setting differs; the message names the first difference.
    """
    tensors, document = _read(path)
    stands = _progress(path, document)
    for key, value in (settings or {}).items():
        stored = document.settings.get(key)
        if stored != value:
            raise _mismatch(path, f"it was made with {key} {stored!r}, this run has {value!r}")
    _compare(path, _with_prefix(tensors, "model/"), module.state_dict())
    for name in stateful or {}:
        if name not in document.states:
            raise _mismatch(path, f"it holds no state of {name!r}")
    if average is not None:
        _compare(path, _with_prefix(tensors, "average/"), average)
    drawn = _random_state(path, tensors, document) if random else None
    if optimizer is not None:
        optimizer.load_state_dict(_optimizer_state(path, tensors, document, optimizer))
    module.load_state_dict(_with_prefix(tensors, "model/"), strict=True)
    for key, value in _with_prefix(tensors, "average/").items() if average is not None else ():
        average[key].copy_(like(average[key], value))  # type: ignore[index]
    for name, keeper in (stateful or {}).items():
        _take_over(path, name, keeper, {**document.states[name], **_with_prefix(tensors, f"state/{name}/")})
    if drawn is not None:
        drawn.restore()
    return stands


def weights(path: Path, module: nn.Module) -> dict[str, Tensor]:
    """The state dict in a checkpoint, on the CPU, for `module`, which stays as it is.

    Raises:
        QatError: ``checkpoint-mismatch``, as in :func:`load`.
    """
    tensors, _ = _read(path)
    found = _with_prefix(tensors, "model/")
    _compare(path, found, module.state_dict())
    return found


def standing(path: Path) -> Progress:
    """Return the progress of the run at the time that it wrote the checkpoint.

    Raises:
        QatError: ``checkpoint-mismatch``, as in :func:`load`.
    """
    return _progress(path, _read(path)[1])


def _progress(path: Path, document: documents.Checkpoint) -> Progress:
    try:
        return documents.counted(Progress, document.progress, document.settings.get("total_steps"))
    except ValueError as error:
        raise _mismatch(path, f"its progress is damaged: {error}") from None


def _take_over(path: Path, name: str, keeper: Stateful, state: Mapping[str, Any]) -> None:
    try:
        keeper.load_state_dict(state)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise _mismatch(path, f"the state of {name!r} is damaged ({error})") from None


def _random_state(path: Path, tensors: Mapping[str, Tensor], document: documents.Checkpoint) -> RandomState:
    try:
        return RandomState.read(_with_prefix(tensors, "random/"), document.random.model_dump(exclude_none=True))
    except ValueError as error:
        raise _mismatch(path, f"the state of its random generators is damaged ({error})") from None


def _read(path: Path) -> tuple[dict[str, Tensor], documents.Checkpoint]:
    if not path.is_file():
        raise _mismatch(path, "no such file")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("onnxqat", "{}")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise _mismatch(path, f"not a checkpoint, or damaged ({error})") from None
    try:
        document = documents.parse(documents.Checkpoint, text)
    except ValueError as error:
        raise _mismatch(path, f"not a checkpoint of format {FORMAT}: {error}") from None
    if document.format != FORMAT:
        raise _mismatch(path, f"not a checkpoint of format {FORMAT}")
    return tensors, document


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}


def _compare(path: Path, stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    for key, value in wanted.items():
        if key not in stored:
            raise _mismatch(path, f"it has no {key!r}")
        if (stored[key].shape, stored[key].dtype) != (value.shape, value.dtype):
            have, want = (f"{tuple(t.shape)} {t.dtype}" for t in (stored[key], value))
            raise _mismatch(path, f"{key!r} is {have} there and {want} in the module")
    for key in stored:
        if key not in wanted:
            raise _mismatch(path, f"the module has no {key!r}")


def _optimizer_state(
    path: Path, tensors: Mapping[str, Tensor], document: documents.Checkpoint, optimizer: Optimizer
) -> dict[str, Any]:
    """Return the stored optimizer state for `load_state_dict`, checked against this run's optimizer."""
    if document.optimizer is None:
        raise _mismatch(path, "it holds no optimizer state")
    groups = [group.model_dump() for group in document.optimizer.groups]
    sizes = [[len(g["params"]) for g in side] for side in (groups, optimizer.param_groups)]
    if sizes[0] != sizes[1]:
        raise _mismatch(path, f"its optimizer has parameter groups of sizes {sizes[0]}, this run {sizes[1]}")
    for stored, now in zip(groups, optimizer.param_groups, strict=True):
        other = documents.same_kinds(stored, {key: value for key, value in now.items() if key != "params"})
        if other is not None:
            raise _mismatch(path, f"{other!r} of its optimizer is {stored[other]!r}, this run has {now[other]!r}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for name, value in (*_with_prefix(tensors, "optimizer/").items(), *document.optimizer.numbers.items()):
        index, _, key = name.partition("/")
        if not index.isdecimal() or int(index) >= len(parameters):
            raise _mismatch(path, f"it has optimizer state of parameter {index!r}, of which there is none")
        if key in state.get(int(index), {}):
            raise _mismatch(path, f"it has {name!r} of its optimizer twice, as a tensor and as a number")
        state.setdefault(int(index), {})[key] = like(parameters[int(index)], value) if torch.is_tensor(value) else value
    return {"state": state, "param_groups": groups}


def _mismatch(path: Path, message: str) -> InputError:
    return InputError("checkpoint-mismatch", f"{path}: {message}")
