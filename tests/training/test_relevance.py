"""Boxes and classes of a detector count where there is an object."""

import json

import pytest
import torch
from torch import Tensor

from onnxqat.training.objective import relevance
from onnxqat.training.objective.losses import Loss, relative_error
from onnxqat.training.objective.output_weights import Moments
from onnxqat.training.objective.relevance import DifferenceWeights, Relevance
from tests.training.test_output_weights import SAMPLES, measured, normal

PLACES, CLASSES = 200, 5


def detector(*, objectness: bool, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Outputs (SAMPLES, PLACES, 4 + objectness + classes), and in which places there is an object.

    With an objectness, classes say something of places without an object, too.
    """
    random = torch.Generator().manual_seed(0)
    there = torch.rand(SAMPLES, PLACES, 1, generator=random) < 0.05
    kind = torch.nn.functional.one_hot(torch.randint(classes, (SAMPLES, PLACES), generator=random), classes)
    sure = 0.5 + 0.5 * torch.rand(SAMPLES, PLACES, 1, generator=random)
    shown = there | (torch.rand(there.shape, generator=random) < 0.2) if objectness else there
    scores = [kind * sure * shown + 0.01 * torch.rand(kind.shape, generator=random)]
    if objectness:
        scores.insert(0, sure * there + 0.01 * torch.rand(there.shape, generator=random))
    return torch.cat([normal(SAMPLES, PLACES, 4), *scores], 2).clamp(max=1).float(), there[..., 0]


def found(teacher: Tensor, axis: int = 2) -> Relevance | None:
    scores = torch.arange(teacher.shape[axis]) >= 4
    return relevance.find(list(teacher.split(16)), axis, scores, lambda x: x)


@pytest.mark.parametrize("classes", [1, CLASSES])
def test_an_objectness_is_high_only_beside_a_class(classes: int) -> None:
    made = found(detector(objectness=True, classes=classes)[0])
    assert made is not None
    assert made.objectness == 4
    made = found(detector(objectness=False, classes=classes)[0])
    assert made is not None
    assert made.objectness is None


def test_scores_alone_have_no_relevance_without_an_objectness() -> None:
    scores = detector(objectness=False)[0][..., 4:]
    every = torch.ones(CLASSES, dtype=torch.bool)
    assert relevance.find([scores], 2, every, lambda x: x) is None
    assert relevance.find([scores], 2, ~every, lambda x: x) is None


@pytest.mark.parametrize("first", [False, True], ids=["channels last", "channels first"])
@pytest.mark.parametrize("objectness", [False, True])
def test_places_count_as_their_score(objectness: bool, first: bool) -> None:
    teacher, there = detector(objectness=objectness)
    made = found(teacher.transpose(1, 2) if first else teacher, 1 if first else 2)
    assert made is not None
    weights = made.of(teacher.transpose(1, 2)).transpose(1, 2) if first else made.of(teacher)
    assert weights.shape == teacher.shape
    assert weights[there][:, :4].min() > 0.2
    assert weights[~there][:, :4].max() < 0.02
    assert torch.equal(weights[..., 4], torch.ones_like(weights[..., 4]))
    classes = weights[~there][:, 5:]
    assert float(classes.max()) < 0.02 if objectness else torch.equal(classes, torch.ones_like(classes))


@pytest.mark.parametrize("objectness", [False, True])
def test_the_loss_follows_boxes_of_objects(objectness: bool) -> None:
    teacher, there = detector(objectness=objectness)
    wrong = 0.5 * normal(*teacher.shape, seed=1)
    wrong[..., 4:] = 0
    at_objects, elsewhere = (teacher + wrong * place[..., None] for place in (there, ~there))
    assert relative_error(at_objects, teacher) < 0.1 * relative_error(elsewhere, teacher)  # most places have no object
    loss = measured(Loss(), [teacher], [teacher + 0.1 * wrong], 8).loss
    assert loss([at_objects], None, [teacher]) > 2 * loss([elsewhere], None, [teacher])


def test_weights_come_back_from_json() -> None:
    teacher, _ = detector(objectness=True)
    loss = measured(Loss(), [teacher], [teacher + 0.1 * normal(*teacher.shape, seed=1)], 8).loss
    assert isinstance(loss, Loss)
    (weights,) = loss.weights
    assert weights is not None
    again = DifferenceWeights.made(json.loads(json.dumps(weights.fields())))
    assert torch.equal(again.of(teacher), weights.of(teacher))
    with pytest.raises(KeyError):
        DifferenceWeights.made({})


def test_an_output_without_samples_is_one() -> None:
    """An output whose first axis is not that of samples was measured as a whole, with an axis in front."""
    teacher, _ = detector(objectness=True)
    made = found(teacher)
    weights = DifferenceWeights(torch.ones(1, PLACES, teacher.shape[2]), made)
    assert torch.equal(weights.of(teacher[0]), weights.of(teacher[:1])[0])


def test_an_output_that_is_a_parameter_leaves_no_gradient() -> None:
    teacher, _ = detector(objectness=True)
    moments = Moments(teacher.shape[1:], teacher.device, lambda x: x)
    moments.add((teacher + 0.01).requires_grad_(), teacher)
    weights, _ = moments.weights()
    assert not weights.by_channel.requires_grad
