"""Small files for the commands, and a way to run them in this process."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from onnxqat.cli import main
from tests.backends.planning import proto, weight

TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,8,8] image) => (float[N,4] logits) <float[4,3,3,3] w = {weight(4, 3, 3, 3)}, float[4] b = {{0.25, -0.5, 0.1, 0.3}},
 float[4,4] v = {weight(4, 4)}, float[4] c = {{1, 2, 3, 4}}> {{
    ["stem"] t = Conv<pads = [1,1,1,1]>(image, w, b) ["act"] a = Relu(t) ["pool"] p = GlobalAveragePool(a)
    ["flat"] f = Flatten(p) ["head"] logits = Gemm(f, v, c) }}"""


@dataclasses.dataclass(frozen=True)
class Done:
    """A command that was run."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON object that it must be."""
        return json.loads(self.out)


@pytest.fixture
def onnxqat(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run a command line in this process."""

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        status = main.run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return Done(status, out, err)

    return call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: model.onnx, data.npz with labels, images/."""
    monkeypatch.chdir(tmp_path)
    onnx.save(proto(TEXT), tmp_path / "model.onnx")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", image=rng.random((12, 3, 8, 8), np.float32), labels=rng.integers(0, 4, 12))
    (tmp_path / "images").mkdir()
    for i in range(4):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / "images" / f"{i}.png")
    return tmp_path


@pytest.fixture
def qdq(folder: Path, onnxqat: Callable[..., Done]) -> Path:
    """model.qdq.onnx beside model.onnx."""
    done = onnxqat("insert-qdq", "model.onnx", "-c", "data.npz")
    assert done.status == 0, done.err
    return folder / "model.qdq.onnx"
