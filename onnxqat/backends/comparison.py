"""Two tables side by side."""

from __future__ import annotations

from typing import Any

import yaml

from onnxqat.backends import table_text
from onnxqat.backends.schema import Backend

SECTIONS = ("types", "ops", "io", "session")
UNCOMPARED = ("backend", "description", "source", "extends", "facts", "schema")


def differences(first: Backend, second: Backend) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ, in the tables' order, with both values; None where a table lacks the key.

    Types, operators and options are compared one by one, data movement operator by operator.
    """
    a, b = _flat(first), _flat(second)
    return {key: (a.get(key), b.get(key)) for key in [*a, *(k for k in b if k not in a)] if a.get(key) != b.get(key)}


def text(value: Any) -> str:
    """One line: ``-`` for what is not there."""
    if value is None:
        return "-"
    return (
        str(yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)).removesuffix("...\n").strip()
    )


def _flat(table: Backend) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table_text.keys(table).items():
        if key in UNCOMPARED:
            continue
        if key in SECTIONS:
            found |= {f"{key}.{name}": row for name, row in value.items()}
        elif key == "passthrough":
            found |= {f"{key}.{op}": True for op in value}
        else:
            found[key] = value
    return found
