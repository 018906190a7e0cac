"""Labels that number the classes in another way than the model does, found from its answers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onnxqat.metrics._paired import ERROR, at_least, commonest

FEWEST = 20
"""Samples below which nothing is said of the labels."""

_CLEAR = 0.5
"""Share of answers that another numbering must explain: networks in use are right for more, guesses for less."""

_EACH = 5
"""Samples of each class from which its commonest answer is no accident."""

Numbers = npt.NDArray[np.int64]


def doubt(answers: Numbers, labels: Numbers) -> str | None:
    """Say that the labels do not fit the answers of a trained model, and what is the likely reason; None where they do.

    Args:
        answers: class with the largest score, of each sample.
        labels: class of each sample.
    """
    count = len(labels)
    right = int((answers == labels).sum())
    if count < FEWEST or at_least(right, count, commonest(labels)) < ERROR:
        return None
    found = f"the labels do not fit the model: it is right for {100 * right / count:.1f}% of {count} samples"
    for less, reason in ((1, "they count classes from 1, and the model from 0"), (-1, "they are one too low")):
        explained = float((answers == labels - less).mean())
        if explained >= _CLEAR:
            changed = f"with {'1 less' if less > 0 else '1 more'} in each label it would be {100 * explained:.1f}%"
            return f"{found}, and {changed}: {reason}"
    explained, example = _renamed(answers, labels)
    if explained >= _CLEAR:
        return f"{found}, and {100 * explained:.1f}% with the classes in another order: {example}"
    if count >= 10 * FEWEST:  # with fewer, an able model may be unlucky
        return f"{found}, no more often than with always the commonest label: look at labels and preprocessing"
    return None


def _renamed(answers: Numbers, labels: Numbers) -> tuple[float, str]:
    """Find the share of right answers if each label meant the class that is answered most for it, and an example.

    The share is 0 where two labels would mean one class, as with a model that always answers the same.
    """
    meant: dict[int, int] = {}
    explained = 0
    for label in np.unique(labels):
        numbers, counts = np.unique(answers[labels == label], return_counts=True)
        if counts.sum() < _EACH:
            return 0.0, ""
        meant[int(label)] = int(numbers[counts.argmax()])
        explained += int(counts.max())
    if len(set(meant.values())) < len(meant):
        return 0.0, ""
    label, answer = next((pair for pair in meant.items() if pair[0] != pair[1]), (0, 0))
    return explained / len(labels), f"most samples with the label {label} are answered with class {answer}"
