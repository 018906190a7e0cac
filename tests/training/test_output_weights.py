"""Weights of outputs: neither silence nor any other constant beats a calibrated network, whatever its heads are."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from onnxqat.training.data.batches import Batch
from onnxqat.training.data.holdout import Replayed
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.execution.execution import Execution
from onnxqat.training.objective.features import FeatureLoss, Features
from onnxqat.training.objective.losses import Loss, Objective, relative_error
from onnxqat.training.objective.output_weights import Measure, Weighted
from onnxqat.training.objective.teachers import CouncilLoss, TeacherEnsemble

SAMPLES = 48


class Table(nn.Module):
    """Returns the outputs of the sample whose number it is given."""

    def __init__(self, outputs: list[Tensor]) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, number: Tensor) -> tuple[Tensor, ...]:
        return tuple(output[number] for output in self.outputs)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sparse(classes: int, anchors: int = 200) -> Tensor:
    """Scores (SAMPLES, anchors, classes) in [0, 1]: background next to 0, an object in one anchor of 500."""
    random = torch.Generator().manual_seed(1)
    scores = torch.rand(SAMPLES, anchors, classes, generator=random) * 1e-3
    hit = torch.rand(scores.shape, generator=random) < 0.002
    scores = torch.where(hit, torch.rand(scores.shape, generator=random), scores)
    scores[..., classes // 2 :] *= 1e-2  # half of the classes are hardly ever seen
    return scores


def heads() -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Outputs of a float network by kind of head, and of it quantized: noise of a grid, and more of it than signal."""
    boxes = 200 + 100 * normal(SAMPLES, 200, 4)
    noisy = boxes + 5 * normal(SAMPLES, 200, 4, seed=2)
    scores = sparse(40)
    rough = (scores + 0.01 * normal(*scores.shape, seed=3)).clamp(0, 1)
    dense = normal(SAMPLES, 1, 12, 12)
    near = dense + 0.2 * normal(*dense.shape, seed=4)
    logits = normal(SAMPLES, 3, 150) - 6 + 12 * (normal(SAMPLES, 3, 150, seed=5) > 2.5)
    return {
        "dense regression": [(dense, near)],
        "dense, far from 0": [(dense + 50, near + 50)],
        "sparse scores": [(scores, rough)],
        "scores of background": [(logits, logits + 0.5 * normal(*logits.shape, seed=6))],
        "boxes and scores in one tensor": [(torch.cat([boxes, scores], 2), torch.cat([noisy, rough], 2))],
        "the same, channels first": [
            (torch.cat([boxes, scores], 2).transpose(1, 2), torch.cat([noisy, rough], 2).transpose(1, 2))
        ],
        "outputs of very different size": [(boxes, noisy), (scores, rough), (1e-3 * dense, 1e-3 * near)],
        "a row of numbers": [(normal(SAMPLES, 1) + 3, normal(SAMPLES, 1) + 3 + 0.1 * normal(SAMPLES, 1, seed=7))],
    }


def batches(size: int) -> Iterator[Batch]:
    for start in range(0, SAMPLES, size):
        yield Batch({"number": torch.arange(start, min(start + size, SAMPLES))})


def measured(loss: Objective, teacher: list[Tensor], student: list[Tensor], size: int) -> Weighted:
    place = torch.device("cpu")
    measure = Measure(Table(student), Table(teacher), ("number",), Execution(), place, ProcessContext())
    return measure.weighted(loss, batches(size))


def by_channel(loss: Loss) -> Tensor:
    assert loss.weights[0] is not None
    return loss.weights[0].by_channel


def mean(loss: Objective, outputs: list[Tensor], teacher: list[Tensor], size: int) -> float:
    """The loss as a run sees it, batch by batch."""
    numbers = [batch.inputs["number"] for batch in batches(size)]
    found = [loss([o[n] for o in outputs], None, [t[n] for t in teacher]).item() for n in numbers]
    return sum(found) / len(found)


@pytest.mark.parametrize("kind", list(heads()))
@pytest.mark.parametrize("size", [1, 16])
def test_no_constant_beats_the_calibrated_network(kind: str, size: int) -> None:
    teacher, student = ([pair[side] for pair in heads()[kind]] for side in (0, 1))
    found = measured(Loss(distance="mse"), teacher, student, size)
    start = mean(found.loss, student, teacher, size)
    # The best of all constants is the weighted mean at each element, and has a loss of 1 by the choice of the weights.
    assert isinstance(found.loss, Loss)
    held = [w.of(t).expand_as(t) for w, t in zip(found.loss.weights, teacher, strict=True) if w is not None]
    constant = [((w * t).sum(0) / w.sum(0)).expand_as(t) for w, t in zip(held, teacher, strict=True)]
    assert mean(found.loss, constant, teacher, size) == pytest.approx(1.0, rel=1e-3)
    assert mean(found.loss, [torch.zeros_like(t) for t in teacher], teacher, size) > 0.999
    assert start < 0.5
    assert start == pytest.approx(sum(found.errors.values()) / len(teacher), rel=1e-4)
    assert mean(found.loss, teacher, teacher, size) == 0.0
    for index, silent in enumerate(teacher):  # one output of several, all others being perfect
        outputs = [torch.zeros_like(t) if t is silent else t for t in teacher]
        assert mean(found.loss, outputs, teacher, size) > 0.999 / len(teacher), index


