"""Rows as a data frame of pandas, where that is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from onnxqat.errors import UsageError


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
