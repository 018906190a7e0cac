"""The correction behind a folded layer: what torch's ConvBn modules compute, for any gamma."""

import copy
import pickle

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.folded_batchnorm import FoldedBatchNorm
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.errors import UsageError
from onnxqat.types import QParams, QType
from tests.passes.checks import ort_run
from tests.test_insert_batchnorm import DATA
from tests.test_insert_computed_batchnorm import IMAGES, LAYERS, kept

EPSILON, MOMENTUM = 1e-5, 0.1
Held = dict[str, Tensor]


def held(gamma: list[float]) -> Held:
    """A convolution of 4 channels and its BatchNormalization, leaves of autograd."""
    random = torch.Generator().manual_seed(0)
    values = {
        "x": torch.randn(8, 3, 5, 5, generator=random),
        "w": torch.randn(4, 3, 3, 3, generator=random) * 0.3,
        "gamma": torch.tensor(gamma),
        "beta": torch.tensor([0.5, -1.0, 0.25, 2.0]),
    }
    return {name: value.requires_grad_() for name, value in values.items()}


def statistics() -> tuple[Tensor, Tensor]:
    return torch.tensor([0.1, -0.2, 0.3, 0.05]), torch.tensor([0.5, 1.0, 2.0, 0.8])


def quantizer() -> FakeQuantize:
    grid = QParams(np.asarray(0.0625, np.float32), np.asarray(0), QType.of(4, signed=True))
    return FakeQuantize(grid, tensor="w_folded", role="weight")


def folded(
    given: Held, module: FoldedBatchNorm, mean: Tensor, variance: Tensor, rounding: Tensor | None = None
) -> Tensor:
    """Layer and module, as the importer puts them together."""
    factor = given["gamma"] / torch.sqrt(variance.clone() + EPSILON)
    weight = quantizer()(given["w"] * factor.reshape(-1, 1, 1, 1))
    bias = given["beta"] - mean.clone() * factor
    y = functional.conv2d(given["x"], weight, bias if rounding is None else bias + rounding)
    return module(y, mean, variance, given["gamma"], given["beta"], rounding)  # type: ignore[no-any-return]


def reference(given: Held, mean: Tensor, variance: Tensor) -> Tensor:
    """The convolution with the folded and rounded weight, unfolded behind it and normalized."""
    factor = given["gamma"] / torch.sqrt(variance + EPSILON)
    weight = quantizer()(given["w"] * factor.reshape(-1, 1, 1, 1))
    raw = functional.conv2d(given["x"], weight) / factor.reshape(1, -1, 1, 1)
    return functional.batch_norm(raw, mean, variance, given["gamma"], given["beta"], True, MOMENTUM, EPSILON)


def gradients(given: Held, y: Tensor) -> Held:
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    (y * weights).sum().backward()
    return {name: value.grad for name, value in given.items() if value.grad is not None}


