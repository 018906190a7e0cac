"""The demo's float net: real data, the same each time, exported as it is."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from onnxqat.training import digits
from tests.passes.checks import ort_run

pytest.importorskip("sklearn")


def test_split() -> None:
    images, labels = digits.load()
    again, _ = digits.load()
    assert {k: v.shape for k, v in images.items()} == {"train": (1297, 1, 8, 8), "test": (500, 1, 8, 8)}
    assert {k: v.shape for k, v in labels.items()} == {"train": (1297,), "test": (500,)}
    assert images["train"].dtype == np.float32
    assert (images["train"].min(), images["train"].max()) == (0, 1)
    assert set(labels["test"]) == set(range(10))
    assert all(np.array_equal(images[k], again[k]) for k in images)
    seen = {image.tobytes() for image in images["train"]}
    assert not any(image.tobytes() in seen for image in images["test"])


def test_three_epochs_learn_and_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "EPOCHS", 3)
    torch.set_num_threads(1)  # sums in one order, and no quarrel over cores
    images, labels = digits.load()
    nets = [digits.train(images["train"], labels["train"]) for _ in range(2)]
    for name, tensor in nets[0].state_dict().items():
        assert torch.equal(tensor, nets[1].state_dict()[name]), name
    digits.export(nets[0], tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [n.op_type for n in model.graph.node].count("BatchNormalization") == 4
    with torch.no_grad():
        expected = nets[0](torch.from_numpy(images["test"])).numpy()
    found = ort_run(model, {"image": images["test"]})["logits"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert (found.argmax(1) == labels["test"]).mean() > 0.8  # 0.1 by chance
