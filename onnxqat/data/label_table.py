"""Table of labels for image files: CSV rows of a name and a label."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.counts import counted
from onnxqat.errors import DataError

NAME = "labels.csv"
"""File of a folder of images that gives their labels."""


def read(table: Path, files: Sequence[Path]) -> npt.NDArray[Any]:
    """Labels of image `files` from a CSV file: the integers themselves if all are integers, else their rank in sorted order.

    A row names a file by its name or the end of its path. A first row that names none of them is the header.

    Args:
        table: rows of two columns, name and label; those of other files are passed over.
        files: images, in the order of the labels.

    Raises:
        DataError: ``data-labels``: a row has not two columns, a file has no row or two labels, or two files share one.
    """
    rows = _rows(table)
    keys = [_key(file, rows) for file in files]
    missing = [file for file, key in zip(files, keys, strict=True) if key is None]
    if missing:
        what = counted(len(missing), "image")
        raise DataError("data-labels", f"{table}: no row for {what} of {len(files)}, the first is {missing[0].name}")
    key, uses = Counter(keys).most_common(1)[0]
    if uses > 1:
        raise DataError("data-labels", f"{table}: {uses} images are named {key}", hint="write their folder in front")
    return _numbered([rows[str(key)] for key in keys])


def _rows(table: Path) -> dict[str, str]:
    rows: dict[str, str] = {}
    try:
        with table.open(encoding="utf-8-sig", newline="") as lines:
            for number, cells in enumerate(csv.reader(lines), start=1):
                if not cells:
                    continue
                if len(cells) != 2:
                    text = f"{table}, row {number}: {counted(len(cells), 'column')}, not two, name and label"
                    raise DataError("data-labels", text)
                name, label = cells[0].strip().replace("\\", "/").removeprefix("./"), cells[1].strip()
                if rows.setdefault(name, label) != label:
                    raise DataError("data-labels", f"{table}, row {number}: {name} has the label {rows[name]} too")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError("data-labels", f"{table}: not a readable CSV file: {error}") from None
    return rows


def _key(file: Path, rows: dict[str, str]) -> str | None:
    """The name that `rows` have for `file`, as much of its path as one of them gives."""
    parts = file.parts
    return next((key for start in range(len(parts)) if (key := "/".join(parts[start:])) in rows), None)


def _numbered(labels: Iterable[str]) -> npt.NDArray[Any]:
    labels = list(labels)
    if all(label.isascii() and label.isdigit() for label in labels):
        return np.array([int(label) for label in labels], np.int64)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)
