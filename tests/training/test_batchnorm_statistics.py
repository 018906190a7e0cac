"""BatchNormalization in training: live, frozen, estimated again, and written back so that it folds."""

import copy

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import DataError, UsageError
from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes.fold_quantized_batchnorm import FoldQuantizedBatchnorm
from onnxqat.training.callbacks import batchnorm_statistics
from onnxqat.training.callbacks.batchnorm_statistics import Reestimate
from onnxqat.training.config import ScoreConfig
from onnxqat.training.data.batches import Batch
from onnxqat.validation.validate import validate
from tests.backends.planning import proto
from tests.passes.checks import ort_run
from tests.test_insert_batchnorm import DATA, TEXT
from tests.training.grouped import finetune

IMAGES = torch.from_numpy(DATA["image"])
STATISTICS = ["am", "av", "cm", "cv", "fm", "fv"]


@pytest.fixture(scope="module")
def kept() -> onnx.ModelProto:
    model = insert_qdq(proto(TEXT), "academic", data=DATA, batch_norm="keep").model
    assert isinstance(model, onnx.ModelProto)
    return model


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}


def of(module: torch.nn.Module, name: str) -> torch.Tensor:
    """The tensor that stands for a constant of the file."""
    key = next(key for key, onnx_name in module.parameter_names.items() if onnx_name == name)  # type: ignore[union-attr]
    return module.state_dict(keep_vars=True)[key]


def statistics(module: torch.nn.Module) -> list[torch.Tensor]:
    return [of(module, name).detach().clone() for name in STATISTICS]


def batches(size: int = 4) -> list[Batch]:
    return [Batch({"image": part}, None) for part in IMAGES.split(size)]


# ------------------------------------------------------------------ live and frozen
def test_live_moves_the_statistics_by_the_momentum_of_the_node(kept: onnx.ModelProto) -> None:
    module = to_torch(kept).train()
    assert batchnorm_statistics.set_mode(module, "live") == 3
    seen: list[torch.Tensor] = []
    first = next(batchnorm_statistics.modules(module))
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    before = of(module, "am").clone()
    module(IMAGES)
    mean = seen[0].mean((0, 2, 3))
    torch.testing.assert_close(of(module, "am"), 0.9 * before + 0.1 * mean)


@pytest.mark.parametrize("training", [True, False])
def test_frozen_statistics_stay_and_are_used(kept: onnx.ModelProto, training: bool) -> None:
    module = to_torch(kept)
    expected, before = module.eval()(IMAGES), statistics(module)
    batchnorm_statistics.set_mode(module, "frozen")
    module.train(training)
    result = module(IMAGES)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    torch.testing.assert_close(statistics(module), before, rtol=0, atol=0)
    result.square().sum().backward()
    assert bool(of(module, "ab").grad.any())  # type: ignore[union-attr]


def test_there_is_no_other_mode(kept: onnx.ModelProto) -> None:
    with pytest.raises(UsageError, match="batch_norm is 'thawed'"):
        batchnorm_statistics.set_mode(to_torch(kept), "thawed")  # type: ignore[arg-type]


def test_one_value_a_channel_has_no_statistics(kept: onnx.ModelProto) -> None:
    module = to_torch(kept).train()
    with pytest.raises(UsageError, match="more than one value a channel"):
        module(IMAGES[:1])
    batchnorm_statistics.set_mode(module, "frozen")
    module(IMAGES[:1])


# ------------------------------------------------------------------ gamma
def test_gamma_counts_by_its_size(kept: onnx.ModelProto) -> None:
    module, other = to_torch(kept).eval(), to_torch(kept).eval()
    with torch.no_grad():
        of(module, "cg").copy_(torch.tensor([1.0, -2.0, 0.0, 3.0]))
        of(other, "cg").copy_(torch.tensor([1.0, 2.0, 0.0, 3.0]))
    torch.testing.assert_close(module(IMAGES), other(IMAGES), rtol=0, atol=0)
    tuned = write_back(module, kept)
    np.testing.assert_array_equal(constants(tuned)["cg"], [1, 2, 0, 3])
    assert FoldQuantizedBatchnorm().run(tuned).changed
    # a channel of gamma 0 can come to life
    module(IMAGES).sum().backward()
    assert of(module, "cg").grad[2] != 0  # type: ignore[index]


def test_a_negative_gamma_of_another_tool_stays(kept: onnx.ModelProto) -> None:
    foreign = copy.deepcopy(kept)
    entry = next(i for i in foreign.graph.initializer if i.name == "cg")
    entry.CopyFrom(numpy_helper.from_array(np.float32([1, -2, 0.5, 3]), "cg"))
    module = to_torch(foreign).eval()
    np.testing.assert_allclose(module(IMAGES).detach().numpy(), ort_run(foreign, DATA)["logits"], atol=1e-4)
    with torch.no_grad():
        of(module, "cg").mul_(2)
    np.testing.assert_array_equal(constants(write_back(module, foreign))["cg"], [2, -4, 1, 6])