def test_silent_scores_beside_perfect_boxes_lose() -> None:
    """As in one tensor, so in two; the loss of a batch by itself keeps that too, as probabilities share their size."""
    for kind in ("boxes and scores in one tensor", "outputs of very different size"):
        teacher, student = ([pair[side] for pair in heads()[kind]] for side in (0, 1))
        loss = measured(Loss(distance="mse"), teacher, student, 1).loss
        silent = [t.clone() for t in teacher]
        silent[-1 if len(silent) == 1 else 1][..., 4 if len(silent) == 1 else 0 :] = 0
        assert mean(loss, silent, teacher, 1) > 2 * mean(loss, student, teacher, 1)
    teacher, student = ([pair[side] for pair in heads()["sparse scores"]] for side in (0, 1))
    assert relative_error(student[0], teacher[0]) < 0.9 * relative_error(torch.zeros_like(teacher[0]), teacher[0])


def test_an_output_that_is_further_away_than_a_constant_is_known() -> None:
    dense = normal(SAMPLES, 1, 12, 12)
    found = measured(Loss(), [dense, dense], [dense, dense + 2 * normal(*dense.shape, seed=9)], 8)
    assert (found.errors[0] == 0, found.errors[1] > 1) == (True, True)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_teacher_that_is_constant(value: float) -> None:
    teacher = torch.full((SAMPLES, 5, 6), value)
    noisy = teacher + 0.1 * normal(*teacher.shape)
    for student in (noisy, teacher):
        loss = measured(Loss(distance="mse"), [teacher], [student], 8).loss
        assert mean(loss, [student], [teacher], 8) <= 1.001
        assert torch.isfinite(torch.tensor(mean(loss, [noisy], [teacher], 8)))


@pytest.mark.parametrize("scores", [False, True])
def test_a_border_of_zeros_is_no_score(scores: bool) -> None:
    inner = normal(SAMPLES, 2, 12, 12)
    teacher = nn.functional.pad(inner.sigmoid() if scores else inner, [1] * 4)
    noise = nn.functional.pad(0.1 * normal(SAMPLES, 2, 12, 12, seed=1), [1] * 4)
    weighted = measured(Loss(), [teacher], [teacher + noise], 8)
    assert 0.004 < mean(weighted.loss, [teacher + noise], [teacher], 8) < (0.4 if scores else 0.012)


def test_what_has_no_shape_of_its_own_is_left_to_the_batch() -> None:
    """Detections that differ in number, and integers; outputs that the divergence compares are not measured at all."""

    class Ragged(Table):
        def forward(self, number: Tensor) -> tuple[Tensor, ...]:
            return (self.outputs[0][number], torch.ones(1 + int(number[0]), 6), number)

    dense = normal(SAMPLES, 1, 12, 12)
    place = torch.device("cpu")
    measure = Measure(Ragged([dense]), Ragged([dense]), ("number",), Execution(), place, ProcessContext())
    found = measure.weighted(Loss(), batches(2)).loss
    assert isinstance(found, Loss)
    assert [weight is None for weight in found.weights] == [False, True, True]
    logits = [normal(SAMPLES, 10)]
    divergence = Loss(distance="kl")
    assert measured(divergence, logits, logits, 8) == Weighted(divergence)


def test_features_and_councils_are_measured_on_their_outputs() -> None:
    dense, inner = normal(SAMPLES, 1, 12, 12), normal(SAMPLES, 4, 6, 6)
    near = dense + 0.2 * normal(*dense.shape, seed=4)
    alone = measured(Loss(), [dense], [near], 8).loss
    assert isinstance(alone, Loss)
    featured = measured(FeatureLoss(Loss(), Features(["f"]), (("f", "f"),)), [dense, inner], [near, inner], 8).loss
    assert isinstance(featured, FeatureLoss)
    assert isinstance(featured.base, Loss)
    assert torch.equal(by_channel(featured.base), by_channel(alone))
    place = torch.device("cpu")
    council = TeacherEnsemble([Table([dense]), Table([2 * dense])])
    measure = Measure(Table([near]), council, ("number",), Execution(), place, ProcessContext())
    both = measure.weighted(CouncilLoss([Loss(), Loss()]), batches(8)).loss
    assert isinstance(both, CouncilLoss)
    first, second = both.losses
    assert isinstance(first, Loss)
    assert isinstance(second, Loss)
    assert torch.equal(by_channel(first), by_channel(alone))
    assert not torch.equal(by_channel(second), by_channel(alone))


def test_what_is_read_ahead_is_trained_on_too() -> None:
    class Once:
        steps = 6

        def epoch(self, number: int) -> Iterator[Batch]:
            return batches(8)

    source = Replayed(Once())
    ahead = source.ahead()
    seen = [next(ahead), next(ahead)]
    assert [batch.inputs["number"][0].item() for batch in source.epoch(0)] == [0, 8, 16, 24, 32, 40]
    assert len(seen) == 2