def test_live_statistics_give_what_unfolding_gives() -> None:
    given, other = held([2.0, -1.5, 0.7, 0.3]), held([2.0, -1.5, 0.7, 0.3])
    module = FoldedBatchNorm(MOMENTUM, EPSILON).train()
    (mean, variance), (wanted_mean, wanted_variance) = statistics(), statistics()
    result = folded(given, module, mean, variance)
    wanted = reference(other, wanted_mean.clone(), wanted_variance.clone())
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)
    found, expected = gradients(given, result), gradients(other, wanted)
    assert found.keys() == expected.keys() == {"x", "w", "gamma", "beta"}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4, msg=name)
    with torch.no_grad():
        reference(other, wanted_mean, wanted_variance)  # moves them
    torch.testing.assert_close(mean, wanted_mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(variance, wanted_variance, rtol=1e-5, atol=1e-5)


def test_frozen_and_eval_change_nothing() -> None:
    module = FoldedBatchNorm(MOMENTUM, EPSILON).eval()
    mean, variance = statistics()
    y = torch.randn(2, 4, 3, 3)
    vectors = (mean, variance, torch.ones(4), torch.zeros(4))
    assert module(y, *vectors) is y
    module.frozen = True
    assert module.train()(y, *vectors) is y
    torch.testing.assert_close((mean, variance), statistics(), rtol=0, atol=0)


@pytest.mark.parametrize("gamma", [0.0, 1e-20, 1e-9])
def test_a_channel_without_a_spread_keeps_its_statistics_and_can_come_to_life(gamma: float) -> None:
    """Zero, and so small that every weight of the channel is rounded to zero."""
    given = held([2.0, gamma, 0.7, -gamma])
    module = FoldedBatchNorm(MOMENTUM, EPSILON).train()
    mean, variance = statistics()
    result = folded(given, module, mean, variance)
    for channel in (1, 3):
        torch.testing.assert_close(result[:, channel], given["beta"][channel].expand(8, 3, 3), rtol=1e-6, atol=1e-6)
        assert mean[channel] == statistics()[0][channel]
        assert variance[channel] == statistics()[1][channel]
    assert mean[0] != statistics()[0][0]
    found = gradients(given, result)
    assert all(bool(value.isfinite().all()) for value in found.values())
    assert found["gamma"][1] != 0
    assert found["gamma"][3] != 0


def test_what_quantizing_the_bias_adds_is_in_the_output_and_not_in_the_statistics() -> None:
    given, rounding = held([2.0, -1.5, 0.7, 0.3]), torch.tensor([0.25, -0.125, 0.0, 0.5])
    module = FoldedBatchNorm(MOMENTUM, EPSILON).train()
    (mean, variance), (other_mean, other_variance) = statistics(), statistics()
    result = folded(given, module, mean, variance, rounding)
    plain = folded(given, module, other_mean, other_variance)
    torch.testing.assert_close(result, plain + rounding.reshape(1, -1, 1, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close((mean, variance), (other_mean, other_variance), rtol=1e-5, atol=1e-5)


def test_one_value_a_channel_has_no_statistics() -> None:
    module = FoldedBatchNorm(MOMENTUM, EPSILON).train()
    with pytest.raises(UsageError, match="more than one value a channel"):
        module(torch.zeros(1, 4), *statistics(), torch.ones(4), torch.zeros(4))


# ------------------------------------------------------------------ the module of a file
@pytest.mark.parametrize("case", ["vitis-dpu", "tidl", "snpe", "rknn per tensor", "exact"])
def test_the_module_is_the_file_and_writes_the_same_bytes(case: str) -> None:
    model = kept(case)
    module = to_torch(model)
    result = module(torch.from_numpy(DATA["image"])).detach().numpy()
    wanted = ort_run(model, DATA)["logits"]
    # a sum on the edge between two codes may take the other one, but for exact sums
    np.testing.assert_allclose(result, wanted, atol=0.0 if case == "exact" else 0.02 * np.abs(wanted).max())
    assert write_back(module, model).SerializeToString() == model.SerializeToString()


def test_weights_and_their_factors_train_and_statistics_do_not() -> None:
    module = to_torch(kept("tidl", LAYERS, IMAGES)).train()
    parameters = {module.parameter_names[k] for k, _ in module.named_parameters() if k in module.parameter_names}
    wanted = {f"{layer}{part}" for layer in "acfh" for part in "gb"} | {"w", "u", "e", "d"}
    assert parameters == wanted
    y = module(torch.from_numpy(IMAGES["image"]))
    (y * torch.arange(4)).square().sum().backward()
    held = {module.parameter_names.get(k, k): p for k, p in module.named_parameters()}
    for name in sorted(wanted):
        assert bool(held[name].grad.isfinite().all()), name  # type: ignore[union-attr]
        assert bool(held[name].grad.any()), name  # type: ignore[union-attr]


def test_copies_and_pickles() -> None:
    module = to_torch(kept("tidl"))
    x = torch.from_numpy(DATA["image"])
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(other(x), module(x), rtol=0, atol=0)
        other.train()(x).sum().backward()


def test_hooks_see_the_output_that_the_file_names() -> None:
    module = to_torch(kept("tidl"))
    assert module.tensor_nodes["t"] == "t_batchnorm"
    codes = module.code
    assert "t_batchnorm = self.t_batchnorm(t, am, av, ag, ab" in codes


def test_a_file_without_the_notes_computes_the_same() -> None:
    model = kept("tidl")
    bare = copy.deepcopy(model)
    for node in bare.graph.node:
        del node.metadata_props[:]
    x = torch.from_numpy(DATA["image"])
    assert isinstance(bare, onnx.ModelProto)
    torch.testing.assert_close(to_torch(bare)(x), to_torch(model)(x), rtol=0, atol=0)