# ------------------------------------------------------------------ estimated again
def test_estimated_statistics_are_those_of_all_batches_together(kept: onnx.ModelProto) -> None:
    module = to_torch(kept).eval()
    batchnorm_statistics.set_mode(module, "frozen")
    seen: list[torch.Tensor] = []
    first = next(batchnorm_statistics.modules(module))
    handle = first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    assert batchnorm_statistics.reestimate(module, batches()) == 4
    handle.remove()
    values = torch.cat(seen).double()
    torch.testing.assert_close(of(module, "am").double(), values.mean((0, 2, 3)), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(of(module, "av").double(), values.var((0, 2, 3), correction=0), rtol=1e-5, atol=1e-6)
    assert all(one.frozen and not one.training for one in batchnorm_statistics.modules(module))
    assert not first._forward_pre_hooks


def test_estimating_reads_no_more_than_it_is_told(kept: onnx.ModelProto) -> None:
    left, right = to_torch(kept), to_torch(kept)
    assert batchnorm_statistics.reestimate(left, batches(), limit=2) == 2
    assert batchnorm_statistics.reestimate(right, batches()[:2]) == 2
    torch.testing.assert_close(statistics(left), statistics(right), rtol=0, atol=0)
    with pytest.raises(DataError, match="no batch"):
        batchnorm_statistics.reestimate(left, [])


def test_nothing_is_read_for_a_model_without_one(kept: onnx.ModelProto) -> None:
    folded = FoldQuantizedBatchnorm().run(kept).model
    assert batchnorm_statistics.reestimate(to_torch(folded), batches()) == 0


# ------------------------------------------------------------------ there and back
def test_nothing_trained_is_the_same_file(kept: onnx.ModelProto) -> None:
    assert write_back(to_torch(kept), kept).SerializeToString() == kept.SerializeToString()


def test_everything_is_written_back_and_the_file_computes_what_the_module_does(kept: onnx.ModelProto) -> None:
    module = to_torch(kept).train()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.01)
    for batch in batches(8):
        optimizer.zero_grad()
        module(batch.inputs["image"]).square().mean().backward()
        optimizer.step()
    tuned = write_back(module.eval(), kept)
    old, new = constants(kept), constants(tuned)
    for name in ("ag", "ab", "cg", "fb", *STATISTICS):  # a shift as cb goes into the mean of the next normalization
        assert not np.array_equal(old[name], new[name]), name
    np.testing.assert_allclose(module(IMAGES).detach().numpy(), ort_run(tuned, DATA)["logits"], atol=1e-4)


def test_both_are_valid(kept: onnx.ModelProto) -> None:
    folded = FoldQuantizedBatchnorm("float").run(kept).model
    results = [validate(proto(TEXT), model, DATA) for model in (kept, folded)]
    assert all(r.passed for r in results), [r.failures for r in results]


@pytest.mark.parametrize("mode", ["live", "frozen"])
def test_finetune_and_fold(kept: onnx.ModelProto, mode: str) -> None:
    labels = np.arange(16) % 4
    result = finetune(kept, DATA, labels=labels, epochs=2, batch_size=8, batch_norm=mode, device="cpu")
    moved = [not np.array_equal(constants(result.model)[n], constants(kept)[n]) for n in STATISTICS]
    assert moved == [mode == "live" and result.written != "start"] * 6
    folded = FoldQuantizedBatchnorm("float").run(result.model).model
    left, right = (ort_run(m, DATA)["logits"] for m in (result.model, folded))
    np.testing.assert_allclose(left, right, atol=0.02 * np.abs(left).max())


def test_finetune_estimates_what_it_writes(kept: onnx.ModelProto) -> None:
    options = {"max_steps": 3, "batch_size": 8, "ema": 0.5, "seed": 3, "device": "cpu", "learning_rate": 0.01}
    labels = np.arange(16) % 4
    result = finetune(
        kept, DATA, labels=labels, score=ScoreConfig(evaluate=lambda _: 0.0), callbacks=[Reestimate(2)], **options
    )  # type: ignore[arg-type]
    assert result.written == "start"  # nothing scores higher, and the statistics of the file stay
    np.testing.assert_array_equal(constants(result.model)["am"], constants(kept)["am"])
    scores = iter(range(9))
    result = finetune(
        kept,
        DATA,
        labels=labels,
        score=ScoreConfig(evaluate=lambda _: float(next(scores))),
        callbacks=[Reestimate(2)],
        **options,
    )  # type: ignore[arg-type]
    written = [torch.tensor(constants(result.model)[n]) for n in STATISTICS]
    again = to_torch(result.model)
    batchnorm_statistics.reestimate(again, batches(16))
    # the mean of the first does not depend on how the samples are put into batches
    torch.testing.assert_close(written[0], statistics(again)[0], rtol=1e-4, atol=1e-5)


def test_a_number_of_batches_is_positive(kept: onnx.ModelProto) -> None:
    with pytest.raises(UsageError, match="statistics of 0 batches"):
        finetune(kept, DATA, labels=np.arange(16) % 4, max_steps=1, callbacks=[Reestimate(0)], device="cpu")
