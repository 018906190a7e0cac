"""The better of two files: the one that training began with and the one that it made."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from onnxqat.data import data as sources
from onnxqat.data import inputs as model_inputs
from onnxqat.errors import QatError
from onnxqat.graph import io
from onnxqat.metrics import Predictor, ScoreSource, resolve


class TrainingDidNotHelpWarning(UserWarning):
    """The trained model scores below the one that it began with, which was written in its place."""


def helped(model: io.ModelSource, trained: io.ModelSource, score: ScoreSource, data: Any) -> bool:
    """Check whether `trained` scores at least as high as `model`, both in onnxruntime; warn where it does not.

    Args:
        model: the model before training.
        trained: the trained model.
        score: any score of :func:`onnxqat.metrics.resolve`; a built-in metric needs `data` with labels.
        data: samples that training did not see, as :func:`onnxqat.data.data.open_data` takes them.

    Raises:
        UsageError: ``name-unknown``, ``score-failed``.
        DataError: ``data-missing``, ``data-labels`` and what the data source raises.
        ModelError: ``model-not-runnable``.
    """
    loaded = io.load(model)
    opened = None if data is None else sources.open_data(data, model_inputs.of_graph(loaded.graph))
    judge = resolve(score, data=opened)
    before, after = (judge(Predictor.of(one)) for one in (loaded, trained))
    if after >= before:
        return True
    _warn(f"{judge.name} {before:.6g} before, {after:.6g} after")
    return False


def diverged(error: QatError) -> bool:
    """False, as a diverged module helps nobody; warns. Another error than ``training-diverged`` is raised again."""
    if error.code != "training-diverged":
        raise error
    _warn(error.message)
    return False


def _warn(reason: str) -> None:
    text = f"training did not help ({reason}): what is written is the model that it began with"
    warnings.warn(f"{text}. Train longer or with a smaller learning rate", TrainingDidNotHelpWarning, stacklevel=5)


def write_start(model: io.ModelSource, output: str | os.PathLike[str] | None) -> Any:
    """Write `model` to `output` as it is; returns it as the kind given, a path as that of `output`."""
    if isinstance(model, (str, os.PathLike)):
        assert output is not None
        return io.copy(Path(model), Path(output))
    loaded = io.load(model)
    if output is not None:
        io.save(loaded, output)
    return io.like(model, loaded)
