"""Gradients of the methods against the formulas of their papers, written out in numpy a value at a time."""

from typing import Any

import numpy as np
import pytest
import torch

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.training import methods
from onnxqat.types import QParams, QType, Role

UINT4 = QType.of(4, signed=False)
SCALE, ZERO = 0.25, 3
INPUT = np.asarray([-3.0, -0.8, -0.75, -0.4, 0.0, 0.05, 0.3, 1.1, 2.9, 3.0, 3.05, 9.0], np.float32)
WEIGHT = np.arange(1, len(INPUT) + 1, dtype=np.float32)
LOW, HIGH = 0 - ZERO, 15 - ZERO


def make(name: str, role: Role = "activation", zero_point: int = ZERO) -> FakeQuantize:
    scale, zero = np.asarray(SCALE, np.float32), np.asarray(zero_point, np.int64)
    return methods.method(name)(QParams(scale, zero, UINT4), tensor="x", role=role, symmetric=False)


def gradients(q: FakeQuantize) -> tuple[Any, dict[str, float]]:
    x = torch.from_numpy(INPUT.copy()).requires_grad_()
    (q(x) * torch.from_numpy(WEIGHT)).sum().backward()
    assert x.grad is not None
    return x.grad.numpy(), {key: float(p.grad) for key, p in q.named_parameters() if p.grad is not None}


def total(of_one: Any) -> float:
    return float(sum(w * of_one(float(v)) for w, v in zip(WEIGHT, INPUT.astype(np.float64) / SCALE, strict=True)))


def test_pact_learns_from_clipped_values_alone() -> None:
    x, learned = gradients(make("pact"))
    inside = (INPUT / SCALE >= LOW) & (INPUT / SCALE <= HIGH)
    np.testing.assert_array_equal(x, WEIGHT * inside)
    wanted = total(lambda v: HIGH if v > HIGH else LOW if v < LOW else 0.0)
    assert learned == {"scale": pytest.approx(wanted / 15**2)}


def test_pact_leaves_the_scale_of_weights() -> None:
    assert not any(p.requires_grad for p in make("pact", role="weight").parameters())


def test_dsq_has_the_slope_of_the_soft_staircase() -> None:
    x, learned = gradients(make("dsq"))
    k = np.log(2 / 0.4 - 1)

    def soft(v: float) -> float:
        step = np.floor(v)
        return float(step + 0.5 + 0.5 * np.tanh(k * (v - step - 0.5)) / np.tanh(0.5 * k))

    for value, slope, weight in zip(INPUT.astype(np.float64) / SCALE, x, WEIGHT, strict=True):
        at = value if value != np.floor(value) else value + 1e-4  # the soft staircase has kinks at codes
        wanted = (soft(at + 1e-6) - soft(at - 1e-6)) / 2e-6 if LOW <= value <= HIGH else 0.0
        assert slope == pytest.approx(weight * wanted, rel=1e-3)
    assert learned.keys() == {"scale"}
    assert learned["scale"] == pytest.approx(gradients(make("lsq"))[1]["scale"])


def test_lsq_plus_learns_the_offset_from_clipped_values() -> None:
    q = make("lsq_plus")
    x, learned = gradients(q)
    g = q.gradient_scale(torch.from_numpy(INPUT))
    np.testing.assert_array_equal(x, gradients(make("lsq"))[0])
    assert learned["offset"] == pytest.approx(g * total(lambda v: float(v < LOW or v > HIGH)))
    wanted = total(lambda v: 0.0 if v < LOW else 15.0 if v > HIGH else np.rint(v) - v)
    assert learned["scale"] == pytest.approx(g * wanted, rel=1e-5)


def test_lsq_plus_rounds_the_offset_to_a_zero_point() -> None:
    q = make("lsq_plus")
    assert q.qparams().zero_point == ZERO
    with torch.no_grad():
        q.get_parameter("offset").copy_(torch.tensor(-1.9))
    assert q.qparams().zero_point == 8
    assert q(torch.tensor(100.0)).item() == (15 - 8) * SCALE
    with torch.no_grad():
        q.get_parameter("offset").copy_(torch.tensor(-100.0))
    assert q.qparams().zero_point == 15, "a zero point is a code"


def test_lsq_plus_of_a_symmetric_grid_is_lsq() -> None:
    q = methods.method("lsq_plus")(
        QParams(np.asarray(0.1, np.float32), np.asarray(0, np.int64), QType.of(8, signed=True)),
        tensor="x",
        role="activation",
    )
    assert [key for key, _ in q.named_parameters()] == ["scale"]


def test_tqt_rounds_scales_up_to_powers_of_two() -> None:
    q = make("tqt")
    with torch.no_grad():
        q.scale.copy_(torch.tensor(0.26))
    assert q.qparams().scale == 0.5
    assert gradients(q)[1]["scale"] != 0.0


def test_qdrop_drops_in_train_mode_alone() -> None:
    torch.manual_seed(0)
    q, x = make("qdrop"), torch.linspace(-0.7, 2.9, 4001)
    quantized = make("lsq")(x)
    differs = x != quantized
    mixed = q(x)
    dropped = (mixed == x)[differs]
    assert torch.equal(mixed[mixed != x], quantized[mixed != x])
    assert 0.45 < float(dropped.float().mean()) < 0.55
    assert torch.equal(q.eval()(x), quantized)
    weight = make("qdrop", role="weight")
    assert torch.equal(weight(x), quantized), "weights are quantized in every step"
