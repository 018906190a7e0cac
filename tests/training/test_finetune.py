"""Fine-tuning: it learns, is deterministic, resumes bit for bit, and says where it diverged."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.data.inputs import InputInfo
from onnxqat.errors import ModelError, QatError, UsageError
from onnxqat.graph import io
from onnxqat.training import methods
from onnxqat.training.config import CheckpointConfig
from onnxqat.training.data.batches import ArrayBatches
from onnxqat.training.execution.execution import Execution
from onnxqat.training.finetune import Report, fit, freeze_constants
from onnxqat.training.loop import checkpoint
from onnxqat.training.loop.progress import Progress
from onnxqat.training.objective.losses import Loss
from onnxqat.training.optim import optimizers
from tests.training.grouped import finetune

Array = npt.NDArray[Any]
HIDDEN = 16


def network(*, quantized: bool, softmax: bool = False, stored: bool = False) -> onnx.ModelProto:
    """Two layers for 8 features and 3 classes; 3-bit weights and 4-bit activations when quantized."""
    random = np.random.default_rng(0)
    values: dict[str, Array] = {
        "w1": random.standard_normal((HIDDEN, 8)).astype(np.float32) / 3,
        "b1": np.zeros(HIDDEN, np.float32),
        "w2": random.standard_normal((3, HIDDEN)).astype(np.float32) / 4,
        "b2": np.zeros(3, np.float32),
        "half": np.asarray(0.5, np.float32),
    }
    nodes: list[onnx.NodeProto] = []

    def quantize(name: str, scale: Array, bits: int) -> str:
        if not quantized:
            return name
        limit, axis = 2 ** (bits - 1) - 1, {"axis": 0} if scale.ndim else {}
        values[f"{name}_scale"] = scale.astype(np.float32)
        values[f"{name}_zero"] = np.zeros(scale.shape, np.int8)
        values[f"{name}_low"], values[f"{name}_high"] = np.int8(-limit), np.int8(limit)  # type: ignore[assignment]
        ends, codes = [f"{name}_scale", f"{name}_zero"], f"{name}_c"
        if stored and scale.ndim:
            weight = values.pop(name)
            values[codes] = np.clip(np.rint(weight / scale[:, None]), -limit, limit).astype(np.int8)
        else:
            nodes.append(helper.make_node("QuantizeLinear", [name, *ends], [f"{name}_q"], **axis))  # type: ignore[arg-type]
            nodes.append(helper.make_node("Clip", [f"{name}_q", f"{name}_low", f"{name}_high"], [codes]))
        nodes.append(helper.make_node("DequantizeLinear", [codes, *ends], [f"{name}_dq"], **axis))  # type: ignore[arg-type]
        return f"{name}_dq"

    x = quantize("x", np.asarray(0.4), 4)
    w1 = quantize("w1", np.abs(values["w1"]).max(1) / 3, 3)
    nodes.append(helper.make_node("Gemm", [x, w1, "b1"], ["h1"], transB=1))
    nodes.append(helper.make_node("Relu", ["h1"], ["h2"]))
    nodes.append(helper.make_node("Mul", ["h2", "half"], ["h3"]))
    h = quantize("h3", np.asarray(0.2), 4)
    w2 = quantize("w2", np.abs(values["w2"]).max(1) / 3, 3)
    nodes.append(helper.make_node("Gemm", [h, w2, "b2"], ["logits"], transB=1))
    if softmax:
        nodes.append(helper.make_node("Softmax", ["logits"], ["p"], axis=1))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 8))],
        [helper.make_tensor_value_info("p" if softmax else "logits", TensorProto.FLOAT, ("N", 3))],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return model


def data(samples: int = 256) -> tuple[Array, Array]:
    random = np.random.default_rng(1)
    x = random.standard_normal((samples, 8)).astype(np.float32)
    return x, np.argmax(x[:, :3] + 0.5 * x[:, 3:6] ** 2, 1)


def run(model: onnx.ModelProto, x: Array) -> Array:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def accuracy(model: onnx.ModelProto) -> float:
    x, y = data()
    return float((run(model, x).argmax(1) == y).mean())


def test_labels_in_another_order_are_told() -> None:
    x, _ = data()
    model = network(quantized=True)
    answers = run(model, x).argmax(1)
    for labels, told in ((answers, False), ((answers + 1) % 3, True)):
        found = finetune(model, {"x": x}, labels=labels, max_steps=1, device="cpu").remarks
        assert any("the labels do not fit the model" in remark.message for remark in found) == told


@pytest.mark.parametrize("method", ["lsq", "fixed"])
@pytest.mark.parametrize("softmax", [False, True])
def test_it_learns_from_labels(method: str, softmax: bool) -> None:
    x, y = data()
    model = network(quantized=True, softmax=softmax)
    result = finetune(
        model, {"x": x}, labels=y, epochs=8, method=method, optimizer="sgd", learning_rate=0.1, device="cpu"
    )
    assert result.steps == 56  # 205 samples are trained on
    assert len(result.losses) == 8
    assert result.losses[-1] < 0.75 * result.losses[0]
    assert result.limited_scales == 0
    assert accuracy(result.model) > accuracy(model) + 0.15
    # What was trained is what the file computes.
    with torch.no_grad():
        expected = result.module(torch.from_numpy(x))
    np.testing.assert_allclose(run(result.model, x), expected.numpy(), rtol=1e-4, atol=1e-5)
    before, after = to_torch(model), to_torch(result.model)
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    scales = set(optimizers.scales(after))
    for (key, _), changed in zip(after.named_parameters(), moved, strict=True):
        assert changed is (key != "half_" and (key not in scales or method == "lsq")), key


@pytest.mark.parametrize("method", sorted({*methods.names()} - {"lsq", "fixed"}))
def test_every_method_ships_what_it_trained(method: str) -> None:
    x, y = data()
    model = network(quantized=True)
    result = finetune(
        model, {"x": x}, labels=y, epochs=4, method=method, optimizer="adamw", learning_rate=0.01, device="cpu"
    )
    if method != "adaround":  # it rounds weights that are random here, and pulls them to whole steps by its loss
        assert result.losses[-1] < result.losses[0]
        assert accuracy(result.model) > accuracy(model) + 0.1
    with torch.no_grad():
        expected = result.module(torch.from_numpy(x))
    np.testing.assert_allclose(run(result.model, x), expected.numpy(), rtol=1e-4, atol=1e-5)


def distance(model: onnx.ModelProto, teacher: onnx.ModelProto) -> float:
    x, _ = data(512)
    return float(np.square(run(model, x) - run(teacher, x)).mean())


@pytest.mark.parametrize("teacher", ["model", "itself"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_hundred_images_without_labels_are_enough(teacher: str, optimizer: str) -> None:
    x, _ = data(100)
    model, float_model = network(quantized=True), network(quantized=False)
    result = finetune(
        model,
        x,
        teacher=float_model if teacher == "model" else None,
        epochs=15,
        batch_size=10,
        optimizer=optimizer,
        learning_rate=0.01 if optimizer == "sgd" else 0.005,
        device="cpu",
    )
    assert distance(result.model, float_model) < 0.7 * distance(model, float_model)


def test_integer_weights_need_a_teacher_and_learn_from_one() -> None:
    x, _ = data(100)
    model = network(quantized=True, stored=True)
    with pytest.raises(UsageError, match="teacher"):
        finetune(model, x, device="cpu")
    loss = Loss(distance="mse")
    result = finetune(
        model,
        x,
        teacher=network(quantized=False),
        loss=loss,
        epochs=20,
        optimizer="sgd",
        learning_rate=0.05,
        device="cpu",
    )
    teacher = network(quantized=False)
    assert distance(result.model, teacher) < 0.8 * distance(model, teacher)
    assert {t.name: t.data_type for t in result.model.graph.initializer}["w1_c"] == TensorProto.INT8


def test_the_same_seed_gives_the_same_bytes() -> None:
    x, y = data(64)
    state = torch.get_rng_state()

    def tuned(seed: int) -> bytes:
        result = finetune(
            network(quantized=True),
            x,
            labels=y,
            seed=seed,
            device="cpu",
            augment=noise,
            optimizer="sgd",
            learning_rate=0.05,
        )
        content: bytes = result.model.SerializeToString()
        return content

    assert tuned(0) == tuned(0) != tuned(1)
    assert torch.equal(torch.get_rng_state(), state)


def noise(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value + 0.1 * torch.randn_like(value) for name, value in inputs.items()}


class _InterruptedError(Exception):
    pass


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, optimizer: str, ema: float | None
) -> None:
    x, y = data(96)
    options: dict[str, Any] = {
        "labels": y,
        "epochs": 4,
        "optimizer": optimizer,
        "ema": ema,
        "augment": noise,
        "device": "cpu",
    }

    def interrupt(report: Report) -> None:
        if report.step == 8:
            raise _InterruptedError

    model = network(quantized=True)
    whole = finetune(model, x, **options)
    with pytest.raises(_InterruptedError):
        finetune(model, x, checkpoints=tmp_path, progress=interrupt, **options)
    assert checkpoint.load(tmp_path / "last.safetensors", to_torch(model)).epoch == 2
    resumed = finetune(model, x, checkpoints=CheckpointConfig(tmp_path, resume=True), **options)
    assert resumed.model.SerializeToString() == whole.model.SerializeToString()
    assert resumed.losses == whole.losses
    assert resumed.best_epoch == whole.best_epoch
    # A finished run that is resumed does nothing.
    again = finetune(model, x, checkpoints=CheckpointConfig(tmp_path, resume=True), **options)
    assert again.model.SerializeToString() == whole.model.SerializeToString()


def test_resuming_with_other_settings_is_refused(tmp_path: Path) -> None:
    x, y = data(64)
    finetune(network(quantized=True), x, labels=y, checkpoints=tmp_path, device="cpu")
    with pytest.raises(QatError, match="total_steps") as error:
        finetune(
            network(quantized=True),
            x,
            labels=y,
            checkpoints=CheckpointConfig(tmp_path, resume=True),
            epochs=3,
            device="cpu",
        )
    assert error.value.code == "checkpoint-mismatch"


def test_a_run_may_end_within_an_epoch() -> None:
    x, y = data(96)
    reports: list[Report] = []
    result = finetune(
        network(quantized=True), x, labels=y, max_steps=5, epochs=9, progress=reports.append, device="cpu"
    )
    assert result.steps == 5
    assert len(result.losses) == 1
    assert [r.step for r in reports] == [1, 2, 3, 4, 5]
    assert reports[-1].total_steps == 5
    assert finetune(network(quantized=True), x, labels=y, max_steps=7, device="cpu").steps == 7


def test_divergence_names_step_and_tensor(tmp_path: Path) -> None:
    x, y = data(64)

    def spoil(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        calls.append(1)
        return {"x": inputs["x"] * (float("nan") if len(calls) == 3 else 1.0)}

    calls: list[int] = []
    path = tmp_path / "m.onnx"
    onnx.save(network(quantized=True), path)
    with pytest.raises(QatError, match="step 2; input 'x'") as error:
        finetune(path, x, labels=y, epochs=4, augment=spoil, output=tmp_path / "out.onnx", device="cpu")
    assert error.value.code == "training-diverged"
    assert not (tmp_path / "out.onnx").exists()

    module = to_torch(network(quantized=True))
    batches = ArrayBatches({"x": x}, y, [InputInfo("x", "float32", (None, 8))], batch_size=8, seed=0)
    with torch.no_grad():
        next(q for _, q in quantizers(module) if q.tensor == "h3").scale.fill_(float("nan"))
    with pytest.raises(QatError, match="scale of tensor 'h3'"):
        fit(module, batches, torch.optim.SGD(module.parameters(), lr=0.1), total_steps=3)


def test_a_generator_with_labels_and_a_path(tmp_path: Path) -> None:
    x, y = data(64)

    def generate() -> Iterator[Any]:
        for start in range(0, 64, 16):
            yield {"x": x[start : start + 16]}, y[start : start + 16]

    path = tmp_path / "m.onnx"
    onnx.save(network(quantized=True), path)
    before = path.read_bytes()
    result = finetune(path, generate(), max_steps=4, output=tmp_path / "out.onnx", device="cpu")
    assert result.model == tmp_path / "out.onnx"
    assert path.read_bytes() == before
    metadata = {e.key: e.value for e in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert metadata["onnxqat.method"] == "lsq"
    with pytest.raises(UsageError, match="max_steps"):
        finetune(path, generate, output=tmp_path / "out.onnx", device="cpu")


def test_bfloat16_keeps_parameters_in_float32() -> None:
    x, y = data(64)
    result = finetune(network(quantized=True), x, labels=y, execution=Execution(precision="bfloat16"), device="cpu")
    assert all(p.dtype == torch.float32 for p in result.module.parameters())


def test_what_is_refused(tmp_path: Path) -> None:
    x, y = data(16)
    with pytest.raises(ModelError) as error:
        finetune(network(quantized=False), x, labels=y)
    assert error.value.code == "model-not-quantized"
    onnx.save(network(quantized=True), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="output"):
        finetune(tmp_path / "m.onnx", x, labels=y)
    with pytest.raises(UsageError, match="epochs"):
        finetune(network(quantized=True), x, labels=y, epochs=0)
    with pytest.raises(UsageError, match="resume without a folder"):
        finetune(network(quantized=True), x, labels=y, resume=True)
    with pytest.raises(UsageError, match="save_every without a folder"):
        finetune(network(quantized=True), x, labels=y, checkpoints=CheckpointConfig(save_every=5))
    with pytest.raises(ModelError, match="cannot be written"):
        finetune(network(quantized=True), x, labels=y, output=tmp_path / "none" / "t.onnx")


def test_constants_that_are_settings_are_frozen() -> None:
    model = network(quantized=True)
    module = to_torch(model)
    assert freeze_constants(module, io.load(model)) == ["half"]


def test_any_trainer_will_do() -> None:
    """The module is an ordinary torch module."""
    x, y = data(64)
    module = to_torch(network(quantized=True))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_checkpoints_are_strict(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    module: Any = to_torch(network(quantized=True))
    checkpoint.save(path, module, progress=Progress(step=3, losses=[0.1]), settings={"a": 1})
    with torch.no_grad():
        expected = module.w1.clone()
        module.w1.zero_()
    assert dataclasses.asdict(checkpoint.load(path, module, settings={"a": 1}))["losses"] == [0.1]
    assert torch.equal(module.w1, expected)

    def refused(match: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(QatError, match=match) as error:
            checkpoint.load(*arguments, **options)
        assert error.value.code == "checkpoint-mismatch"

    refused("no such file", tmp_path / "none", module)
    refused("a 1", path, module, settings={"a": 2})
    refused("module has no", path, to_torch(network(quantized=False)))
    refused("optimizer", path, module, optimizer=torch.optim.SGD(module.parameters()))
    module.register_buffer("more", torch.zeros(1))
    refused("'more'", path, module)
    wide: Any = to_torch(network(quantized=True))
    wide.w1 = torch.nn.Parameter(torch.zeros(2, 2))
    refused("'w1'", path, wide)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    refused("damaged", path, module)
    path.write_bytes(b"")
    refused("damaged", path, module)
