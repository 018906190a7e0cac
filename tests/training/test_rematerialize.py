"""Quantized tensors computed again: the same outputs and gradients, bit for bit, and backward keeps less."""

import contextlib
import copy
import functools
import io
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.bridge.speed import rematerialize
from onnxqat.bridge.speed.relu_fusion import fuse_relu
from onnxqat.bridge.speed.rematerialize import rematerialized
from onnxqat.training import methods
from onnxqat.training.execution.execution import Execution
from onnxqat.types import QParams, QType, Role
from tests.repetitions import pairs
from tests.training.grouped import finetune
from tests.training.nets import convolutional, images


@pytest.fixture(autouse=True)
def whatever_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors here are small."""
    monkeypatch.setattr(rematerialize, "SMALLEST", 0)


def allocated(run: Callable[[], object]) -> int:
    """Bytes that what `run` returns holds."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        held = run()
    total = sum(e.nbytes() for e in found.profiler.kineto_results.events() if e.name() == "[memory]")
    del held
    return int(total)


def context(on: bool) -> contextlib.AbstractContextManager[object]:
    return rematerialized() if on else contextlib.nullcontext()


def step(called: Any, x: Tensor, on: bool) -> list[Tensor]:
    """The output, and the gradients of input and parameters."""
    x = x.clone().requires_grad_()
    called.zero_grad()
    torch.manual_seed(0)
    with context(on):
        output = called(x)
    (output.square().sum() + output.sum()).backward()
    assert x.grad is not None
    return [output.detach(), x.grad, *(p.grad.clone() for p in called.parameters() if p.grad is not None)]


def batch(count: int = 4) -> Tensor:
    return torch.from_numpy(images(count)[0])


def module(method: str = "lsq") -> Any:
    return to_torch(convolutional(3), quantizer_factory=methods.factory(method, limit_steps=False)).train()


@pytest.mark.parametrize(("method", "layout"), pairs(methods.names(), [torch.contiguous_format, torch.channels_last]))
def test_the_same_bits_and_less_is_kept(method: str, layout: torch.memory_format) -> None:
    made = module(method)
    view = fuse_relu(made)
    x = batch(16).contiguous(memory_format=layout)
    before = copy.deepcopy(made.state_dict())
    wanted = step(view, x, on=False)
    after = copy.deepcopy(made.state_dict())
    made.load_state_dict(before)
    found = step(view, x, on=True)
    assert len(wanted) >= 7
    assert len(found) == len(wanted)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert all(torch.equal(value, after[key]) for key, value in made.state_dict().items())

    def kept(on: bool) -> int:
        with context(on):
            return allocated(lambda: view(x))

    # What the second and third convolution read. The first reads an input that needs no gradient, and the fixed methods
    # do not keep it for that of the scale.
    assert kept(False) - kept(True) >= 2 * 16 * 4 * 6 * 6 * x.element_size()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_same_bits_under_autocast(dtype: torch.dtype) -> None:
    made = module()
    x = batch(16)
    with torch.autocast("cpu", dtype):
        wanted, found = step(made, x, on=False), step(made, x, on=True)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def quantizer(storage: str, role: Role, scale: float, zero_point: int = 0) -> FakeQuantize:
    grid = QType("uint8", 0, 255) if storage == "uint8" else QType("int8", -128, 127)
    return FakeQuantize(QParams(np.asarray(scale, np.float32), np.asarray(zero_point), grid), tensor="t", role=role)


