"""Scores of the model that a run ships: as the module of the file, and as the file itself in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn
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


def shipped_module(module: nn.Module, place: torch.device, batch: int) -> nn.Module:
    """Return what computes as the file that would be written now, in evaluation mode.

    On the CPU it is that file in onnxruntime, so that scores have its last bits. On a GPU, where that would take long,
    it is the module of the file, or `module` where that is the same: a kept BatchNormalization is folded in the file,
    and its bias rounded to int32, which moves single codes, and with them everything behind.

    Args:
        module: of ``prepare_by_platform``, as it trains.
        place: the device that the run computes on.
        batch: samples that the file takes at a time, where its own axis is not fixed.
    """
    model = io.load(written(module))
    if place.type == "cpu":
        return _InRuntime(folded(model), max(batch, 1), "the model that would be written")
    if not any(map(batchnorm.is_kept, walk.nodes(model))):
        return module
    return to_torch(folded(model)).to(place).eval()


class _InRuntime(nn.Module):
    """A classifier in onnxruntime, graph optimizations off, in the place of a module that is scored.

    Args:
        model: with one input.
        batch: samples that it is given at a time where its batch axis is not fixed; None: all that there are.
        what: name of the model in errors.
    """

    def __init__(self, model: ir.Model, batch: int | None, what: str) -> None:
        super().__init__()
        self._session = Session(model, optimize=False, what=what)
        info = of_graph(model.graph)[0]
        self.input_names = (info.name,)
        fixed = info.shape[0] if info.shape is not None else None
        self._size = fixed if isinstance(fixed, int) else batch

    def forward(self, images: Tensor) -> Tensor:
        """The first output (N, C) in float32."""
        return torch.from_numpy(_in_batches(self._session, self.input_names[0], images.numpy(force=True), self._size))


def file_scores(path: Path, batches: Batches) -> Scores:
    """Return the scores of an ONNX file in onnxruntime, as it is written (graph optimizations off).

    Args:
        path: a classifier with one input; its batch axis may be fixed.
        batches: images and labels; the first :data:`LARGEST` samples are taken.

    Raises:
        ModelError: ``model-not-runnable``.
        DataError: ``data-labels`` where the data have none.
    """
    shipped = _InRuntime(io.load(path), None, str(path))
    totals, count = np.zeros(3), 0
    for batch in batches.epoch(0):
        if batch.labels is None or batch.labels.ndim != 1:
            raise DataError("data-labels", "the validation data have no class labels")
        images = next(iter(batch.inputs.values()))[: LARGEST - count]
        labels = batch.labels[: len(images)].cpu()
        outputs = shipped(images)
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
