"""Draft of a backend table from pairs of operators that a compiler runs otherwise than their parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from onnxqat.backends import schema, table_text
from onnxqat.backends.schema import Backend
from onnxqat.deployment.probe import STOPS
from onnxqat.deployment.probe_pairs import STEEP_LIMIT, LearnedPair, PairReport
from onnxqat.deployment.probe_table import short


def draft(report: PairReport, extends: str | None = None) -> str:
    """YAML of a table that extends the probed one and states where pairs part from their parts.

    A pair that stops the compiler, or whose second operator goes to the CPU, is a row of ``limits`` with ``behind``; a
    second operator that runs in float gets ``not_behind`` in its row, so that placement leaves it in float. What cannot
    be said so, a first operator in float or numbers that are off, is in comments at the top.

    Args:
        report: of :func:`onnxqat.deployment.probe_pairs.probe_pairs`.
        extends: name or path of the table that was probed; its name without.
    """
    table = schema.load(extends or report.backend)
    source = {"source": f"backends probe --pairs, {report.compiler} {report.version}", "status": "run"}
    parted = report.differences
    ops, limits = _operators(parted, table), _limits(parted)
    former = table_text.keys(table)
    content: dict[str, Any] = {
        "schema": 1,
        "backend": f"{table.backend}-probed",
        "extends": extends or report.backend,
        "description": f"Draft from {source['source']}; read it before you use it",
        **({"ops": ops} if ops else {}),
        **({"limits": [*former.get("limits", ()), *limits]} if limits else {}),
        **(
            {"facts": dict.fromkeys([f"ops.{n}" for n in ops] + ["limits"] * bool(limits), source)}
            if ops or limits
            else {}
        ),
    }
    text = yaml.safe_dump(content, sort_keys=False, width=120, default_flow_style=None, allow_unicode=True)
    return "".join(f"# {line}\n" for line in _comments(parted, ops)) + text


def _operators(rows: Sequence[LearnedPair], table: Backend) -> dict[str, dict[str, Any]]:
    """Rows of ``ops`` with the operators that they are not behind."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        first, second = row.name.split("->")
        key = next((name for name in (second, _operator(second)) if name in table.ops), None)
        if key is None or not _in_float(row, 1):
            continue
        behind = found.setdefault(key, {"not_behind": list(table.ops[key].not_behind)})["not_behind"]
        if _operator(first) not in behind:
            behind.append(_operator(first))
    return found


def _limits(rows: Sequence[LearnedPair]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        first, second = map(_operator, row.name.split("->"))
        outcome = row.together[1]
        if outcome in STOPS or (outcome == "rejected" and row.alone[1] != "rejected"):
            said = str(outcome) if outcome in STOPS else "cpu"
            found.setdefault((second, said, short(row.detail)), []).append(first)
    return [
        {"op": second, "behind": "|".join(dict.fromkeys(firsts)), "outcome": outcome, "why": why}
        for (second, outcome, why), firsts in found.items()
    ]


def _comments(rows: Sequence[LearnedPair], ops: dict[str, dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        second = row.name.split("->")[1]
        stated = second in ops or _operator(second) in ops
        off = row.steps is not None and not row.steps <= STEEP_LIMIT
        if off or _in_float(row, 0) or (_in_float(row, 1) and not stated):
            yield f"{row.name}: {row.difference} ({short(row.detail)})"


def _in_float(row: LearnedPair, index: int) -> bool:
    return row.together[index] == "float" and row.alone[index] in ("integer", "moved")


def _operator(name: str) -> str:
    return name.partition("/")[0]
