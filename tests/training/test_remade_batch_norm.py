"""BatchNormalization made again in front of the quantizers of a residual sum: the same bits, and less is kept."""

import contextlib
import copy
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from onnxqat import export
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.speed import rematerialize
from onnxqat.bridge.speed.recomputed_batchnorm import remake_batch_norm
from onnxqat.bridge.speed.relu_fusion import fuse_relu
from onnxqat.insertion.insert import insert_qdq
from onnxqat.training import methods
from onnxqat.training.callbacks import batchnorm_statistics
from tests.repetitions import pairs
from tests.training.test_rematerialize import allocated

IMAGES = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 4, 8, 8)).astype(np.float32))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first, second = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.branch = nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU(), second, nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.branch(x))


@pytest.fixture(scope="module")
def residual() -> onnx.ModelProto:
    """Every tensor is quantized, with BatchNormalization kept."""
    torch.manual_seed(0)
    model = export(nn.Sequential(Block(), Block()), (IMAGES,), input_names=["x"], batch_norm="keep")
    found = insert_qdq(model, "onnxruntime-cpu", data={"x": IMAGES.numpy()}, batch_norm="keep").model
    assert isinstance(found, onnx.ModelProto)
    return found


@pytest.fixture(autouse=True)
def whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rematerialize, "SMALLEST", 0)


def remade(view: Any) -> int:
    return sum("remade" in node.kwargs for node in view.graph.nodes)


@pytest.mark.parametrize(("mode", "layout"), pairs(["live", "frozen"], [torch.contiguous_format, torch.channels_last]))
def test_the_same_bits_and_less_is_kept(residual: onnx.ModelProto, mode: Any, layout: torch.memory_format) -> None:
    module = to_torch(residual, quantizer_factory=methods.factory("lsq", limit_steps=False)).train()
    batchnorm_statistics.set_mode(module, mode)
    plain: Any = fuse_relu(module)
    view: Any = remake_batch_norm(plain)
    assert (remade(plain), remade(view)) == (0, 2)
    images = IMAGES.contiguous(memory_format=layout)
    start, found, kept = copy.deepcopy(module.state_dict()), [], []
    for called, on in ((plain, False), (plain, True), (view, True)):
        module.load_state_dict(start)
        module.zero_grad()

        def forward(called: Any = called, on: bool = on) -> Tensor:
            with rematerialize.rematerialized() if on else contextlib.nullcontext():
                return called(images)  # type: ignore[no-any-return]

        output = forward()
        output.square().sum().backward()
        gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        found.append([output.detach(), *gradients, *(value.clone() for value in module.state_dict().values())])
        kept.append(allocated(forward))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
    assert kept[1] - kept[2] == 2 * IMAGES.nbytes, "one tensor of each branch"


def test_modules_without_such_a_pair_are_left_alone(residual: onnx.ModelProto) -> None:
    plain = nn.Sequential(nn.BatchNorm2d(4))
    assert remake_batch_norm(plain) is plain
    once = remake_batch_norm(to_torch(residual))
    assert remade(remake_batch_norm(once)) == remade(once)
