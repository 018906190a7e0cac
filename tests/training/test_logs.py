"""Logs: one JSON line every few steps and one an epoch, event files for TensorBoard, both resumed."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from onnxqat.errors import UsageError
from onnxqat.training.callbacks.logs import logs
from tests.training.grouped import finetune
from tests.training.nets import convolutional, images
from tests.training.test_resume import _InterruptedError, stop_at


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def options(folder: Path, **more: Any) -> dict[str, Any]:
    _, y = images(80)
    given = {"labels": y, "epochs": 2, "batch_size": 8, "device": "cpu", "log_dir": folder / "logs", "log_every": 3}
    return {**given, **more}


def test_lines_of_steps_and_epochs(tmp_path: Path) -> None:
    x, _ = images(80)
    result = finetune(convolutional(), x, **options(tmp_path))
    found = lines(tmp_path / "logs")
    assert [line["step"] for line in found if line["event"] == "step"] == [3, 6, 9, 12, 15]
    epochs = [line for line in found if line["event"] == "epoch"]
    assert [(line["epoch"], line["step"], line["skipped"]) for line in epochs] == [(1, 8, 0), (2, 16, 0)]
    assert [line["loss"] for line in epochs] == result.losses
    assert epochs[result.best_epoch - 1]["score"] == result.best_score
    steps = [line for line in found if line["event"] == "step"]
    assert all(line["samples_per_second"] > 0 and line["gradient_norm"] > 0 and line["loss"] > 0 for line in steps)
    assert "weights" in steps[0]["rates"]
    assert all(isinstance(line["seconds"], float) for line in found)


def test_a_resumed_run_goes_on_in_its_log(tmp_path: Path) -> None:
    x, _ = images(80)
    given = options(tmp_path, checkpoint_dir=tmp_path)
    with pytest.raises(_InterruptedError):
        finetune(convolutional(), x, progress=stop_at(13), **given)
    with (tmp_path / "logs" / "log.jsonl").open("a") as file:
        file.write('{"event": "st')  # as a process leaves it that is killed
    finetune(convolutional(), x, resume=True, **given)
    found = [(line["event"], line["step"]) for line in lines(tmp_path / "logs")]
    assert found == [("step", s) for s in (3, 6)] + [("epoch", 8)] + [("step", s) for s in (9, 12, 15)] + [
        ("epoch", 16)
    ]
    # A run from the start begins the log anew.
    finetune(convolutional(), x, **given)
    assert len(lines(tmp_path / "logs")) == 7


def test_tensorboard_gets_curves_and_histograms(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    x, _ = images(80)
    result = finetune(convolutional(), x, tensorboard=True, **options(tmp_path))
    events = EventAccumulator(str(tmp_path / "logs"), size_guidance={"histograms": 0})
    events.Reload()
    assert [e.step for e in events.Scalars("train/loss")] == [3, 6, 9, 12, 15]
    assert [e.value for e in events.Scalars("epoch/loss")] == pytest.approx(result.losses)
    assert {"rate/weights", "scale/image", "epoch/score"} <= set(events.Tags()["scalars"])
    assert {"scales/log2", "scale/w0"} <= set(events.Tags()["histograms"])
    assert [e.step for e in events.Histograms("scale/w0")] == [8, 16]


def test_tensorboard_gets_the_graph_under_its_own_names(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    x, _ = images(80)
    finetune(convolutional(), x, tensorboard=True, **options(tmp_path))
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    graph = events.Graph()
    nodes = {node.name: node for node in graph.node}
    assert len(nodes) == len(graph.node)
    assert all(name in nodes for node in graph.node for name in node.input)
    assert nodes["image"].op == "Input"
    (quantizer,) = (node for node in graph.node if list(node.input) == ["image"])
    assert quantizer.op == "FakeQuantize"
    assert quantizer.attr["type"].s.startswith((b"int8 ", b"uint8 "))


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no folder for TensorBoard"):
        logs(None, tensorboard=True)
    with pytest.raises(UsageError, match="at least 1"):
        logs(tmp_path, every=0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as error:
        logs(tmp_path, tensorboard=True)
    assert error.value.code == "dependency-missing"
    assert "onnxqat[tensorboard]" in error.value.hint
