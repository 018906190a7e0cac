"""A run that trains on what the target's kernels compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import onnxqat
from onnxqat.bridge.integer.unit import Unit
from onnxqat.cli import main
from onnxqat.errors import UsageError
from tests.bridge.integer import networks


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return networks.quantized(networks.kinds(), networks.images())


def test_the_file_that_it_writes_is_what_was_scored(model: onnx.ModelProto) -> None:
    data = {"x": networks.images(48, 1)}
    result = onnxqat.finetune(
        model, data, teacher=networks.kinds(), arithmetic="onnxruntime", max_steps=12, learning_rate=1e-3, batch_size=8
    )
    assert any(isinstance(m, Unit) for m in result.module.modules())
    x = networks.images(16, 9)
    with torch.no_grad():
        found = result.module.eval()(torch.from_numpy(x))
    for mine, theirs in zip(found, networks.session(result.model, x), strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)


def test_through_the_command(model: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(model, tmp_path / "model.qdq.onnx")
    np.savez(tmp_path / "data.npz", x=networks.images(32, 1))
    arguments = ["finetune", str(tmp_path / "model.qdq.onnx"), "--data", str(tmp_path / "data.npz"), "--max-steps", "4"]
    written = ["-o", str(tmp_path / "tuned.onnx")]
    assert main.run([*arguments, *written, "--arithmetic", "onnxruntime"]) == 0
    assert onnx.load(tmp_path / "tuned.onnx").graph.node
    assert main.run([*arguments, *written, "--arithmetic", "integers"]) == 2


def test_half_precision_is_refused(model: onnx.ModelProto) -> None:
    with pytest.raises(UsageError, match="does not hold all codes"):
        onnxqat.finetune(model, {"x": networks.images()}, arithmetic="onnxruntime", precision="bfloat16", max_steps=1)
