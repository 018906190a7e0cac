"""A step that is not finite: found, kept, seen again, left out; also where a device is looked at every few steps."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.errors import QatError
from onnxqat.training.config import CheckpointConfig
from onnxqat.training.finetune import Report
from onnxqat.training.loop import checkpoint, pending
from onnxqat.training.loop.black_box import replay
from onnxqat.training.objective.losses import Loss
from tests.training.grouped import finetune
from tests.training.nets import convolutional, images, later_is_better


def options(**more: Any) -> dict[str, Any]:
    _, y = images(64)
    given = {"labels": y, "epochs": 2, "batch_size": 8, "optimizer": "sgd", "learning_rate": 0.05, "device": "cpu"}
    return {"evaluate": later_is_better(), **given, **more}


class Spoil:
    """Puts `value` into one input of the batches with these numbers, counted from 1."""

    def __init__(self, *which: int, value: float = float("nan")) -> None:
        self.which, self.value, self.seen = which, value, 0

    def __call__(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        self.seen += 1
        image = inputs["image"] + 0.01 * torch.randn_like(inputs["image"])
        if self.seen in self.which:
            image[1, 0, 2, 2] = self.value
        return {"image": image}


def test_the_box_shows_the_step_again(tmp_path: Path) -> None:
    x, _ = images(64)
    model = convolutional()
    with pytest.raises(QatError, match=r"loss is nan at step 5; input 'image'.*onnxqat replay") as error:
        finetune(model, x, augment=Spoil(6), checkpoints=CheckpointConfig(black_box=tmp_path / "box"), **options())
    assert error.value.code == "training-diverged"
    names = {path.name for path in (tmp_path / "box").iterdir()}
    assert names == {"before.safetensors", "batch-0.safetensors", "scales.safetensors", "box.json"}
    again = replay(tmp_path / "box", model)
    assert (again.step, again.epoch, again.same) == (5, 0, True)
    assert (again.finding.kind, again.finding.name) == ("input", "image")
    assert str(again.recorded) == "(nan, nan)" == str(again.repeated)
    assert {len(scale) for scale in again.scales.values()} == {6}
    assert torch.equal(again.scales["image"][-1], state_before(tmp_path)["image_quantizer.scale"])
    # The state before the step is one to go on from.
    module = to_torch(model)
    assert checkpoint.load(tmp_path / "box" / "before.safetensors", module).step == 5


def state_before(folder: Path) -> dict[str, Tensor]:
    return checkpoint.weights(folder / "box" / "before.safetensors", to_torch(convolutional()))


def test_a_tensor_that_overflows_is_named(tmp_path: Path) -> None:
    """Weights and bias of the classifier are finite; their sum is not."""
    x, _ = images(64)
    model = convolutional()
    for tensor in model.graph.initializer:
        if tensor.name in ("head", "head_scale", "bias"):
            values = numpy_helper.to_array(tensor) * 1e38 if tensor.name != "bias" else np.full(3, 3.4e38)
            tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), tensor.name))
    with pytest.raises(QatError, match="tensor 'logits' is the first"):
        finetune(model, x, checkpoints=CheckpointConfig(black_box=tmp_path / "box"), **options())
    again = replay(tmp_path / "box", model)
    assert (again.finding.kind, again.finding.name, again.same) == ("tensor", "logits", True)


@pytest.mark.parametrize("value", [float("nan"), 1e25])
def test_a_teacher_that_is_at_fault_is_named_with_the_sample(tmp_path: Path, value: float) -> None:
    x, _ = images(16)

    class Teacher(nn.Module):
        """Says `value` to the fourth sample of each batch."""

        def forward(self, x: Tensor) -> Tensor:
            said = torch.zeros(len(x), 3)
            said[3] = value
            return said

    given = options(teacher=Teacher(), labels=None, loss=Loss(distance="mse"))
    with pytest.raises(QatError, match=r"output .logits. of the teacher, the float model, .* for sample 3") as error:
        finetune(convolutional(), x, checkpoints=CheckpointConfig(black_box=tmp_path / "box"), **given)
    assert "look at the teacher" in error.value.hint
    assert replay(tmp_path / "box", convolutional()).same


class Steep(torch.autograd.Function):
    """The identity, with a gradient that is not finite where labels say so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * float("inf")


