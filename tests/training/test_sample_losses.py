"""Losses of single samples, and the standard error of the mean change."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.loop.sample_losses import SampleLosses, standard_error
from onnxqat.training.objective.losses import Loss, Objective
from onnxqat.training.objective.teachers import CouncilLoss

ONE = ProcessContext()


def of(loss: Objective, outputs: Sequence[Tensor], labels: Tensor | None, target: Any, samples: int) -> list[float]:
    held = SampleLosses()
    held.add(loss, outputs, labels, target, samples=samples, whole=loss(outputs, labels, target))
    return held.values(ONE, torch.device("cpu"))


def test_each_sample_has_its_loss_and_the_mean_is_that_of_the_batch() -> None:
    draw = torch.Generator().manual_seed(0)
    output, teacher = torch.randn(6, 5, generator=draw), torch.randn(6, 5, generator=draw)
    labels = torch.arange(6) % 5
    for loss, target in ((Loss(), (teacher,)), (CouncilLoss([Loss(), Loss()]), [(teacher,), (output,)])):
        found = of(loss, (output,), labels, target, 6)
        assert len(found) == len(set(found)) == 6
        # Sums of six float32 values in another order.
        assert sum(found) / 6 == pytest.approx(float(loss((output,), labels, target)), rel=1e-6)


def test_a_batch_counts_as_one_where_its_samples_cannot_be_told_apart() -> None:
    output, teacher = torch.ones(4, 3), torch.zeros(4, 3)

    def own(outputs: Sequence[Tensor], labels: Tensor | None = None, teacher: Any = None) -> Tensor:
        return (outputs[0].mean(0) - teacher[0].mean(0)).square().sum()  # compares means over samples

    assert of(own, (output,), None, (teacher,), 4) == [3.0]
    assert len(of(Loss(distance="mse"), (output.T,), None, (teacher.T,), 4)) == 1  # samples along axis 1
    assert of(own, (output,), None, (teacher,), 0) == []  # a batch that only keeps processes in step


def test_the_error_is_that_of_the_differences_of_pairs() -> None:
    before, after = [1.0, 10.0, 100.0], [0.5, 9.0, 98.5]
    assert standard_error(before, after) == pytest.approx(0.5 / math.sqrt(3))  # differences .5, 1, 1.5
    assert standard_error([1.0], [0.5]) == 0.0
    assert standard_error([], [0.5, 0.25]) == 0.0
    assert standard_error([1.0, 2.0], [math.nan, 1.0]) == 0.0
