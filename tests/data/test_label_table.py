"""Labels of image files from a table beside them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from onnxqat.data import label_table
from onnxqat.data.data import Data, open_data
from onnxqat.data.inputs import InputInfo
from onnxqat.data.preprocess import parse
from onnxqat.errors import DataError

IMAGE = InputInfo("image", "float32", ("N", 3, 8, 8))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for grey, name in enumerate(("a/0.png", "a/1.png", "b/0.png"), start=1):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (grey, grey, grey)).save(folder / name)
    return folder


def opened(folder: Path, table: str) -> tuple[Data, list[int] | None]:
    (folder / "labels.csv").write_text(table, encoding="utf-8")
    data = open_data(folder, [IMAGE], preprocess=parse("scale=1"))
    ((_, labels),) = data.labelled()
    return data, None if labels is None else labels.tolist()


@pytest.mark.parametrize(
    ("table", "labels"),
    [
        ("a/0.png,7\na/1.png,10\nb/0.png,7\n", [7, 10, 7]),
        ("\ufeffname,label\r\nb/0.png,dog\r\na/1.png,cat\r\n./a/0.png, cat\r\n", [0, 0, 1]),
        ("other.png,3\na/0.png,0\n1.png,1\nb/0.png,2\n", [0, 1, 2]),
    ],
)
def test_a_table_comes_before_the_folders(table: str, labels: list[int], images: Path) -> None:
    data, found = opened(images, table)
    assert found == labels
    assert data.remarks == []


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("a/0.png,1\nb/0.png,2\n", "no row for 1 image of 3, the first is 1.png"),
        ("0.png,1\n1.png,2\n", "2 images are named 0.png"),
        ("a/0.png,1,0.5\n", "row 1: 3 columns"),
        ("a/0.png,1\na/0.png,2\n", "row 2: a/0.png has the label 1 too"),
    ],
)
def test_a_table_that_does_not_fit_is_named_and_left_out(table: str, says: str, images: Path) -> None:
    data, found = opened(images, table)
    assert found == [0, 0, 1]  # of the folders
    (remark,) = data.remarks
    assert remark.concern == "result"
    assert says in remark.message
    with pytest.raises(DataError, match="data-labels"):
        label_table.read(images / "labels.csv", [Path("a/0.png"), Path("a/1.png"), Path("b/0.png")])


def test_a_file_that_is_no_text(images: Path) -> None:
    (images / "labels.csv").write_bytes(b"\xff\xfe\x00")
    data = open_data(images, [IMAGE], preprocess=parse("scale=1"))
    assert "not a readable CSV file" in data.remarks[0].message
    assert np.concatenate([labels for _, labels in data.labelled() if labels is not None]).tolist() == [0, 0, 1]