class SteepLoss:
    """Cross entropy whose third call has a gradient that is not finite; the loss itself is."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    def __call__(self, outputs: Any, labels: Tensor | None, teacher: Any) -> Tensor:
        self.calls += torch.is_grad_enabled()
        steep = self.calls >= self.at
        logits = Steep.apply(outputs[0]) if steep else outputs[0]  # type: ignore[no-untyped-call]
        return nn.functional.cross_entropy(logits, labels)


def test_a_gradient_is_named_in_the_order_of_the_backward_pass(tmp_path: Path) -> None:
    x, _ = images(64)
    message = r"norm of the gradients is .* at step 2; the gradient of 'logits' is the first"
    with pytest.raises(QatError, match=message):
        finetune(
            convolutional(), x, loss=SteepLoss(3), checkpoints=CheckpointConfig(black_box=tmp_path / "box"), **options()
        )
    again = replay(tmp_path / "box", convolutional(), loss=SteepLoss(0))
    assert (again.finding.kind, again.finding.name, again.same) == ("gradient", "logits", True)
    # Without the loss, only the forward pass is done again.
    forward = replay(tmp_path / "box", convolutional())
    assert (forward.finding.kind, forward.repeated, forward.same) == ("nothing", None, False)


def test_a_part_of_a_split_that_nothing_reads_has_no_gradient_to_look_at() -> None:
    model = convolutional()
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "sizes"))
    model.graph.node.append(helper.make_node("Split", ["logits", "sizes"], ["unread", "read"], axis=1))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("read", TensorProto.FLOAT, None))
    x, labels = images(64)
    with pytest.raises(QatError, match="the gradient of 'read' is the first"):
        finetune(model, x, loss=SteepLoss(3), **options(labels=labels % 2))


class SpoilMarked:
    """Spoils the batch that holds the first image, however often it is seen; draws random numbers, too."""

    def __init__(self, x: Any) -> None:
        self.mark = float(x[0].sum())

    def __call__(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        image = inputs["image"]
        marked = bool(((image.sum((1, 2, 3)) - self.mark).abs() < 1e-4).any())
        image = image + 0.01 * torch.randn_like(image)
        return {"image": image * (float("nan") if marked else 1.0)}


@pytest.mark.parametrize("interval", [1, 4])
def test_steps_are_left_out_and_counted(interval: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of each epoch of 8. With an interval of 4, as on a GPU, what was done blindly is undone and repeated."""
    patched(monkeypatch, interval)
    x, _ = images(64)
    steps: list[int] = []

    def note(report: Report) -> None:
        steps.append(report.step)

    result = finetune(
        convolutional(),
        x,
        augment=SpoilMarked(x),
        ema=0.9,
        skip_non_finite=2,
        progress=note,
        **options(),
    )
    assert (result.skipped, result.steps) == (2, 16)
    assert steps == sorted(set(steps))
    assert [sum(1 for step in steps if low < step <= low + 8) for low in (0, 8)] == [7, 7]
    assert all(torch.isfinite(p).all() for p in result.module.parameters())
    with pytest.raises(QatError, match="after 1 steps that were left out"):
        finetune(convolutional(), x, augment=SpoilMarked(x), skip_non_finite=1, **options())


def patched(monkeypatch: pytest.MonkeyPatch, interval: int) -> None:
    plain = pending.PendingSteps.__init__

    def init(self: pending.PendingSteps, device: torch.device) -> None:
        plain(self, device)
        self.interval = interval

    monkeypatch.setattr(pending.PendingSteps, "__init__", init)


def test_looking_every_few_steps_gives_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without and with a step to leave out; the way back restores optimizer, average and random numbers."""
    x, _ = images(64)
    for spoil in (Spoil(), SpoilMarked(x)):
        found = []
        for interval in (1, 5):
            with monkeypatch.context() as context:
                patched(context, interval)
                parts = {"progressive": (8, 6), "freezing": 0.02, "dampening": 0.1}
                given = options(optimizer="adamw", ema=0.9, augment=spoil, skip_non_finite=2, **parts)
                found.append(finetune(convolutional(), x, **given))
        assert found[0].model.SerializeToString() == found[1].model.SerializeToString()
        assert found[0].losses == found[1].losses
        assert found[0].skipped == found[1].skipped == (0 if isinstance(spoil, Spoil) else 2)


def test_a_damaged_box_is_refused(tmp_path: Path) -> None:
    x, _ = images(64)
    box = tmp_path / "box"
    with pytest.raises(QatError):
        finetune(
            convolutional(), x, augment=Spoil(2), checkpoints=CheckpointConfig(tmp_path, black_box=box), **options()
        )
    assert not (tmp_path / "black_box").exists()

    def refused(match: str, change: Any) -> None:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(box, copy)
        change(copy)
        with pytest.raises(QatError, match=match) as error:
            replay(copy, convolutional())
        assert error.value.code in ("checkpoint-mismatch", "name-unknown", "option-invalid")

    def edited(**fields: Any) -> Any:
        def change(folder: Path) -> None:
            document = json.loads((folder / "box.json").read_text())
            (folder / "box.json").write_text(json.dumps({**document, **fields}))

        return change

    def without(key: str) -> Any:
        def change(folder: Path) -> None:
            document = json.loads((folder / "box.json").read_text())
            del document[key]
            (folder / "box.json").write_text(json.dumps(document))

        return change

    refused("not a black box", lambda folder: (folder / "box.json").unlink())
    refused("not a black box", edited(format="other"))
    for key in json.loads((box / "box.json").read_text()):
        if key not in ("found", "rates", "torch"):  # for readers
            refused("not a black box", without(key))
    refused("method", edited(settings={"method": "nonsense"}))
    refused("precision", edited(precision="float8"))
    refused("loss cannot be made", edited(objective={"wrong": 1}))
    refused("quantizer", edited(quantizers={}))
    refused("batch-0", lambda folder: (folder / "batch-0.safetensors").write_bytes(b""))
    refused("before", lambda folder: (folder / "before.safetensors").write_bytes(b"nothing"))
    assert {**dataclasses.asdict(Loss()), "weights": []} == json.loads((box / "box.json").read_text())["objective"]
    assert len(list(quantizers(to_torch(convolutional())))) == len(
        json.loads((box / "box.json").read_text())["quantizers"]
    )
