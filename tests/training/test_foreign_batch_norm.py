"""BatchNormalization that another tool left between its pairs trains with the statistics of the file."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.lowering.normalization import BatchNorm
from onnxqat.errors import UsageError
from onnxqat.graph import batchnorm, io
from onnxqat.training.callbacks import batchnorm_statistics
from onnxqat.training.config import ScoreConfig
from tests.training.grouped import finetune


def model(*, pairs: bool = True, kept: bool = False) -> onnx.ModelProto:
    """x -> pair -> Conv -> BatchNormalization -> y; `kept`: with the note of ``insert-qdq --batch-norm keep``."""
    random = np.random.default_rng(0)
    held = {
        "s": np.float32(0.02),
        "z": np.uint8(128),
        "w": random.standard_normal((4, 2, 1, 1)).astype(np.float32),
        "gamma": np.ones(4, np.float32),
        "beta": np.zeros(4, np.float32),
        "mean": np.full(4, 0.5, np.float32),
        "var": np.full(4, 2.0, np.float32),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("Conv", ["xd" if pairs else "x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["y"]),
    ]
    if kept:
        nodes[-1].metadata_props.add(key=batchnorm.KEPT, value="kept")
    graph = helper.make_graph(
        nodes if pairs else nodes[2:],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 3, 3])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize(("made", "frozen"), [(model(), True), (model(kept=True), False), (model(pairs=False), False)])
def test_mode_of_a_module(made: onnx.ModelProto, frozen: bool) -> None:
    (normalization,) = (m for m in to_torch(made).modules() if isinstance(m, BatchNorm))
    assert normalization.frozen is frozen


@pytest.mark.parametrize(
    ("kept", "choice", "moves"), [(False, "auto", False), (True, "auto", True), (False, "live", True)]
)
def test_statistics_of_a_run(kept: bool, choice: batchnorm_statistics.Choice, moves: bool) -> None:
    x = 3 * np.random.default_rng(1).standard_normal((16, 2, 3, 3)).astype(np.float32)
    made = model(kept=kept)
    seen = []
    finetune(
        made,
        {"x": x},
        max_steps=2,
        batch_norm=choice,
        batch_size=8,
        device="cpu",
        score=ScoreConfig(
            evaluate=lambda module: float(len(seen.append(float(module.get_buffer("mean").sum())) or seen))
        ),
    )
    assert (seen[-1] != seen[0]) is moves


def test_choices() -> None:
    assert batchnorm_statistics.resolve("auto", io.load(model(kept=True))) == "live"
    assert batchnorm_statistics.resolve("live", io.load(model())) == "live"
    with pytest.raises(UsageError, match="batch_norm is 'off'"):
        batchnorm_statistics.resolve("off", io.load(model()))  # type: ignore[arg-type]
