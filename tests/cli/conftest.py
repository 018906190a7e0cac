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
    write_files(tmp_path)
    return tmp_path


def write_files(folder: Path) -> None:
    """Write a float model, data with labels, and images; the same bytes each time."""
    onnx.save(proto(TEXT), folder / "model.onnx")
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", image=rng.random((12, 3, 8, 8), np.float32), labels=rng.integers(0, 4, 12))
    (folder / "images").mkdir()
    for i in range(4):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / "images" / f"{i}.png")


@pytest.fixture(scope="session")
def inserted(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The QDQ file that the command makes of the files of `folder`."""
    here = tmp_path_factory.mktemp("inserted")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        write_files(here)
        assert main.run(["insert-qdq", "model.onnx", "-c", "data.npz"]) == 0
    return (here / "model.qdq.onnx").read_bytes()


@pytest.fixture
def qdq(folder: Path, inserted: bytes) -> Path:
    """model.qdq.onnx beside model.onnx."""
    path = folder / "model.qdq.onnx"
    path.write_bytes(inserted)
    return path
