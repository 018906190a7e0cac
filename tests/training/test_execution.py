"""How a step is computed does not change what it computes: accumulation, compilation, order in memory, autocast."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.errors import UsageError
from onnxqat.training.config import ScoreConfig
from onnxqat.training.execution.execution import Execution
from tests.training.grouped import finetune
from tests.training.nets import convolutional, images, later_is_better


def tuned(**options: Any) -> Any:
    x, y = images(48)
    given = {"labels": y, "epochs": 2, "batch_size": 16, "optimizer": "sgd", "learning_rate": 0.05, "device": "cpu"}
    return finetune(convolutional(), x, **{"evaluate": later_is_better(), **given, **options})


def weights(model: onnx.ModelProto) -> dict[str, Any]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def assert_close(one: onnx.ModelProto, other: onnx.ModelProto, tolerance: float = 1e-6) -> None:
    first, second, start = weights(one), weights(other), weights(convolutional())
    for name, value in first.items():
        np.testing.assert_allclose(value, second[name], rtol=1e-4, atol=tolerance, err_msg=name)
    assert not np.array_equal(first["w0"], start["w0"])


def test_accumulated_batches_are_one_large_batch() -> None:
    """Batches of an epoch in order, so that four of 4 hold the samples of one of 16; the last step has fewer."""
    x, y = images(44)

    def data(size: int) -> Any:
        return lambda: ((x[start : start + size], y[start : start + size]) for start in range(0, 44, size))

    options = {"labels": None, "max_steps": 6, "epochs": None, "evaluate": lambda _: 0.0, "gradient_norm": 0.5}
    given = {"optimizer": "sgd", "learning_rate": 0.05, "device": "cpu"} | options
    whole = finetune(convolutional(), data(16), **given)
    parts = finetune(convolutional(), data(4), execution=Execution(accumulate=4), **given)
    assert (whole.steps, parts.steps) == (6, 6)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-4)
    # What is written is the start, as no score beats it; the modules' last states are in the losses.
    assert tuned(batch_size=4, accumulate=4).steps == tuned(batch_size=16).steps == 6


def test_accumulation_gives_the_gradients_of_the_large_batch() -> None:
    x, y = images(10)
    model = convolutional()
    options: dict[str, Any] = {"labels": y, "max_steps": 1, "optimizer": "sgd", "learning_rate": 0.1, "device": "cpu"}
    whole = finetune(model, x, batch_size=10, score=ScoreConfig(evaluate=later_is_better()), **options)
    # 4, 4 and 2: the mean over samples, not over batches
    parts = finetune(
        model,
        x,
        batch_size=4,
        score=ScoreConfig(evaluate=later_is_better()),
        execution=Execution(accumulate=3),
        **options,
    )
    assert_close(whole.model, parts.model)


# Dynamo instantiates the class itself when it traces an autograd function.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning")
def test_a_compiled_run_ends_where_an_eager_one_does() -> None:
    assert_close(tuned(max_steps=3).model, tuned(max_steps=3, compile="aot_eager").model)


def test_a_backend_that_torch_does_not_have() -> None:
    with pytest.raises(UsageError, match="no backend 'nonsense'"):
        tuned(compile="nonsense")


def test_channels_last_gives_the_same_file_layout() -> None:
    seen: list[bool] = []

    def look(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.append(inputs["image"].is_contiguous(memory_format=torch.channels_last))
        return inputs

    result = tuned(channels_last=True, augment=look)
    assert all(seen)
    assert_close(tuned().model, result.model, 1e-3)  # sums in another order, so that a code may be the next one
    assert all(p.is_contiguous() for p in result.module.parameters())


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_quantizers_compute_the_same_codes_under_autocast(precision: str) -> None:
    """Given the same input, in float32 or in half precision, with the gradients of the scale in float32."""
    dtype = getattr(torch, precision)
    module = to_torch(convolutional())
    for _, quantizer in quantizers(module):
        shape = (4, 2, 3, 3) if quantizer.axis is not None else (2, 5)
        shape = (quantizer.scale.numel(), *shape[1:]) if quantizer.axis is not None else shape
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        plain = quantizer(x)
        half = quantizer(x.to(dtype).float()).detach()
        with torch.autocast("cpu", dtype):
            cast = quantizer(x)
            low = quantizer(x.to(dtype))
            cast.sum().backward()
        assert torch.equal(cast, plain)
        assert torch.equal(low.float(), half.to(dtype).float())
        assert quantizer.scale.grad is not None
        assert quantizer.scale.grad.dtype == torch.float32


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_learns(precision: str) -> None:
    full, half = tuned(epochs=3), tuned(epochs=3, precision=precision)
    assert half.losses[-1] < half.losses[0]
    assert half.losses[-1] == pytest.approx(full.losses[-1], rel=0.1)
    assert all(p.dtype == torch.float32 for p in half.module.parameters())


def test_a_step_that_overflows_in_float16_is_left_out_and_the_run_goes_on() -> None:
    """The scale of the loss starts at 65536: gradients of a loss this large overflow until it has fallen."""

    def large(outputs: Any, labels: Tensor, teacher: Any) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs[0].float(), labels) * 1e4

    result = tuned(precision="float16", loss=large, epochs=6, gradient_norm=1.0)
    assert result.skipped == 0
    assert result.losses[-1] < result.losses[0]
