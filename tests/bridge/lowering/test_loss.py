"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

import numpy as np
import pytest
import torch

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import lowering_checks, one_node, parity

RANDOM = np.random.default_rng(0)
CLASSES = 5


def losses(shape, weighted, ignored):
    labels = RANDOM.integers(0, CLASSES, (shape[0], *shape[1:]))
    if ignored is not None:
        labels[RANDOM.random(labels.shape) < 0.4] = ignored
        labels.reshape(-1)[0] = 2
    weight = RANDOM.random(CLASSES).astype(np.float32) if weighted else None
    x = RANDOM.standard_normal((shape[0], CLASSES, *shape[1:])).astype(np.float32)
    return {"x": x, "labels": labels, "weight": weight}


@pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 3, 2), (2, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 1, -7, CLASSES + 3])
def test_losses_equal_onnxruntime(shape, reduction, weighted, ignored) -> None:
    inputs = losses(shape, weighted, ignored)
    options = {"opset": 13, "reduction": reduction, "ignore_index": ignored}
    parity.check(one_node.make("NegativeLogLikelihoodLoss", inputs, **options), one_node_feeds(inputs))
    outputs = {"y": 1, "log_probability": 1}
    made = one_node.make("SoftmaxCrossEntropyLoss", inputs, outputs=outputs, **options)
    parity.check(made, one_node_feeds(inputs))


def one_node_feeds(inputs):
    return {name: array for name, array in inputs.items() if array is not None}


def test_an_impossible_class_that_is_ignored_leaves_value_and_gradient_finite() -> None:
    inputs = losses((3,), True, 0) | {"labels": np.array([0, 1, 0])}
    inputs["x"][0, 0] = -np.inf
    model = one_node.make("NegativeLogLikelihoodLoss", inputs, opset=13, ignore_index=0)
    y = to_torch(model)(*lowering_checks.tensors(model, inputs))
    assert float(y) == pytest.approx(-float(inputs["x"][1, 1]))
    for gradient in lowering_checks.gradients(model, inputs):
        assert torch.isfinite(gradient).all()


def test_losses_export() -> None:
    options = {"opset": 13, "ignore_index": 1}
    dynamic = {"x": (0, 2), "labels": (0, 1)}
    for operator in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        lowering_checks.exports(operator, losses((4, 3), True, 1), dynamic, losses((2, 5), True, 1), **options)


def test_an_unknown_reduction_is_refused() -> None:
    inputs = losses((3,), False, None)
    model = one_node.make("NegativeLogLikelihoodLoss", inputs, opset=13, reduction="median", rank=0)
    with pytest.raises(UnsupportedError, match="reduction median"):
        to_torch(model)
