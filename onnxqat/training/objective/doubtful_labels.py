"""Labels that do not fit a network as it was given: trained on them, it would forget what it knows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from onnxqat.metrics._numbering import doubt
from onnxqat.training.data.batches import Batch
from onnxqat.training.execution.execution import Execution
from onnxqat.training.loop.step import call
from onnxqat.training.objective.losses import IGNORED
from onnxqat.types import Remark

SAMPLES = 256
"""Samples that are looked at: a scored part has about as many, and an epoch many times more."""


@torch.no_grad()
def remarks(
    forward: nn.Module, batches: Iterable[Batch], names: tuple[str, ...] | None, execution: Execution
) -> tuple[Remark, ...]:
    """Compare the first answers of a classifier with its labels.

    Args:
        forward: gives the network's outputs, in eval mode.
        batches: samples with labels; those without, and those that are no numbers of classes, say nothing.
        names: inputs in the order in which `forward` takes them.
        execution: how outputs are computed.
    """
    device = next(forward.parameters()).device
    answers: list[npt.NDArray[np.int64]] = []
    labels: list[npt.NDArray[np.int64]] = []
    for batch in batches:
        right = batch.labels
        if right is None or right.is_floating_point() or sum(len(each) for each in labels) >= SAMPLES:
            break
        with execution.autocast(device):
            outputs = call(forward, execution.inputs(batch.to(device)), names)
        if len(outputs) != 1 or outputs[0].ndim != 2 or right.numel() != len(outputs[0]):
            return ()
        answers.append(outputs[0].argmax(1).cpu().numpy())
        labels.append(right.flatten().numpy())
    if not labels:
        return ()
    known = np.concatenate(labels)
    found = doubt(np.concatenate(answers)[known != IGNORED], known[known != IGNORED])
    return () if found is None else (Remark(found, source="data", concern="result"),)
