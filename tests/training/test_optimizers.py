"""Parameter groups, optimizers by name, and the guard of scales."""

import numpy as np
import pytest
import torch

from onnxqat.bridge.fake_quantize import FakeQuantize
from onnxqat.errors import UsageError
from onnxqat.training import optimizers
from onnxqat.types import QParams, QType


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)))
        self.bias = torch.nn.Parameter(torch.ones(3))
        self.frozen = torch.nn.Parameter(torch.ones(3, 3), requires_grad=False)
        grid = QType.of(8, signed=True)
        first = QParams(np.float32(0.01), np.int64(0), grid)  # type: ignore[arg-type]
        second = QParams(np.full(3, 0.25, np.float32), np.zeros(3, np.int64), grid, 0)
        self.q = FakeQuantize(first, tensor="x", role="activation")
        self.w = FakeQuantize(second, tensor="w", role="weight")
        self.tied = FakeQuantize(first, tensor="y", role="activation")
        self.tied.register_parameter("scale", self.q.scale)


def test_groups() -> None:
    module = Small()
    groups = optimizers.parameter_groups(module, learning_rate=0.1, scale_learning_rate=0.01, weight_decay=0.5)
    found = {g["name"]: (len(g["params"]), g["lr"], g["weight_decay"]) for g in groups}
    assert found == {"weights": (1, 0.1, 0.5), "biases": (1, 0.1, 0.0), "scales": (2, 0.01, 0.0)}
    assert optimizers.parameter_groups(module, learning_rate=0.1)[-1]["lr"] == 0.1


def test_adam_moves_scales_relative_to_their_size() -> None:
    module = Small()
    optimizer = optimizers.make("adam", module, learning_rate=1e-3)
    rates = {g["name"]: g["lr"] for g in optimizer.param_groups}
    assert rates == {"weights": 1e-3, "biases": 1e-3, "scales of 2^-7": 1e-3 / 128, "scales of 2^-2": 1e-3 / 4}


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_optimizers_step(name: str) -> None:
    module = Small()
    before = [p.detach().clone() for p in module.parameters()]
    optimizer = optimizers.make(name, module, weight_decay=0.1)
    (module.q(module.weight).sum() + module.bias.sum() + module.w(module.weight).sum()).backward()
    optimizer.step()
    changed = [not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)]
    assert changed == [p.requires_grad for p in module.parameters()]


def test_bad_options() -> None:
    with pytest.raises(UsageError, match="sgdd"):
        optimizers.make("sgdd", Small())
    with pytest.raises(UsageError):
        optimizers.make("sgd", Small(), learning_rate=float("nan"))
    with pytest.raises(UsageError):
        optimizers.make("sgd", Small().requires_grad_(False))


def test_the_guard_halves_or_doubles_at_most() -> None:
    module = Small()
    guard = optimizers.ScaleGuard(module)
    guard.before()
    with torch.no_grad():
        module.q.scale.fill_(-5.0)
        module.w.scale.copy_(torch.tensor([0.3, 10.0, 0.2]))
    guard.after()
    assert module.q.scale.item() == pytest.approx(0.005)
    assert module.w.scale.tolist() == pytest.approx([0.3, 0.5, 0.2])
    assert int(guard.limited) == 2
    guard.before()
    guard.after()
    assert int(guard.limited) == 2
