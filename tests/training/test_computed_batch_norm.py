"""BatchNormalization that the graph folds in front of the quantizers: trained, estimated again, written back, folded."""

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.deployment.fold_batchnorm import fold_batchnorm
from onnxqat.errors import UsageError
from onnxqat.training.callbacks import batchnorm_statistics
from onnxqat.training.config import ScoreConfig
from onnxqat.training.data.batches import Batch
from onnxqat.training.execution import gradient_quantization
from onnxqat.training.execution.execution import Execution
from onnxqat.validation.validate import validate
from tests.backends.planning import proto
from tests.passes.checks import ort_run
from tests.test_insert_batchnorm import DATA, TEXT
from tests.test_insert_computed_batchnorm import kept
from tests.training.grouped import finetune

IMAGES = torch.from_numpy(DATA["image"])
LABELS = np.arange(16) % 4
STATISTICS = ["am", "av", "cm", "cv", "fm", "fv"]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return kept("tidl")


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}


def of(module: torch.nn.Module, name: str) -> torch.Tensor:
    key = next(key for key, onnx_name in module.parameter_names.items() if onnx_name == name)  # type: ignore[union-attr]
    return module.state_dict(keep_vars=True)[key]


def rising() -> Callable[[object], float]:
    """A score with which the last weights are the best."""
    scores = itertools.count()
    return lambda _: float(next(scores))


@pytest.mark.parametrize("case", ["vitis-dpu", "tidl", "cpu per tensor"])
@pytest.mark.parametrize("mode", ["live", "frozen"])
def test_what_was_trained_is_in_the_file_and_folds_to_the_same_bits(case: str, mode: str) -> None:
    source = kept(case)
    result = finetune(
        source,
        DATA,
        labels=LABELS,
        max_steps=3,
        batch_size=8,
        batch_norm=mode,
        learning_rate=1e-3,
        score=ScoreConfig(evaluate=rising()),
        device="cpu",
    )
    old, new = constants(source), constants(result.model)
    assert result.written != "start"
    for name in ("w", "u", "e", "ab", "fg"):
        assert not np.array_equal(old[name], new[name]), name
    moved = [not np.array_equal(old[name], new[name]) for name in STATISTICS]
    assert moved == [mode == "live"] * 6
    folded = fold_batchnorm(result.model)
    assert folded.left == 0
    np.testing.assert_array_equal(ort_run(result.model, DATA)["logits"], ort_run(folded.model, DATA)["logits"])


def test_both_are_valid(model: onnx.ModelProto) -> None:
    results = [validate(proto(TEXT), each, DATA) for each in (model, fold_batchnorm(model).model)]
    assert all(r.passed for r in results), [r.failures for r in results]


def test_estimated_again_channels_have_mean_beta_and_deviation_gamma(model: onnx.ModelProto) -> None:
    module = to_torch(model).eval()
    batchnorm_statistics.set_mode(module, "frozen")
    with torch.no_grad():
        of(module, "w").mul_(0.8)
        of(module, "am").add_(0.2)
    batches = [Batch({"image": part}, None) for part in IMAGES.split(4)]
    assert batchnorm_statistics.reestimate(module, batches) == 4
    seen: list[torch.Tensor] = []
    first = next(batchnorm_statistics.modules(module))
    assert first.frozen
    assert first.momentum == pytest.approx(0.1)
    handle = first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    module(IMAGES)
    handle.remove()
    gamma, beta, variance = (of(module, name).detach() for name in ("ag", "ab", "av"))
    # the mean is that of the codes that are written, but for the rounding of the bias
    torch.testing.assert_close(seen[0].mean((0, 2, 3)), beta, rtol=0, atol=2e-3)
    deviation = gamma.abs() * torch.sqrt(variance / (variance + 1e-5))
    # folded with other statistics, some weights take another code
    torch.testing.assert_close(seen[0].std((0, 2, 3), correction=0), deviation, rtol=0.02, atol=1e-6)


def test_batches_that_can_be_read_once_are_enough(model: onnx.ModelProto) -> None:
    modules = [to_torch(model), to_torch(model)]
    batches = [Batch({"image": part}, None) for part in IMAGES.split(8)]
    assert [batchnorm_statistics.reestimate(m, b) for m, b in zip(modules, (iter(batches), batches), strict=True)] == [
        2,
        2,
    ]
    for name in STATISTICS:
        torch.testing.assert_close(of(modules[0], name), of(modules[1], name), rtol=0, atol=0)


@pytest.mark.parametrize(("method", "why"), [("dorefa", "divided by gamma"), ("adaround", "moves with gamma")])
def test_methods_that_write_weights_are_refused(model: onnx.ModelProto, method: str, why: str) -> None:
    with pytest.raises(UsageError, match=f"which the graph computes from a BatchNormalization.*{why}") as caught:
        finetune(model, DATA, labels=LABELS, method=method, max_steps=1, device="cpu")
    assert "fold-batchnorm" in caught.value.hint


def test_recomputed_activations_move_statistics_once(model: onnx.ModelProto) -> None:
    options = {"max_steps": 2, "batch_size": 8, "seed": 3, "device": "cpu", "learning_rate": 1e-3}
    results = [
        finetune(
            model,
            DATA,
            labels=LABELS,
            score=ScoreConfig(evaluate=rising()),
            execution=Execution(recompute=recompute),
            **options,
        )  # type: ignore[arg-type]
        for recompute in (False, True)
    ]
    left, right = (constants(result.model) for result in results)
    for name in STATISTICS:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_gradients_of_every_layer_are_quantized(model: onnx.ModelProto) -> None:
    module = to_torch(model)
    assert gradient_quantization.quantize(module, 8) == ["t", "z", "logits_QuantizeLinear_Input"]
    module.train()(IMAGES).sum().backward()
