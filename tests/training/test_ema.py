"""EMA: ranges of activations are averages over steps, those of weights the weights'; nothing moves in eval mode."""

from typing import Any

import numpy as np
import pytest
import torch

from onnxqat import numerics
from onnxqat.training import methods
from onnxqat.training.methods.ema import DECAY
from onnxqat.types import QParams, QType, Role, Scheme


def make(role: Role, signed: bool, axis: int | None = None) -> Any:
    qtype = QType.of(8, signed=signed)
    scale = np.full(() if axis is None else (3,), 0.02, np.float32)
    qparams = QParams(scale, np.full(scale.shape, 0 if signed else 30, np.int64), qtype, axis)
    return methods.method("ema")(qparams, tensor="x", role=role)


@pytest.mark.parametrize("signed", [True, False])
def test_activation_follows_the_average(signed: bool) -> None:
    q = make("activation", signed).train()
    low, high = float(q.low), float(q.high)
    batches = [torch.randn(50, generator=torch.Generator().manual_seed(i)) * (i + 1) for i in range(4)]
    for x in batches:
        low = DECAY * low + (1 - DECAY) * float(x.min())
        high = DECAY * high + (1 - DECAY) * float(x.max())
        q(x)
    wanted = numerics.from_range(np.float32(low), np.float32(high), Scheme(q.qtype, signed))
    np.testing.assert_allclose(q.qparams().scale, wanted.scale, rtol=1e-5)
    assert q.qparams().zero_point == wanted.zero_point
    before = q.qparams()
    q.eval()(batches[0] * 100)
    assert q.qparams().same(before)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_weight_has_the_range_of_its_values(axis: int | None) -> None:
    q = make("weight", True, axis).train()
    weight = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    q(weight)
    largest = weight.abs().amax() if axis is None else weight.abs().amax(1 - axis)
    torch.testing.assert_close(q.scale.detach(), largest / 127)


def test_a_state_dict_holds_the_averages() -> None:
    first, second = make("activation", False).train(), make("activation", False).train()
    first(torch.randn(100))
    second.load_state_dict(first.state_dict())
    x = torch.randn(100)
    assert torch.equal(first(x), second(x))
    assert first.qparams().same(second.qparams())


def test_a_tensor_of_zeros_has_a_scale() -> None:
    q = make("weight", True).train()
    assert torch.equal(q(torch.zeros(5)), torch.zeros(5))
    assert q.qparams().scale == 1
