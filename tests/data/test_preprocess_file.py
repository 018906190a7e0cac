"""A preprocessing of a user's file: used by its path, never by what a model file says, and tried promise by promise."""

from pathlib import Path

import pytest
from PIL import Image

from onnxqat import extension, kinds
from onnxqat.compat.classification import material
from onnxqat.data import preprocess as lines
from onnxqat.data.data import open_data
from onnxqat.data.inputs import InputInfo
from onnxqat.data.recorded import Recorded
from onnxqat.errors import UsageError
from onnxqat.graph.provenance import Provenance

INFO = InputInfo("x", "float32", ("N", 1, 4, 4))
KEPT = """
import numpy as np

def preprocess(image):
    return np.asarray(image.convert("L").resize((4, 4)), np.float32)[None] / 255
"""
BROKEN = {
    "sample": KEPT.replace("[None]", ""),
    "sizes": KEPT.replace(".resize((4, 4))", ""),
    "modes": KEPT.replace('np.asarray(image.convert("L")', "np.asarray(image").replace("[None]", ".reshape(1, 4, -1)"),
    "finite": KEPT.replace("/ 255", "/ 0 + np.inf"),
    "input": KEPT.replace("    return", "    image.paste(0, (0, 0, 2, 2))\n    return"),
    "second run": KEPT.replace("/ 255", "* np.random.rand()"),
}


def write(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return str(folder / "mine.py")


def pictures(folder: Path) -> Path:
    (folder / "images").mkdir()
    for number in range(3):
        Image.new("RGB", (6 + number, 5), (number * 50, 0, 0)).save(folder / "images" / f"{number}.png")
    return folder / "images"


def test_a_folder_goes_through_it(tmp_path: Path) -> None:
    steps = lines.parse(write(tmp_path, KEPT))
    data = open_data(pictures(tmp_path), [INFO], preprocess=steps)
    (batch,) = data
    assert batch["x"].shape == (3, 1, 4, 4)
    assert batch["x"].max() < 1
    assert lines.line(steps) == str(tmp_path / "mine.py")
    assert data.identity().preprocess == "mine.py"


def test_a_line_of_steps_asks_for_no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points are read from the files of all packages that are installed."""
    asked: list[str] = []
    monkeypatch.setattr(extension, "entry_point", lambda group, name: asked.append(name))
    assert lines.parse("resize=8,scale=1/255") == lines.Preprocess(resize=8, scale=1 / 255)
    assert not asked
    with pytest.raises(UsageError, match="unknown key"):
        lines.parse("grey-eight")
    assert asked == ["grey-eight"]


def test_no_model_file_makes_it_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "raise SystemExit('run')\n")
    monkeypatch.chdir(tmp_path)
    recorded = Recorded(Provenance(preprocess="mine.py"))
    assert recorded.steps is None
    opened = recorded.open(pictures(tmp_path), [INFO])
    assert any("give it by --preprocess" in str(remark) for remark in opened.remarks)
    write(tmp_path, KEPT)
    again = recorded.open(tmp_path / "images", [INFO], preprocess=lines.parse("mine.py"))
    assert not again.remarks


def test_what_cannot_follow_a_function(tmp_path: Path) -> None:
    path = write(tmp_path, KEPT)
    transform = lines.ImageTransform.of(lines.parse(path), INFO.shape or (), "float32")
    with pytest.raises(UsageError, match="no box can follow"):
        transform.placed(4, 4)
    (tmp_path / "data").mkdir()
    with pytest.raises(UsageError, match="training crops and mirrors"):
        material.open_material(
            str(tmp_path / "data"), INFO, batch_size=1, workers=0, seed=0, preprocess=path, image_size=4
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no function preprocess"),
        ("def preprocess(image):\n    return image.undefined\n", r"mine\.py, line 2: AttributeError"),
        ("def preprocess(image):\n    return [0]\n", r"an array of shape \[1\]"),
        ("def preprocess(image):\n    return [[['a']]]\n", "without the batch axis"),
    ],
)
def test_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        list(open_data(pictures(tmp_path), [INFO], preprocess=lines.parse(write(tmp_path, text))))


def test_floats_are_not_cut_to_integers(tmp_path: Path) -> None:
    steps = lines.parse(write(tmp_path, KEPT))
    with pytest.raises(UsageError, match="the model's input is uint8"):
        list(open_data(pictures(tmp_path), [InputInfo("x", "uint8", ("N", 1, 4, 4))], preprocess=steps))


def test_one_that_keeps_all(tmp_path: Path) -> None:
    path = write(tmp_path, KEPT)
    assert kinds.kind_of(path) == "preprocess"
    assert kinds.check_extension(path).passed


@pytest.mark.parametrize("promise", BROKEN)
def test_each_promise_can_be_broken(promise: str, tmp_path: Path) -> None:
    found = kinds.check_extension(write(tmp_path, BROKEN[promise]))
    assert promise in [finding.name for finding in found.findings if not finding.passed]
