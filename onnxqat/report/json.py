"""A report for programs. The keys are stable; a new one may be added, none changes its meaning."""

from __future__ import annotations

import json
from typing import Any

from onnxqat.report.model import Report, Table
from onnxqat.validation.compare import plain

SCHEMA = 1


def to_dict(report: Report) -> dict[str, Any]:
    """The report as JSON values: figures by key, tables as lists of objects, infinite and undefined numbers null."""
    found: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "kind": report.kind,
            "title": report.title,
            "passed": report.passed,
            "verdicts": report.verdicts,
            "figures": {figure.key: figure.value for figure in report.figures},
            "tables": {table.key: _rows(table) for table in report.tables},
            "failures": report.failures,
            "remarks": report.remarks,
            "files": report.files,
            "left_float": report.left_float,
            "next_command": report.next_command,
            **({"details": dict(report.details)} if report.details else {}),
        }
    )
    return found


def _rows(table: Table) -> list[dict[str, Any]]:
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, row, strict=True)) for row in table.rows]


def dumps(report: Report) -> str:
    """One JSON document, indented."""
    return json.dumps(to_dict(report), indent=2, allow_nan=False, ensure_ascii=False)
