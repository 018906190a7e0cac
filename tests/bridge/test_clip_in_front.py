"""Training keeps a scale within the Clip in front, so that runtimes go on to compute the layer in integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from onnxqat import to_torch, write_back
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.training import methods
from onnxqat.training.optim.optimizers import ScaleGuard
from tests.bridge.integer import networks

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
relu6 (float[N, 3, 6, 6] x) => (float[N, 4, 6, 6] y)
<float[4, 3, 3, 3] w, float low = {0.0}, float high = {6.0}>
{
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    y = Clip (c, low, high)
}"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return networks.quantized(networks.with_weights(TEXT), data())


def data() -> np.ndarray:
    return (np.random.default_rng(0).standard_normal((8, 3, 6, 6)) * 6).astype(np.float32)


def integer_layers(model: onnx.ModelProto, folder: Path) -> int:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return sum(node.op_type == "QLinearConv" for node in onnx.load(folder / "optimized.onnx").graph.node)


def test_a_plain_loop(model: onnx.ModelProto, tmp_path: Path) -> None:
    module = to_torch(model).train()
    (behind,) = (q for _, q in quantizers(module) if q.largest_scale is not None)
    assert behind.largest_scale == pytest.approx(6 / 255)
    optimizer = torch.optim.SGD([behind.scale], lr=1.0)
    start = float(behind.scale.detach())
    for _ in range(3):
        optimizer.zero_grad()
        (-module(torch.from_numpy(data())).sum()).backward()  # all that saturates asks for a larger scale
        optimizer.step()
    scale = behind.scale.detach().numpy()
    assert start <= scale
    assert np.float32(255) * scale <= 6
    tuned = write_back(module.eval(), model)
    assert integer_layers(model, tmp_path) == integer_layers(tuned, tmp_path) == 1


def test_the_guard_of_finetune(model: onnx.ModelProto) -> None:
    module = to_torch(model, quantizer_factory=methods.factory("lsq", limit_steps=False)).train()
    (behind,) = (q for _, q in quantizers(module) if q.largest_scale is not None)
    guard = ScaleGuard(module)
    guard.before()
    with torch.no_grad():
        behind.scale.mul_(1.5)
    guard.after()
    assert float(behind.scale.detach()) == behind.largest_scale
    assert int(guard.limited) == 0


def test_learned_offsets_leave_a_grid_that_starts_at_zero(model: onnx.ModelProto, tmp_path: Path) -> None:
    module = to_torch(model, quantizer_factory=methods.factory("lsq_plus")).train()
    (behind,) = (q for _, q in quantizers(module) if q.starts_at_zero)
    assert isinstance(behind.offset, torch.Tensor)
    with torch.no_grad():
        behind.offset.sub_(1.0)
    tuned = write_back(module.eval(), model)
    assert integer_layers(tuned, tmp_path) == 1


@pytest.mark.parametrize("scale", [0.03, 0.02])
def test_a_grid_that_reaches_beyond_the_clip_is_free(model: onnx.ModelProto, scale: float) -> None:
    module = to_torch(model)
    held = next(q for _, q in quantizers(module) if q.largest_scale is not None).scale_names[0]
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for tensor in changed.graph.initializer:
        if tensor.name == held:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(scale), held))
    found = [q.largest_scale for _, q in quantizers(to_torch(changed)) if q.largest_scale is not None]
    assert len(found) == (0 if scale > 6 / 255 else 1)
