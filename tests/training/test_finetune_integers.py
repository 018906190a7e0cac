"""A run that trains on what the target's kernels compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from onnxqat.bridge.integer.unit import Unit
from onnxqat.cli import main
from onnxqat.errors import UsageError
from onnxqat.training.execution import target_arithmetic
from onnxqat.training.execution.execution import Execution
from tests.bridge.integer import networks
from tests.training.grouped import finetune


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return networks.quantized(networks.kinds(), networks.images())


def test_the_file_that_it_writes_is_what_was_scored(model: onnx.ModelProto) -> None:
    data = {"x": networks.images(48, 1)}
    result = finetune(
        model,
        data,
        teacher=networks.kinds(),
        execution=Execution(arithmetic="onnxruntime"),
        max_steps=12,
        learning_rate=1e-3,
        batch_size=8,
    )
    assert any(isinstance(m, Unit) for m in result.module.modules())
    x = networks.images(16, 9)
    with torch.no_grad():
        found = result.module.eval()(torch.from_numpy(x))
    for mine, theirs in zip(found, networks.session(result.model, x), strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)


def test_the_backend_of_the_file_says_what_is_computed(model: onnx.ModelProto) -> None:
    data = {"x": networks.images(32, 1)}

    def computed(**options: Any) -> str:
        given: dict[str, Any] = {"teacher": networks.kinds(), "max_steps": 1, **options}
        result = finetune(changed, data, **given)
        assert any(isinstance(m, Unit) for m in result.module.modules()) == (result.arithmetic != "float")
        return result.arithmetic

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    assert computed() == "onnxruntime"
    assert computed(arithmetic="float") == "float"
    assert computed(precision="bfloat16") == "float"
    for recorded in ("onnxruntime-cpu-s8", "a table that is elsewhere", ""):
        onnx.helper.set_model_props(changed, {"onnxqat.backend": recorded})
        assert computed() == "float"


@pytest.mark.parametrize(
    "option", [{"compiled": True}, {"inner": True}, {"distributed": "fsdp"}, {"precision": "float16"}]
)
def test_what_integers_do_not_go_with_computes_on_floats(option: dict[str, Any], model: onnx.ModelProto) -> None:
    plain: dict[str, Any] = {"precision": "float32", "compiled": False, "inner": False, "distributed": "ddp"}
    graph = ir.from_proto(model)
    assert target_arithmetic.resolve(None, graph, **plain) == "onnxruntime"
    assert target_arithmetic.resolve(None, graph, **{**plain, **option}) == "float"
    assert target_arithmetic.resolve("shift", graph, **{**plain, **option}) == "shift"


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
        finetune(
            model,
            {"x": networks.images()},
            execution=Execution(precision="bfloat16", arithmetic="onnxruntime"),
            max_steps=1,
        )
