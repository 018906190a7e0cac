"""Rows as a data frame of pandas, where that is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from onnxqat import discover
from onnxqat.errors import UsageError
from onnxqat.report.model import Report


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return `rows` as a ``pandas.DataFrame``.

    Raises:
        UsageError: ``dependency-missing``.
    """
    if importlib.util.find_spec("pandas") is None:
        raise UsageError(
            "dependency-missing", "a data frame needs pandas, which is not installed", hint="pip install pandas"
        )
    return importlib.import_module("pandas").DataFrame(list(rows))


def rows(report: Report, table: str | None) -> list[dict[str, Any]]:
    """Return the rows of the table of that key, or of the first that has rows; the key figures where there is none.

    Raises:
        UsageError: ``name-unknown``.
    """
    if table is not None and table not in {found.key for found in report.tables}:
        raise discover.unknown("table", table, sorted(found.key for found in report.tables))
    for found in report.tables:
        if found.key == table or (table is None and found.rows):
            keys = [column.key for column in found.columns]
            return [dict(zip(keys, row, strict=True)) for row in found.rows]
    return [{"figure": figure.key, "value": figure.value} for figure in report.figures] if table is None else []
