"""AdaRound: equations 21 to 24 in numpy, hard rounding in eval mode and in the file."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from onnxqat import numerics
from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.training import methods
from onnxqat.training.methods.adaround import Method
from onnxqat.types import QParams, QType
from tests.training.test_dorefa import network, run, stored

Array = npt.NDArray[Any]


def make(weight: Array, axis: int | None = 0, block: int | None = None) -> Method:
    qtype = QType.of(4, signed=True)
    shape: tuple[int, ...] = () if axis is None else (len(weight),)
    shape = (len(weight), -(-weight.shape[1] // block)) if block else shape
    scale = np.linspace(0.2, 0.3, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    qparams = QParams(scale, np.zeros(shape, np.int64), qtype, 1 if block else axis, None, block)
    q = Method(qparams, tensor="w", role="weight")
    q.start(torch.from_numpy(weight))
    return q


WEIGHT = np.random.default_rng(0).standard_normal((3, 10)).astype(np.float32)


def by_hand(q: Method, share: Array) -> Array:
    scale = numerics.spread(q.qparams().scale, q.qparams(), WEIGHT.shape)
    codes = np.clip(np.floor(WEIGHT / scale) + share, q.quant_min, q.quant_max)
    return np.asarray(codes.astype(np.float32) * scale)


@pytest.mark.parametrize(("axis", "block"), [(0, None), (None, None), (1, 4)])
def test_equations(axis: int | None, block: int | None) -> None:
    q = make(WEIGHT, axis, block)
    assert q.rounding is not None
    inside = np.abs(by_hand(q, np.asarray(0.0))) < 1.3
    start = q.train()(torch.from_numpy(WEIGHT)).detach().numpy()
    np.testing.assert_allclose(start[inside], WEIGHT[inside], atol=1e-6)
    with torch.no_grad():
        q.rounding.copy_(torch.randn(WEIGHT.shape, generator=torch.Generator().manual_seed(1)) * 3)
    v = q.rounding.detach().numpy()
    soft = np.clip(1.2 / (1 + np.exp(-v)) - 0.1, 0, 1)
    np.testing.assert_allclose(q.train()(torch.from_numpy(WEIGHT)).detach().numpy(), by_hand(q, soft), atol=1e-6)
    hard = q.eval()(torch.from_numpy(WEIGHT)).detach().numpy()
    np.testing.assert_array_equal(hard, by_hand(q, (v >= 0).astype(np.float32)))
    exported = q.train().export_weight(torch.from_numpy(WEIGHT)).numpy()
    np.testing.assert_array_equal(numerics.fake_quantize(exported, q.qparams()), hard)
    for progress, beta in ((0.2, 20.0), (0.6, 11.0), (1.0, 2.0)):
        found = q.penalty(progress)
        assert found is not None
        wanted = 0.01 * (1 - np.abs(2 * soft - 1) ** beta).sum()
        assert float(found.detach()) == pytest.approx(wanted, rel=1e-4)
    assert q.penalty(0.1) is None


def test_only_the_rounding_learns() -> None:
    q = make(WEIGHT)
    x = torch.from_numpy(WEIGHT.copy()).requires_grad_()
    q.train()(x).square().sum().backward()
    assert x.grad is None
    assert {name for name, p in q.named_parameters() if p.grad is not None} == {"rounding"}


@pytest.mark.parametrize("deploy", [False, True])
def test_file_computes_what_was_learned(deploy: bool) -> None:
    model = stored(network(3)) if deploy else network(3)
    module = to_torch(model, quantizer_factory=methods.factory("adaround")).train()
    weight = next(q for _, q in quantizers(module) if q.role == "weight")
    with torch.no_grad():
        weight.get_parameter("rounding").normal_(generator=torch.Generator().manual_seed(0))
    x = np.random.default_rng(2).standard_normal((4, 2, 5, 5)).astype(np.float32)
    module.eval()
    tuned = write_back(module, model)
    assert tuned != model
    expected = module(torch.from_numpy(x)).detach()
    assert torch.equal(to_torch(tuned)(torch.from_numpy(x)), expected)
    np.testing.assert_allclose(run(tuned, x), expected.numpy(), atol=1e-5)
