"""finetune with single settings, each put into the group of settings that it belongs to."""

import dataclasses
from pathlib import Path
from typing import Any

from onnxqat.training import finetune as product
from onnxqat.training.callbacks.batchnorm_statistics import Reestimate
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.callbacks.dampening import Dampening
from onnxqat.training.callbacks.freezing import Freezing
from onnxqat.training.callbacks.logs import logs
from onnxqat.training.callbacks.progressive import Progressive
from onnxqat.training.callbacks.value_clipping import ValueClipping
from onnxqat.training.config import (
    CheckpointConfig,
    DistillationConfig,
    OptimizerConfig,
    ScheduleConfig,
    ScoreConfig,
)
from onnxqat.training.execution.execution import Execution
from onnxqat.training.result import FinetuneResult

GROUPS: dict[str, tuple[type[Any], dict[str, str]]] = {
    "optimizer": (OptimizerConfig, {"optimizer": "optimizer", "optimizer_options": "options"}),
    "schedule": (ScheduleConfig, {"schedule": "schedule", "schedule_options": "options"}),
    "teacher": (DistillationConfig, {"teacher": "teacher"}),
    "score": (ScoreConfig, {"score": "score", "score_every": "every"}),
    "checkpoints": (CheckpointConfig, {"checkpoint_dir": "folder"}),
    "execution": (Execution, {}),
}
CALLBACKS: dict[str, type[Callback]] = {
    "progressive": Progressive,
    "dampening": Dampening,
    "gradient_value": ValueClipping,
    "freezing": Freezing,
    "reestimate_batch_norm": Reestimate,
}


def grouped(**options: Any) -> dict[str, Any]:
    """Keywords of finetune from single settings, such as ``precision`` and ``checkpoint_dir``; others pass through."""
    made: dict[str, Any] = {}
    for group, (kind, other_names) in GROUPS.items():
        given = options.pop(group, None) if isinstance(options.get(group), kind) else None
        names = {field.name: field.name for field in dataclasses.fields(kind)} | other_names
        taken = {names[name]: options.pop(name) for name in [*options] if name in names}
        if given is not None:
            made[group] = dataclasses.replace(given, **taken)
        elif taken:
            made[group] = kind(**taken)
    callbacks = [kind(options.pop(name)) for name, kind in CALLBACKS.items() if name in options]
    folder = options.pop("log_dir", None)
    names = {"log_every": "every", "tensorboard": "tensorboard"}
    written = {names[name]: options.pop(name) for name in [*options] if name in names}
    callbacks += [*options.pop("callbacks", ()), *logs(None if folder is None else Path(folder), **written)]
    return {**made, **options, **({"callbacks": callbacks} if callbacks else {})}


def finetune(model: Any, data: Any, **options: Any) -> FinetuneResult:
    """:func:`onnxqat.finetune` with the keywords of :func:`grouped`."""
    return product.finetune(model, data, **grouped(**options))
