"""Scores of the model that a run ships: as the module of the file, and as the file itself in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.compat.classification.evaluation import Scores
from onnxqat.compat.classification.meters import correct
from onnxqat.compat.deploy import folded, written
from onnxqat.data.inputs import of_graph
from onnxqat.errors import DataError
from onnxqat.graph import batchnorm, io, walk
from onnxqat.runtime.session import Session
from onnxqat.training.data.batches import Batches

LARGEST = 10_000
"""Samples of the file's own score: CIFAR-10's test set, and minutes on one core for a ResNet-50."""


def shipped_module(module: nn.Module, place: torch.device) -> nn.Module:
    """Return the module of the file that would be written now, in evaluation mode; `module` where that is the same.

    A kept BatchNormalization is folded in the file, and its bias rounded to int32: that moves single codes, and with
    them everything behind.

    Args:
        module: of ``prepare_by_platform``, as it trains.
        place: the device to put the other module on.
    """
    model = io.load(written(module))
    if not any(map(batchnorm.is_kept, walk.nodes(model))):
        return module
    return to_torch(folded(model)).to(place).eval()


def file_scores(path: Path, batches: Batches) -> Scores:
    """Return the scores of an ONNX file in onnxruntime, as it is written (graph optimizations off).

    Args:
        path: a classifier with one input; its batch axis may be fixed.
        batches: images and labels; the first :data:`LARGEST` samples are taken.

    Raises:
        ModelError: ``model-not-runnable``.
        DataError: ``data-labels`` where the data have none.
    """
    model = io.load(path)
    session = Session(model, optimize=False, what=str(path))
    info = of_graph(model.graph)[0]
    size = info.shape[0] if info.shape is not None and isinstance(info.shape[0], int) else None
    totals, count = np.zeros(3), 0
    for batch in batches.epoch(0):
        if batch.labels is None or batch.labels.ndim != 1:
            raise DataError("data-labels", "the validation data have no class labels")
        images = next(iter(batch.inputs.values())).numpy(force=True)[: LARGEST - count]
        labels = batch.labels[: len(images)].cpu()
        results = _in_batches(session, info.name, images, size)
        outputs = torch.from_numpy(results)
        loss = functional.cross_entropy(outputs, labels) * len(labels)
        totals += [float(loss), *(float(hits) for hits in correct(outputs, labels))]
        count += len(labels)
        if count >= LARGEST:
            break
    share = 100 / max(count, 1)
    return Scores(float(totals[0]) / max(count, 1), float(totals[1] * share), float(totals[2] * share), count)


def _in_batches(session: Session, name: str, images: np.ndarray, size: int | None) -> np.ndarray:
    """The first output (N, C) in float32 for `images`, in batches of `size`; the last one is filled up with its first."""
    found = []
    for start in range(0, len(images), size or len(images)):
        part = images[start : start + (size or len(images))]
        missing = 0 if size is None else size - len(part)
        fed = np.concatenate([part, np.repeat(part[:1], missing, axis=0)]) if missing else part
        result = session.run({name: fed})[session.output_names[0]]
        found.append(result[: len(part)].astype(np.float32))
    return np.concatenate(found)
