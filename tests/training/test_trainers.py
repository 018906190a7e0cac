"""The examples of docs/tutorials/own_loop.md run where the package that they are for is installed."""

import re
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxqat.training.finetune import finetune
from tests.source_tree import REPOSITORY
from tests.training.nets import convolutional, images


@pytest.mark.parametrize("package", ["lightning", "accelerate", "transformers"])
def test_example(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package's own imports
        pytest.importorskip(package, reason=f"{package} is not installed")
        page = (REPOSITORY / "docs" / "tutorials" / "own_loop.md").read_text(encoding="utf-8")
        code = next(b for b in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if f"import {package}" in b)
        x, y = images(64)
        np.savez(tmp_path / "data.npz", image=x, labels=y)
        onnx.save(convolutional(), tmp_path / "model.qdq.onnx")
        monkeypatch.chdir(tmp_path)
        exec(compile(code, f"docs/tutorials/own_loop.md, {package}", "exec"), {"__name__": "example"})
    trained, start = onnx.load("tuned.qdq.onnx"), onnx.load("model.qdq.onnx")
    changed = {
        t.name
        for t, before in zip(trained.graph.initializer, start.graph.initializer, strict=True)
        if t.raw_data != before.raw_data
    }
    assert {"w0", "w0_scale", "head", "bias"} <= changed
    # What they wrote is a file like any other.
    assert finetune("tuned.qdq.onnx", x, labels=y, max_steps=1, output="again.onnx", device="cpu").steps == 1
