"""Review of a valid table: statements without a source, unused types, doubtful data movement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnxqat.backends.schema import Backend
from onnxqat.ops import operators as ops

STATEMENTS = (
    "opset",
    "placement",
    "io",
    "pairs",
    "passthrough",
    "groups",
    "fused",
    "checks",
    "limits",
    "matmul_nbits",
    "gather_codes",
    "permute_from_back",
    "dynamic_activations",
    "written_attributes",
    "float16",
    "accepts",
    "session",
    "first_last_bits",
)
GROUPS = ("types", "ops")


def unsourced(stated: Mapping[str, Any]) -> list[str]:
    """Keys of a table's own text that none of its facts gives the source of; one of a key counts for all below it.

    Args:
        stated: what the file says itself, without what it extends.
    """
    known = set(stated.get("facts") or ())
    keys = [key for key in STATEMENTS if key in stated]
    keys += [f"{group}.{key}" for group in GROUPS for key, row in (stated.get(group) or {}).items() if row]
    return [key for key in keys if not known & {key, key.partition(".")[0]}]


def remarks(table: Backend) -> Iterator[str]:
    """Doubts about `table` that are no errors."""
    yield from table.former_keys
    used = {slot.use for row in table.ops.values() for slot in (*row.inputs, *row.outputs)}
    yield from (f"types.{name} is used by no operator" for name in table.types if name not in used)
    for op in table.passthrough:
        row = ops.find("", op.partition("/")[0])
        if row is not None and not row.passthrough and row.name != "Resize" and row.name != "Pad":
            yield f"passthrough: {op} gives values that its input has not, which need not lie on the input's grid"
        if op in table.ops:
            yield f"{op} is in ops and in passthrough: its row in ops wins"
    for key, fact in table.facts.items():
        if not _exists(table, key):
            yield f"facts: there is no {key} in the table"
        if fact.status == "unverified":
            yield f"{key} is unverified: {fact.note or fact.source}"


def _exists(table: Backend, key: str) -> bool:
    first, _, rest = key.partition(".")
    part = getattr(table, first, None)
    if part is None or not rest:
        return part is not None
    second, _, field = rest.partition(".")
    row = part.get(second) if isinstance(part, Mapping) else None
    return row is not None and (not field or hasattr(row, field))
