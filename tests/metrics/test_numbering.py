"""Labels that count classes otherwise than the model are told from those that fit, and from too few."""

import numpy as np
import pytest

from onnxqat.metrics._numbering import doubt

RNG = np.random.default_rng(0)
CLASSES = 10
ANSWERS = RNG.integers(0, CLASSES, 300)


def mostly(labels: np.ndarray) -> np.ndarray:
    """`labels` of which a tenth is of another class, as those of an able model."""
    noisy = labels.copy()
    noisy[::10] = RNG.integers(0, CLASSES, len(noisy[::10]))
    return noisy


def test_labels_that_fit_are_no_matter() -> None:
    assert doubt(ANSWERS, mostly(ANSWERS)) is None


@pytest.mark.parametrize(("more", "said"), [(1, "1 less in each label"), (-1, "1 more in each label")])
def test_labels_off_by_one(more: int, said: str) -> None:
    assert said in str(doubt(ANSWERS, mostly(ANSWERS) + more))


def test_classes_in_another_order() -> None:
    order = np.roll(np.arange(CLASSES), 4)
    found = str(doubt(ANSWERS, mostly(order[ANSWERS])))
    assert "the classes in another order: most samples with the label 0 are answered with class 4" in found


def test_a_model_that_always_answers_the_same_has_no_other_order() -> None:
    assert "look at labels and preprocessing" in str(doubt(np.zeros(300, np.int64), ANSWERS))


@pytest.mark.parametrize("count", [0, 5, 19])
def test_few_samples_say_nothing(count: int) -> None:
    assert doubt(ANSWERS[:count], ANSWERS[:count] + 1) is None
