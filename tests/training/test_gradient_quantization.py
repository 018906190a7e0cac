"""Quantized gradients: equation 12 in numpy, no bias, one seed one result, nothing in the file."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import QatError, UsageError
from onnxqat.training import methods
from onnxqat.training.config import ScoreConfig
from onnxqat.training.execution import gradient_quantization
from onnxqat.training.execution.execution import Execution
from tests.training.grouped import finetune
from tests.training.test_dorefa import network

GRADIENT = (
    torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    * torch.tensor([1e-6, 1, 40, 0, 3.0])[:, None, None]
)


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
def test_equation_12(bits: int) -> None:
    torch.manual_seed(3)
    found = gradient_quantization.quantized(GRADIENT, bits).numpy()
    torch.manual_seed(3)
    noise = (torch.rand(GRADIENT.shape) - 0.5).numpy().astype(np.float64)
    g = GRADIENT.numpy().astype(np.float64)
    m = np.abs(g).max((1, 2), keepdims=True)
    k = 2**bits - 1
    with np.errstate(invalid="ignore"):
        x = g / (2 * m) + 0.5 + noise / k
        wanted = np.where(m > 0, 2 * m * (np.rint(np.clip(x, 0, 1) * k) / k - 0.5), 0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-12)
    for sample, largest in zip(found[[0, 1, 2, 4]], m[[0, 1, 2, 4], 0, 0], strict=True):
        steps = (sample / (2 * largest) + 0.5) * k
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
        assert len(np.unique(np.rint(steps))) > 1


def test_without_bias() -> None:
    torch.manual_seed(0)
    mean = torch.stack([gradient_quantization.quantized(GRADIENT, 3) for _ in range(4000)]).mean(0)
    largest = GRADIENT.abs().amax((1, 2), keepdim=True)
    inside = (GRADIENT.abs() < largest) & (largest > 0)
    assert float(((mean - GRADIENT) / largest.clamp_min(1e-20)).abs()[inside].max()) < 0.02


def test_types_and_what_is_not_finite() -> None:
    half = gradient_quantization.quantized(GRADIENT.to(torch.bfloat16), 4)
    assert half.dtype == torch.bfloat16
    broken = GRADIENT.clone()
    broken[1, 0, 0], broken[2, 0, 0] = float("nan"), float("inf")
    found = gradient_quantization.quantized(broken, 4)
    assert torch.equal(torch.isfinite(found), torch.isfinite(broken))
    assert torch.equal(found[2], broken[2])
    assert torch.isfinite(gradient_quantization.quantized(torch.zeros(3), 2)).all()


def test_forward_is_the_identity_and_one_seed_gives_one_gradient() -> None:
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        x = torch.linspace(-1, 1, 30).reshape(3, 10).requires_grad_()
        y = gradient_quantization.passes(x, 2)
        assert torch.equal(y, x)
        y.square().sum().backward()
        results.append(x.grad)
    assert torch.equal(*results[:2])  # type: ignore[arg-type]
    assert not torch.equal(results[1], results[2])  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["dorefa", "lsq", "pact"])
def test_layers_of_a_module(method: str) -> None:
    model = network(4)
    module = to_torch(model, quantizer_factory=methods.factory(method, limit_steps=False)).train()
    x = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    before = module(x)
    assert gradient_quantization.quantize(module, 2) == ["y"]
    assert torch.equal(module(x), before)
    seen: list[torch.Tensor] = []
    module.register_tensor_hook("y", lambda y: y.register_hook(seen.append) and None)
    module(x).square().sum().backward()
    assert seen
    assert all(p.grad is not None for p in module.parameters() if p.requires_grad and p.ndim)
    assert write_back(module.eval(), model) == write_back(
        to_torch(model, quantizer_factory=methods.factory(method, limit_steps=False)), model
    )
    with pytest.raises(UsageError):
        gradient_quantization.quantize(module, 1)


def test_finetune_takes_grad_bits(tmp_path: Path) -> None:
    model = network(4)
    x = np.random.default_rng(0).standard_normal((16, 2, 5, 5)).astype(np.float32)
    outputs = []
    for bits in (None, 3, 3):
        result = finetune(
            model,
            {"x": x},
            epochs=1,
            batch_size=8,
            score=ScoreConfig(evaluate=_one),
            execution=Execution(grad_bits=bits),
            learning_rate=0.01,
        )
        outputs.append(result.model)
        names = [(n.op_type, list(n.input)) for n in result.model.graph.node]
        assert names == [(n.op_type, list(n.input)) for n in model.graph.node]
    assert outputs[1] == outputs[2], "seeded"
    assert outputs[0] != outputs[1]
    onnx.checker.check_model(outputs[1])
    with pytest.raises(QatError):
        finetune(model, {"x": x}, execution=Execution(grad_bits=0))


_CALLS = iter(range(10**6))


def _one(module: torch.nn.Module) -> float:
    """A score that rises, so that the last weights are written."""
    return float(next(_CALLS))
