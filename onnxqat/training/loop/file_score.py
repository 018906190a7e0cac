"""Scores of the file that a module would be written as: what is trained, scored and shipped is one thing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx_ir as ir
from torch import nn

from onnxqat.bridge.export.write_back import put_back
from onnxqat.data.data import Data
from onnxqat.errors import UsageError
from onnxqat.metrics import Predictor, Score, ScoreSource, resolve
from onnxqat.passes.fold_quantized_batchnorm import FoldQuantizedBatchnorm


class FileScore:
    """Writes a module back into its file, folds what is folded for deployment, and scores that in onnxruntime.

    The graph is computed as it is written, so the score is the same on every processor.

    Args:
        score: of a predictor.
        graph: the file that the module was made from.
    """

    def __init__(self, score: Score, graph: ir.Model) -> None:
        self.score = score
        self._graph = graph

    def __call__(self, module: nn.Module) -> float:
        """The score of `module` as a file.

        Raises:
            UsageError: ``score-failed``, ``score-output``.
        """
        written = FoldQuantizedBatchnorm().run(put_back(module, self._graph)).model
        return self.score(Predictor.of(written, name="the trained model"))


def is_metric(given: ScoreSource | None) -> bool:
    """Tell if `given` is the name of a metric, which is computed on held-out samples of the training data."""
    return isinstance(given, str) and ":" not in given


def of_run(
    given: ScoreSource, graph: ir.Model, *, data: Data | None, teacher: Any, labels: str | os.PathLike[str] | None
) -> FileScore:
    """The score of a run.

    Args:
        given: what :func:`onnxqat.metrics.resolve` takes.
        graph: the file that trains.
        data: samples for a metric.
        teacher: what is imitated; one that is a file or model is what a metric compares with where there are no labels.
        labels: file or folder of labels for a metric.

    Raises:
        UsageError: ``name-unknown``, ``option-invalid``, ``dependency-missing``.
        DataError: ``data-not-found``, ``data-missing``, ``data-labels``, ``data-format``.
    """
    reference = None
    if is_metric(given):
        if data is None:
            raise UsageError(
                "option-invalid",
                f"the score {given} needs samples that can be read again",
                hint="give arrays, a file or a folder, or a function that returns a new iterator",
            )
        model = teacher[0] if isinstance(teacher, (list, tuple)) and teacher else teacher
        if model is not None and not isinstance(model, nn.Module):
            reference = Predictor.of(model, name="the float model")
    return FileScore(resolve(given, data=data, reference=reference, labels=labels), graph)


def place_of(labels: Any) -> Path | None:
    """The file or folder of labels that `labels` is; None where it is an array, or there is none."""
    return Path(labels) if isinstance(labels, (str, os.PathLike)) else None
