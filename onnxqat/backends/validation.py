"""Tables that are not of this package, validated by pydantic against the annotations of the table's classes."""

from __future__ import annotations

from typing import Any, TypeVar

import pydantic

from onnxqat.backends import table_text
from onnxqat.errors import BackendError

T = TypeVar("T")


def validated(kind: type[T], fields: dict[str, Any], file: str) -> T:
    """A `kind` from the fields of a table in `file`.

    Raises:
        BackendError: ``backend-table``, naming the file and the key.
    """
    try:
        return pydantic.TypeAdapter(kind).validate_python(fields)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
    problem = "there is no such key" if first["type"] == "unexpected_keyword_argument" else first["msg"]
    given = first["input"]
    if isinstance(given, (str, int, float)) and first["type"] not in ("unexpected_keyword_argument", "value_error"):
        problem += f", not {given!r}"
    raise BackendError("backend-table", f"{file}: {table_text.key(first['loc']) or 'table'}: {problem}")
