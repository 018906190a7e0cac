"""Losses against the formulas written out."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from onnxqat.errors import DataError, UsageError
from onnxqat.training.config import DistillationConfig
from onnxqat.training.objective.losses import Loss, channel_power
from tests.training import nets
from tests.training.grouped import finetune


def softmax(x: Tensor) -> Tensor:
    return torch.exp(x.double()) / torch.exp(x.double()).sum(1, keepdim=True)


def test_cross_entropy() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    expected = -softmax(logits)[torch.arange(6), labels].log().mean()
    assert Loss()([logits], labels).item() == pytest.approx(expected.item(), rel=1e-5)
    probabilities = Loss(outputs="probabilities")([softmax(logits).float()], labels)
    assert probabilities.item() == pytest.approx(expected.item(), rel=1e-5)


def test_cross_entropy_of_a_segmentation() -> None:
    assert torch.isfinite(Loss()([torch.randn(2, 3, 4, 4)], torch.zeros(2, 4, 4, dtype=torch.int64)))


def test_cross_entropy_of_tokens() -> None:
    logits, labels = torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5))
    labels[0, 3:] = -100
    expected = Loss()([logits.flatten(0, 1)], labels.flatten())
    assert Loss()([logits], labels).item() == pytest.approx(expected.item(), rel=1e-6)
    Loss().check_labels([logits], labels)
    with pytest.raises(DataError, match="classes 0 to 6"):
        Loss().check_labels([logits], labels + 7)
    channels = Loss()([logits.transpose(1, 2).contiguous()], labels)
    assert channels.item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_batch_whose_labels_are_all_left_out() -> None:
    logits = torch.randn(2, 5, 7, requires_grad=True)
    loss = Loss()([logits], torch.full((2, 5), -100))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_divergence_of_tokens() -> None:
    student, teacher = torch.randn(2, 5, 7), torch.randn(2, 5, 7)
    rows = [each.flatten(0, 1) for each in (student, teacher)]
    expected = Loss(distance="kl")(rows[:1], None, rows[1:])
    assert Loss(distance="kl")([student], None, [teacher]).item() == pytest.approx(expected.item(), rel=1e-6)


def test_a_shift_of_all_values_counts_unless_they_are_known_to_be_of_classes() -> None:
    teacher = torch.randn(6, 4)
    shifted = teacher + 3
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    by_label = functional.cross_entropy(shifted, labels)
    assert Loss()([shifted], None, [teacher]).item() > 1
    assert Loss()([shifted], labels, [teacher]).item() == pytest.approx(by_label.item() / 2, rel=1e-5)
    assert Loss(distance="kl")([shifted], None, [teacher]).item() == pytest.approx(0, abs=1e-6)
    assert Loss(temperature=4.0)([shifted], None, [teacher]).item() == pytest.approx(0, abs=1e-6)


def test_divergence_has_the_temperature_squared() -> None:
    student, teacher = torch.randn(6, 4), torch.randn(6, 4)
    p, q = softmax(teacher / 3), softmax(student / 3)
    expected = 9 * (p * (p / q).log()).sum(1).mean()
    assert Loss(temperature=3.0)([student], None, [teacher]).item() == pytest.approx(expected.item(), rel=1e-4)
    assert Loss(temperature=3.0)([teacher], None, [teacher]).item() == pytest.approx(0, abs=1e-6)


def test_mean_square() -> None:
    student, teacher = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    # Too few values a channel for a mean square of each: one for all.
    expected = np.square(student.numpy() - teacher.numpy()).mean() / np.square(teacher.numpy()).mean()
    assert Loss()([student], None, [teacher]).item() == pytest.approx(expected, rel=1e-5)
    logits = [t[:, 0] for t in (student, teacher)]
    forced = Loss(distance="mse")([logits[0]], None, [logits[1]])
    difference = torch.square(logits[0] - logits[1]).mean() / torch.square(logits[1]).mean()
    assert forced.item() == pytest.approx(difference.item(), rel=1e-5)


@pytest.mark.parametrize("axis", [1, 2])
def test_large_channels_do_not_drown_small_ones(axis: int) -> None:
    """Boxes in the hundreds beside scores of a thousandth, along either axis: an error of 10 % is one of 10 %."""
    sizes = torch.tensor([300.0, 200.0, 1.0, 1e-3])
    teacher = torch.randn(2, 500, 4) * sizes
    for channel in range(4):
        student = teacher.clone()
        student[..., channel] *= 1.1
        pair = [t.transpose(2, axis).contiguous() for t in (student, teacher)]
        assert along(pair[1]) == axis
        assert Loss()([pair[0]], None, [pair[1]]).item() == pytest.approx(0.01 / 4, rel=1e-4)


def along(teacher: torch.Tensor) -> int | None:
    """The axis along which there is a mean square of each entry."""
    power = channel_power(teacher)
    expected = {}
    for axis in range(1, teacher.ndim):
        others = [d for d in range(teacher.ndim) if d != axis]
        expected[axis] = teacher.square().mean(others, keepdim=True).expand_as(teacher)
    matches = [axis for axis, value in expected.items() if torch.allclose(power.expand_as(teacher), value)]
    if matches:
        return matches[0]
    torch.testing.assert_close(power.flatten()[0], teacher.square().mean())
    return None


def test_maps_have_channels_and_short_tensors_none() -> None:
    sizes = torch.logspace(-3, 3, 5)
    assert along(torch.randn(2, 5, 16, 16) * sizes[:, None, None]) == 1
    assert along(torch.randn(2, 16, 16, 5) * sizes) == 3
    assert along(torch.randn(200, 5) * sizes) is None
    assert along(torch.randn(1, 3, 5) * sizes) is None


def test_several_outputs_count_alike_and_integers_do_not_count() -> None:
    teacher = [torch.ones(2, 3), 1000 * torch.ones(2, 4), torch.zeros(2, dtype=torch.int64)]
    student = [1.1 * teacher[0], 1.1 * teacher[1], torch.ones(2, dtype=torch.int64)]
    assert Loss()(student, None, teacher).item() == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_the_mix(alpha: float) -> None:
    student, teacher, labels = torch.randn(5, 3), torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    loss = Loss(alpha=alpha, temperature=4.0)
    by_label, by_teacher = loss([student], labels), loss([student], None, [teacher])
    mixed = loss([student], labels, [teacher])
    assert mixed.item() == pytest.approx((alpha * by_teacher + (1 - alpha) * by_label).item(), rel=1e-5)


@pytest.mark.parametrize(
    "options", [{"alpha": 1.5}, {"temperature": 0.0}, {"distance": "cosine"}, {"label_smoothing": 1.0}]
)
def test_bad_options(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Loss(**options)  # type: ignore[arg-type]


def test_bad_data() -> None:
    with pytest.raises(DataError):
        Loss()([torch.zeros(2, 3)])
    with pytest.raises(DataError, match=r"\(3,\)"):
        Loss()([torch.zeros(2, 3)], torch.zeros(3, dtype=torch.int64))
    with pytest.raises(UsageError):
        Loss()([torch.zeros(2, 3)], None, [torch.zeros(2, 4)])
    with pytest.raises(UsageError):
        Loss()([torch.zeros(2, dtype=torch.int64)], None, [torch.zeros(2, dtype=torch.int64)])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            np.arange(40) % (nets.CLASSES + 1),
            f"a label is {nets.CLASSES}; the output has the classes 0 to {nets.CLASSES - 1}",
        ),
        (np.arange(40) % nets.CLASSES - 1, "a label is -1"),
        (np.ones((40, nets.CLASSES), np.float32), f"sum to {nets.CLASSES}, not to 1"),
        ([[1, 2], [3]], "no array"),
    ],
)
@pytest.mark.parametrize("features", [None, ["r0"]])
def test_labels_that_say_nothing_of_the_classes(labels: Any, message: str, features: Any) -> None:
    x = np.random.default_rng(0).standard_normal((40, 2, 6, 6)).astype(np.float32)
    model = nets.convolutional()
    with pytest.raises(DataError, match=message):
        finetune(model, {"image": x}, labels=labels, teacher=DistillationConfig(model, features=features), epochs=1)


def test_left_out_labels_and_probabilities_are_taken() -> None:
    loss = Loss()
    loss.check_labels([torch.zeros(3, 5)], torch.tensor([0, -100, 4]))
    loss.check_labels([torch.zeros(3, 5)], torch.full((3, 5), 0.2).half().float())


def test_label_smoothing() -> None:
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    spread = 0.8 * torch.nn.functional.one_hot(labels, 4) + 0.05
    expected = -(spread * softmax(logits).log()).sum(1).mean()
    assert Loss(label_smoothing=0.2)([logits], labels).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("distance", ["kl", "mse"])
def test_a_teacher_with_a_softmax(distance: str) -> None:
    """Logits and probabilities that say the same are no distance apart, whichever side has the Softmax."""
    logits, other = torch.randn(6, 4), torch.randn(6, 4)
    p = torch.softmax(logits, 1)
    by_teacher = Loss(distance=distance, teacher_outputs="probabilities")  # type: ignore[arg-type]
    by_student = Loss(distance=distance, outputs="probabilities", teacher_outputs="logits")  # type: ignore[arg-type]
    assert by_teacher([logits], None, [p]).item() == pytest.approx(0, abs=1e-6)
    assert by_student([p], None, [logits]).item() == pytest.approx(0, abs=1e-6)
    assert by_teacher([other], None, [p]).item() > 0.01


def test_chosen_indices_are_not_compared_with_the_teachers() -> None:
    """NonMaxSuppression may select another number of rows, and indices say nothing of how near the networks are."""
    scores, rows = torch.rand(6, 3), torch.zeros(5, 3, dtype=torch.int64)
    loss = Loss(distance="mse")
    assert loss([scores, rows], None, [scores + 1, rows[:4]]) == loss([scores], None, [scores + 1])
    with pytest.raises(UsageError, match="differ") as caught:
        loss([scores], None, [scores[:4]])
    assert "onnxqat cut" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="no floating-point output") as caught:
        loss([rows], None, [rows])
    assert "onnxqat cut" in (caught.value.hint or "")
