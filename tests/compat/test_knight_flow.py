"""The manual's way from a torch module to a file that runs: TSQAT on real digits, one epoch."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import onnxqat
from onnxqat import BackendType
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.compat import qparams
from onnxqat.graph import io

pytest.importorskip("sklearn")
from onnxqat.training import digits


def test_from_a_module_to_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    images, labels = digits.load()
    monkeypatch.setattr(digits, "EPOCHS", 2)
    net = digits.train(images["train"], labels["train"]).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}

    model = onnxqat.prepare_by_platform(
        net, BackendType.TSQAT, torch.zeros(2, 1, 8, 8), export_options={"exporter": "torchscript"}
    )
    assert model.training
    onnxqat.enable_calibration(model)
    model.eval()
    with torch.no_grad():
        for start in range(0, 256, 64):
            model(torch.from_numpy(images["train"][start : start + 64]))
    onnxqat.enable_quantization(model)
    model.train()

    def top1() -> float:
        model.eval()
        with torch.no_grad():
            found = model(torch.from_numpy(images["test"])).argmax(1).numpy()
        model.train()
        return float((found == labels["test"]).mean())

    start = top1()
    wrapped = nn.DataParallel(model)  # a wrapper is seen through, its prefix reaches no file
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.002, momentum=0.9)
    torch.manual_seed(0)
    for batch in torch.randperm(len(labels["train"])).split(64):
        optimizer.zero_grad()
        logits = wrapped(torch.from_numpy(images["train"][batch]))
        nn.functional.cross_entropy(logits, torch.from_numpy(labels["train"][batch])).backward()
        optimizer.step()
    assert top1() > start

    onnxqat.save_checkpoint(wrapped, tmp_path / "net.pth", tmp_path / "net.json")
    file = onnxqat.convert_export(wrapped, tmp_path / "net.onnx", opset_version=18)
    model.eval()
    with torch.no_grad():
        wanted = model(torch.from_numpy(images["test"])).numpy()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: images["test"]})[0]
    step = max(float(q.qparams().scale) for _, q in quantizers(model) if q.tensor.startswith("output"))
    assert np.abs(found - wanted).max() <= 1.001 * step
    assert (found != wanted).mean() < 0.01  # sums in another order meet a tie now and then
    assert (found.argmax(1) == wanted.argmax(1)).mean() > 0.995

    # The module that was given is as before; checkpoint and JSON are the file again.
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    other = onnxqat.prepare_by_platform(model.prepared.calibration.float_model, BackendType.TSQAT)
    onnxqat.load_checkpoint(other, tmp_path / "net.pth", tmp_path / "net.json")
    other.eval()
    with torch.no_grad():
        assert torch.equal(other(torch.from_numpy(images["test"])), model(torch.from_numpy(images["test"])))
    clean, document = qparams.split(onnx.load(file))
    assert io.to_proto(qparams.join(clean, document)).graph.node == onnx.load(file).graph.node


def test_a_module_without_example_inputs_is_refused() -> None:
    with pytest.raises(onnxqat.QatError, match="no example inputs to export Net"):
        onnxqat.prepare_by_platform(digits.Net(), BackendType.TSQAT)
