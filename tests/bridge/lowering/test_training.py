"""Optimizer steps of ai.onnx.preview.training."""

import numpy as np
import pytest
import torch

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import lowering_checks, one_node

RANDOM = np.random.default_rng(0)
DOMAIN = "ai.onnx.preview.training"
MEMORIES = {"Adagrad": 1, "Adam": 2, "Momentum": 1}
ATTRIBUTES = {
    "Adagrad": {"decay_factor": 0.1, "epsilon": 1e-5, "norm_coefficient": 0.01},
    "Adam": {"alpha": 0.95, "beta": 0.9, "epsilon": 1e-5, "norm_coefficient": 0.01, "norm_coefficient_post": 0.02},
    "Momentum": {"alpha": 0.95, "beta": 0.1, "norm_coefficient": 0.01, "mode": "nesterov"},
}


def step(operator, number, tensors=2, **options):
    memories = MEMORIES[operator]
    inputs = {"rate": np.array(0.1, np.float32), "step": np.array(number)}
    for group in range(2 + memories):
        for i in range(tensors):
            inputs[f"t{group}_{i}"] = np.abs(RANDOM.standard_normal((3, 2 + i))).astype(np.float32)
    outputs = {f"y{group}_{i}": 1 for group in range(1 + memories) for i in range(tensors)}
    attributes = ATTRIBUTES[operator] | options
    return one_node.make(operator, inputs, outputs=outputs, domain=DOMAIN, rank=2, **attributes), inputs


@pytest.mark.parametrize("operator", MEMORIES)
@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("tensors", [1, 2])
def test_a_step_equals_the_reference(operator, number, tensors) -> None:
    model, inputs = step(operator, number, tensors)
    lowering_checks.equals_reference(model, inputs, types=operator != "Adam")  # a float64 step of one tensor there
    for gradient in lowering_checks.gradients(model, inputs):
        assert torch.isfinite(gradient).all()


def test_plain_momentum_equals_the_reference() -> None:
    model, inputs = step("Momentum", 2, mode="standard")
    lowering_checks.equals_reference(model, inputs)


def test_adam_is_that_of_torch() -> None:
    options = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
    model, inputs = step("Adam", 1, 1, **options)
    inputs["t2_0"][:] = inputs["t3_0"][:] = 0
    weight = torch.nn.Parameter(torch.from_numpy(inputs["t0_0"].copy()))
    weight.grad = torch.from_numpy(inputs["t1_0"])
    torch.optim.Adam([weight], lr=0.1, eps=0).step()
    found = to_torch(model)(*lowering_checks.tensors(model, inputs))[0]
    # torch divides by sqrt(v / correction) + epsilon, ONNX corrects the rate: the same but for epsilon.
    torch.testing.assert_close(found, weight.detach(), rtol=1e-4, atol=1e-5)


def test_gradient_is_refused_by_name() -> None:
    x = np.ones(2, np.float32)
    model = one_node.make("Gradient", {"x": x}, domain=DOMAIN, xs=["x"], y="x")
    with pytest.raises(UnsupportedError, match=r"ai\.onnx\.preview\.training\.Gradient"):
        to_torch(model)
