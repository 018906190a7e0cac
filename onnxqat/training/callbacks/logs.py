"""Logs that a run writes."""

from __future__ import annotations

import os
from pathlib import Path

from onnxqat.errors import UsageError
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.callbacks.json_log import JsonLog
from onnxqat.training.callbacks.tensorboard_log import TensorBoardLog


def logs(folder: str | os.PathLike[str] | None, *, every: int = 10, tensorboard: bool = False) -> tuple[Callback, ...]:
    """The logs that go into `folder`; none without one.

    Args:
        folder: for ``log.jsonl`` and event files.
        every: steps between two lines or points.
        tensorboard: whether event files are written, too.

    Raises:
        UsageError: ``option-invalid``, ``dependency-missing``.
    """
    if every < 1:
        raise UsageError("option-invalid", f"a log every {every} steps; it must be at least 1")
    if folder is None:
        if tensorboard:
            raise UsageError(
                "option-invalid", "there is no folder for TensorBoard's files", hint="give a folder of logs: --log-dir"
            )
        return ()
    path = Path(folder)
    return (JsonLog(path, every), *((TensorBoardLog(path, every),) if tensorboard else ()))
