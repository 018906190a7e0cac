"""Boxes of a detection data set, from a COCO file or YOLO label files, in pixels of the model's input."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.data.preprocess import ImageTransform
from onnxqat.data.sources import IMAGE_FORMATS
from onnxqat.errors import DataError
from onnxqat.graph import files_read

Boxes = npt.NDArray[np.float64]
COLUMNS = 6
"""class, x1, y1, x2, y2, crowd."""
PADDING = -1
_HINT = "give a COCO .json file or a folder of YOLO .txt files with --labels"


class BoxReader:
    """The labels of image files: an :data:`onnxqat.data.sources.Annotator`.

    The shape is (files, M, 6) with rows class, x1, y1, x2, y2, crowd; rows of class -1 fill up. Classes count from 0, in a
    COCO file in the order of the category ids. Boxes lie where the preprocessing puts them, and may reach beyond the input.

    Args:
        labels: a COCO file or a folder of YOLO files; without, they are looked for:

            1. ``.txt`` beside each image, or in ``labels/`` where that lies in ``images/``;
            2. a COCO file in the folder of the images, in the one above, or in ``annotations/`` there.
    """

    def __init__(self, labels: str | os.PathLike[str] | None) -> None:
        self._labels = None if labels is None else Path(labels)
        if self._labels is not None and not self._labels.exists():
            raise DataError("data-not-found", f"{self._labels}: there are no such labels", hint=_HINT)

    def __call__(self, files: Sequence[Path], transform: ImageTransform) -> npt.NDArray[Any]:
        """The labels of `files`, which `transform` turns into samples.

        Raises:
            DataError: ``data-labels``, ``data-format``.
        """
        found = self._relative(files)
        made = np.full((len(files), max(1, max(map(len, found), default=0)), COLUMNS), PADDING, np.float32)
        for row, path, boxes in zip(made, files, found, strict=True):
            row[: len(boxes)] = _in_sample(boxes, path, transform)
        return made

    def _relative(self, files: Sequence[Path]) -> list[Boxes]:
        """Boxes of each file in shares of width and height."""
        given = self._labels
        if given is not None and given.is_file():
            found = _of_coco(given, _read_json(given), files)
            if found is None:
                raise DataError("data-labels", f"{given}: none of its images is one of the data's", hint=_HINT)
            return found
        texts = [_text_of(path, given) for path in files]
        if any(text.is_file() for text in texts):
            return [_of_text(text) if text.is_file() else np.zeros((0, COLUMNS)) for text in texts]
        if given is not None:
            raise DataError("data-labels", f"{given}: holds no .txt file with the name of an image", hint=_HINT)
        return _boxes_beside(files)


def _text_of(image: Path, folder: Path | None) -> Path:
    """The YOLO file of an image."""
    if folder is not None:
        return folder / f"{image.stem}.txt"
    near = image.with_suffix(".txt")
    parts = list(image.parts)
    if near.is_file() or "images" not in parts[:-1]:
        return near
    parts[len(parts) - 2 - parts[-2::-1].index("images")] = "labels"
    return Path(*parts).with_suffix(".txt")


def _of_text(path: Path) -> Boxes:
    rows = []
    try:
        files_read.note(path, "the labels")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("data-format", f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        try:
            kind, x, y, w, h = map(float, words)
        except ValueError:
            kind = -1.0
        if kind < 0 or kind != int(kind) or not np.isfinite([x, y, w, h]).all():
            text = f"{path}, line {number}: not a class number from 0 and centre x, y, width, height in shares of the image"
            raise DataError("data-labels", text)
        rows.append((kind, x - w / 2, y - h / 2, x + w / 2, y + h / 2, 0.0))
    return np.array(rows, np.float64).reshape(-1, COLUMNS)


def _boxes_beside(files: Sequence[Path]) -> list[Boxes]:
    """Boxes out of the one COCO file that lies near."""
    folder = Path(os.path.commonpath([path.parent for path in files]))
    places = [folder, folder.parent, folder.parent / "annotations"]
    found: dict[Path, list[Boxes]] = {}
    for path in (p for place in places if place.is_dir() for p in sorted(place.glob("*.json"))):
        content = _read_json(path)
        boxes = _of_coco(path, content, files) if _is_coco(content) else None
        if boxes is not None:
            found[path] = boxes
    if len(found) != 1:
        what = f"{len(found)} COCO files" if found else "no boxes"
        raise DataError("data-labels", f"{folder}: {what} were found for its images", hint=_HINT)
    return next(iter(found.values()))


def _read_json(path: Path) -> Any:
    try:
        files_read.check_regular(path)
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError("data-format", f"{path}: cannot be read as JSON: {error}") from None


def _is_coco(content: Any) -> bool:
    kinds = (
        [content.get(key) for key in ("images", "annotations", "categories")] if isinstance(content, dict) else [None]
    )
    return all(isinstance(kind, list) for kind in kinds)


def _of_coco(path: Path, content: Any, files: Sequence[Path]) -> list[Boxes] | None:
    """Boxes of each file; None where it describes none of them."""
    if not _is_coco(content):
        raise DataError("data-format", f"{path}: not a COCO file: it needs lists images, annotations and categories")
    try:
        kinds = {kind: rank for rank, kind in enumerate(sorted(int(c["id"]) for c in content["categories"]))}
        sizes = {image["id"]: (float(image["width"]), float(image["height"])) for image in content["images"]}
        names = {str(image["file_name"]): image["id"] for image in content["images"]}
        rows: dict[Any, list[tuple[float, ...]]] = {number: [] for number in sizes}
        for entry in content["annotations"]:
            width, height = sizes[entry["image_id"]]
            x, y, w, h = map(float, entry["bbox"])
            corners = (x / width, y / height, (x + w) / width, (y + h) / height)
            rows[entry["image_id"]].append((kinds[entry["category_id"]], *corners, float(entry.get("iscrowd", 0))))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DataError("data-format", f"{path}: not a COCO file of boxes: {type(error).__name__}: {error}") from None
    by_name = {Path(name).name: number for name, number in names.items()}
    numbers = [by_name.get(file.name) for file in files]
    if all(number is None for number in numbers):
        return None
    missing = next((file for file, number in zip(files, numbers, strict=True) if number is None), None)
    if missing is not None:
        raise DataError("data-labels", f"{path}: does not name {missing.name}, which is among the data")
    files_read.note(path, "the labels")
    return [np.array(rows[number], np.float64).reshape(-1, COLUMNS) for number in numbers]


def _in_sample(boxes: Boxes, path: Path, transform: ImageTransform) -> Boxes:
    """Boxes in shares of the image as pixels of the sample."""
    if not len(boxes):
        return boxes
    from PIL import Image

    try:
        with Image.open(path, formats=IMAGE_FORMATS) as image:
            place = transform.placed(*image.size)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError("data-format", f"{path}: not a readable image: {error}") from None
    made = boxes.copy()
    for first, side in ((1, 0), (2, 1)):
        made[:, first:5:2] = boxes[:, first:5:2] * place.inner[side] + place.corner[side]
    return made
