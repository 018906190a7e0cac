"""Codes that turn back are counted, and only these."""

import torch

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.training.callbacks.quantized_weights import quantized_weights
from onnxqat.training.callbacks.turning_codes import TurningCodes
from tests.training.nets import convolutional


def test_a_code_that_goes_back_has_turned_and_one_that_goes_on_has_not() -> None:
    module = to_torch(convolutional())
    watched = TurningCodes.of(module)
    assert watched is not None
    weights = list(quantized_weights(module))
    total = sum(each.weight.numel() for each in weights)
    flat = weights[0].weight.detach().view(-1)
    step = float(weights[0].steps()[1].reshape(-1)[0])

    def move(by: tuple[float, float]) -> None:
        with torch.no_grad():
            flat[:2] += torch.tensor(by) * step
        watched.look()

    with torch.no_grad():
        flat[:2] = 0.0
    watched.look()
    assert watched.share() == 0.0  # the first change is no turn
    move((1.0, 1.0))
    watched.share()
    move((-1.0, 1.0))
    assert watched.share() == 1 / total
    move((0.0, 0.0))
    assert watched.share() == 0.0  # counted anew after each call
    move((1.0, -2.0))
    assert watched.share() == 2 / total
