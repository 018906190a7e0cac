"""Heads of NanoDet: scores and distributions of distances for each stride."""

import numpy as np
import pytest

from onnxqat.metrics._detections import detections
from onnxqat.metrics._distances import boxes_and_scores

CELLS, BINS, CLASSES = {8: 64, 16: 16, 32: 4}, 8, 20
"""Of an input of 64 x 64."""


def heads(*, batch: bool, logits: bool) -> dict[str, np.ndarray]:
    """One object of class 3 at stride 16 in cell (2, 1): 1 bin to the left, 2 up, 3 to the right, halfway 4 and 5 down."""
    found: dict[str, np.ndarray] = {}
    for stride, cells in CELLS.items():
        scores, distances = np.zeros((cells, CLASSES)), np.full((cells, 4, BINS), -100.0)
        distances[:, :, 0] = 0.0
        if stride == 16:
            scores[6, 3] = 0.9
            distances[6] = -100.0
            distances[6, [0, 1, 2, 3, 3], [1, 2, 3, 4, 5]] = 7.0
        if logits:
            scores = np.where(scores > 0, 2.0, -9.0)
        # Names as exporters mix them up.
        found[f"bbox{stride}"], found[f"cls{stride}"] = scores, distances.reshape(cells, -1)
    order = sorted(found, key=lambda name: (len(name), name))
    return {name: found[name][None] if batch else found[name] for name in order}


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("logits", [False, True])
def test_distances_are_means_over_bins(batch: bool, logits: bool) -> None:
    outputs = heads(batch=batch, logits=logits)
    read = boxes_and_scores(list(outputs.values()), 64, 64)
    assert read is not None
    assert (read[0].shape, read[1].shape) == ((1, 84, 4), (1, 84, CLASSES))
    (found,) = detections(outputs, 64, 64)
    x, y = (2 + 0.5) * 16 - 0.5, (1 + 0.5) * 16 - 0.5
    np.testing.assert_allclose(found.boxes[0], [x - 16, y - 32, x + 48, y + 4.5 * 16])
    assert found.classes[0] == 3


def test_what_are_no_such_heads() -> None:
    good = list(heads(batch=True, logits=True).values())
    assert boxes_and_scores(good[:-1], 64, 64) is None  # one stride without scores
    assert boxes_and_scores(good, 96, 64) is None  # cells of another input
    assert boxes_and_scores([good[0][0], *good[1:]], 64, 64) is None  # with and without an axis of samples
    assert boxes_and_scores([a[..., :7] for a in good], 64, 64) is None  # nothing of four sides