class Readers(nn.Module):
    """A quantized tensor with several readers: an output, a convolution, views that products read, a quantizer."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = quantizer("uint8", "activation", 0.02, 100)
        self.weight = quantizer("int8", "weight", 0.02)
        self.again = quantizer("int8", "activation", 0.04)
        self.kernel = nn.Parameter(torch.linspace(-1.0, 1.0, 36).reshape(4, 1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(x)
        flat = y.reshape(len(y), -1)
        first = functional.conv2d(y, self.weight(self.kernel), padding=1).sum((1, 2, 3))
        second = (flat @ flat.t()).sum(1) + flat[:, 3:7].square().sum(1) + self.again(y).square().sum((1, 2, 3))
        return first + second + torch.exp(y.clone().mul_(2.0)).sum((1, 2, 3)) + y.sum((1, 2, 3))


def test_every_reader_has_the_same_bits() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 1, 5, 5)
    made = Readers()
    wanted, found = step(made, x, on=False), step(made, x, on=True)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_gradients_of_gradients() -> None:
    """Of what reads a quantized tensor: a quantizer's own gradient has none."""
    torch.manual_seed(0)
    x = torch.randn(3, 1, 5, 5, requires_grad=True)
    made, found = Readers(), []
    for on in (False, True):
        with context(on):
            output = functional.conv2d(made.activation(x), made.kernel)
        (first,) = torch.autograd.grad(output.square().sum(), made.kernel, create_graph=True)
        found.append([first, *torch.autograd.grad(first.square().sum(), made.kernel)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_backward_twice_and_after_a_detach() -> None:
    made = Readers()
    x = torch.randn(3, 1, 5, 5, requires_grad=True)
    with rematerialized():
        loss = made(x).sum()
        cut = functional.conv2d(made.activation(x).detach(), made.kernel).sum()
    loss.backward(retain_graph=True)
    first = made.kernel.grad
    assert first is not None
    first = first.clone()
    loss.backward()
    assert made.kernel.grad is not None
    assert torch.equal(made.kernel.grad, 2 * first)
    cut.backward()


def test_what_is_changed_in_place_is_refused_as_without() -> None:
    x = torch.rand(4, requires_grad=True)
    for on in (False, True):
        with context(on):
            kept = x * 1.0
            result = kept.square()
        kept.detach().add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


def test_a_quantized_tensor_that_is_changed_in_place_is_kept() -> None:
    made = Readers().activation
    x = torch.rand(4, 4, requires_grad=True)
    grads = []
    for on in (False, True):
        with context(on):
            changed = made(x)
            changed.mul_(3.0)
            (grad,) = torch.autograd.grad(changed.square().sum(), x)
        grads.append(grad)
    assert torch.equal(*grads)


def test_memory_that_is_used_again_is_not_taken_for_the_tensor_that_was_there() -> None:
    made = Readers().activation
    x = torch.rand(64, 64, requires_grad=True)
    with rematerialized():
        total = torch.zeros(())
        for index in range(20):
            total = total + made(x).sum()  # nobody keeps it: the next tensor may get its memory
            total = total + (torch.full((64, 64), float(index)) * x).sum()
    (grad,) = torch.autograd.grad(total, x)
    plain = sum(made(x).sum() for _ in range(20)) + sum((float(i) * x).sum() for i in range(20))
    assert torch.allclose(grad, torch.autograd.grad(plain, x)[0])


def test_small_results_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(64, 64, requires_grad=True)
    for limit, count in ((x.nbytes, 1), (x.nbytes + 1, 0)):
        monkeypatch.setattr(rematerialize, "SMALLEST", limit)
        with cast(Any, rematerialized()) as context:
            Readers().activation(x)
            assert len(context.made) == count


def test_contexts_nest_and_end() -> None:
    made = module()
    x = batch()
    with rematerialized():
        with rematerialized():
            output = made(x)
        output = output + made(x)
    output.sum().backward()
    seen: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made(x)
    assert seen, "the hooks of the caller are asked again"


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning")
def test_copied_pickled_compiled_and_exported_modules() -> None:
    made = module()
    x = batch()
    with rematerialized():
        wanted = made(x)
        wanted.sum().backward()
        assert torch.equal(copy.deepcopy(made)(x), wanted)
        buffer = io.BytesIO()
        torch.save(made, buffer)
        buffer.seek(0)
        assert torch.equal(torch.load(buffer, weights_only=False)(x), wanted)
        compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
        grads = [step(called, x, on=False)[1:] for called in (made, compiled)]
        assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
        exported = torch.export.export(copy.deepcopy(made).eval(), (x,)).module()
        assert torch.equal(exported(x), made.eval()(x))


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning")
def test_a_compiler_sees_nothing_of_the_context() -> None:
    made = module()
    x = batch()

    def forward(x: Tensor) -> Tensor:
        with rematerialized():
            return cast(Tensor, made(x))

    assert torch.equal(torch.compile(forward, fullgraph=True, backend="aot_eager")(x), made(x))


def test_where_a_run_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA without a word, not where a compiler sees to it; a run writes the same file."""
    on = [
        isinstance(Execution(**how).saving(torch.device(device)), contextlib.nullcontext)
        for how, device in (
            ({}, "cuda"),
            ({"rematerialize": True}, "cpu"),
            ({}, "cpu"),
            ({"rematerialize": False}, "cuda"),
            ({"rematerialize": True, "compile": True}, "cuda"),
        )
    ]
    assert on == [False, False, True, True, True]
    x, labels = images(16)
    made = [
        finetune(
            convolutional(),
            x,
            labels=labels,
            batch_size=8,
            max_steps=2,
            execution=Execution(precision="bfloat16"),
            **how,
        ).model
        for how in ({"rematerialize": False}, {"rematerialize": True}, {"rematerialize": True, "recompute": 2})
    ]
    first = made[0].SerializeToString()
    assert all(other.SerializeToString() == first for other in made[1:])


def test_a_choice_of_elements_is_kept_in_a_byte_each() -> None:
    x = batch(16)
    kept = [allocated(functools.partial(module(method), x)) for method in ("qdrop", "lsq")]
    assert kept[0] - kept[1] == 16 * (2 * 36 + 4 * 36 + 4 * 36 + 4)


def test_weights_and_activations_are_both_made_again() -> None:
    made = module()
    x = batch(16)

    def kept(on: bool) -> int:
        with context(on):
            return allocated(lambda: made(x))

    assert len(list(quantizers(made))) == 8
    sizes = [16 * 2 * 36, 16 * 4 * 36, 16 * 4 * 36, 16 * 4, 4 * 2 * 9, 4 * 4 * 9, 4 * 4 * 9, 3 * 4]
    assert kept(False) - kept(True) == sum(sizes) * x.element_size()
