"""Draft of a backend table from what a compiler did with models of one operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from onnxqat.backends import schema, table_text
from onnxqat.backends.limits import Form
from onnxqat.backends.schema import Backend
from onnxqat.deployment.probe import LIMIT, STOPS, Learned, ProbeReport
from onnxqat.deployment.probe_models import CASES, KEEP_THE_GRID, Case

MODES = ("Resize/nearest", "Resize/linear", "Pad/constant", "Pad/reflect", "Pad/edge", "Pad/wrap", "MatMul/computed")
"""Cases whose part behind the slash a table may name; others, as ``Conv/depthwise``, are forms of one row."""

_CASES = {case.name: case for case in CASES}
_OFF = ("float", "rejected", *STOPS)


def draft(report: ProbeReport, extends: str | None = None) -> str:
    """YAML of a table that extends the probed one and states where the compiler parts from it.

    What cannot be said in a table, as numbers that are off or a mode that is no key, is in comments at the top.

    Args:
        report: of :func:`onnxqat.deployment.probe.probe`, best with ``in_float``.
        extends: name or path of the table that was probed; its name without.
    """
    table = schema.load(extends or report.backend)
    ops = dict(_operators(report.rows, table))
    passthrough, fused, limits = _passthrough(report.rows, table), _chains(report.rows), _limits(report.rows, table)
    stated: dict[str, Any] = {"ops": ops} if ops else {}
    if passthrough != table.passthrough:
        stated["passthrough"] = list(passthrough)
    former = table_text.keys(table)
    if fused:
        stated["fused"] = [*former.get("fused", ()), *fused]
    if limits:
        stated["limits"] = [*former.get("limits", ()), *limits]
    source = f"backends probe, {report.compiler} {report.version}"
    by_name = {row.name: row for row in report.rows}
    facts = {f"ops.{name}": {"source": f"{source}: {short(by_name[name].detail)}", "status": "run"} for name in ops} | {
        key: {"source": source, "status": "run"} for key in ("passthrough", "fused", "limits") if key in stated
    }
    content = {
        "schema": 1,
        "backend": f"{table.backend}-probed",
        "extends": extends or report.backend,
        "description": f"Draft from {source}; read it before you use it",
        **stated,
        **({"facts": facts} if facts else {}),
    }
    text = yaml.safe_dump(content, sort_keys=False, width=120, default_flow_style=None, allow_unicode=True)
    return "".join(f"# {line}\n" for line in _comments(report.rows)) + text


def _is_added(row: Learned) -> bool:
    """Check whether the compiler does on integers, with the right numbers, what the table leaves in float."""
    return row.table == "float" and row.integer and bool(row.difference) and not _is_off(row)


def _is_off(row: Learned) -> bool:
    return row.integer and row.steps is not None and not row.steps <= LIMIT


def _is_key(name: str) -> bool:
    return "+" not in name and ("/" not in name or name in MODES)


def _operators(rows: Sequence[Learned], table: Backend) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Rows that the compiler adds to the key ``ops``, and None for those that it takes away."""
    for row in rows:
        if not _is_key(row.name):
            continue
        if _is_added(row) and row.name not in KEEP_THE_GRID:
            yield row.name, _slots(_CASES[row.name], table)
        elif row.table == "quantized" and row.outcome in _OFF and row.name in table.ops:
            yield row.name, None


def _slots(case: Case, table: Backend) -> dict[str, Any]:
    """The row of an operator as the model that was probed had it."""
    convolution = table.ops["Conv"]
    act, weight = (convolution.inputs[i].use for i in (0, 1))
    count = len(case.shapes) + len(case.weights) + len(case.constants)
    slots: list[str] = []
    for i in range(count):
        if i in case.weights:
            slots.append(f"{weight}@{case.weights[i][1]}")
        else:
            slots.append("-" if i in case.constants else str(act))
    while slots[-1] == "-":
        slots.pop()
    return {"in": slots, "out": [str(act)]}


def _passthrough(rows: Sequence[Learned], table: Backend) -> tuple[str, ...]:
    found = list(table.passthrough)
    for row in rows:
        if _is_key(row.name) and _is_added(row) and row.name in KEEP_THE_GRID:
            found.append(row.name)
        elif row.table == "passed" and row.outcome in _OFF and row.name in found:
            found.remove(row.name)
    return tuple(found)


def _chains(rows: Sequence[Learned]) -> list[dict[str, Any]]:
    return [{"chain": row.name.split("+")} for row in rows if "+" in row.name and _is_added(row)]


def _limits(rows: Sequence[Learned], table: Backend) -> list[dict[str, Any]]:
    """New rows of the key ``limits``; operators that stop the compiler with the same words share one."""
    known = {op for limit in table.limits for op in limit.ops}
    found: dict[tuple[str, str, Form], list[str]] = {}
    for row in rows:
        if not _is_key(row.name) or "/" in row.name or row.name in known:
            continue
        stops, leaves = row.outcome in STOPS, row.outcome == "rejected"
        if stops or leaves:
            form: Form = "any" if row.in_float is not None or leaves else "quantized"
            found.setdefault((row.outcome if stops else "cpu", short(row.detail), form), []).append(row.name)
        elif row.in_float is not None:
            found.setdefault((row.in_float, short(row.float_detail), "float"), []).append(row.name)
    return [
        {"op": "|".join(names), "outcome": outcome, "why": why} | ({} if form == "any" else {"form": form})
        for (outcome, why, form), names in found.items()
    ]


def _comments(rows: Sequence[Learned]) -> Iterator[str]:
    for row in rows:
        if _is_off(row):
            yield f"{row.name}: {row.difference}"
        elif row.difference and not _is_key(row.name) and row.table != "float":
            yield f"{row.name}: {row.difference} ({short(row.detail)})"


def short(detail: str) -> str:
    """The first words of a compiler, on one line."""
    return " ".join(detail.split())[:200]
