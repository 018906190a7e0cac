"""Conversion between a table's YAML keys with short forms of slots and chains, and the fields of its classes.

Values of an unexpected form are passed through unchanged: validation reports them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

KEYS = {"schema_version": "schema"}
ROW_KEYS = {"inputs": "in", "outputs": "out"}
CHAIN_KEYS = {"otherwise": "else"}


def fields(table: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a table from its keys."""
    found = _with_field_names(table, KEYS)
    if isinstance(found.get("ops"), dict):
        found["ops"] = {op: _row(row) for op, row in found["ops"].items()}
    if isinstance(found.get("fused"), list):
        found["fused"] = [_chain(row) for row in found["fused"]]
    return found


def _with_field_names(mapping: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
    field_of = {key: field for field, key in names.items()}
    return {field_of.get(key, key): value for key, value in mapping.items()}


def _row(row: Any) -> Any:
    if not isinstance(row, dict):
        return row
    found = _with_field_names(row, ROW_KEYS)
    for side in ROW_KEYS:
        if isinstance(found.get(side), list):
            found[side] = [_slot(slot) for slot in found[side]]
    return found


def _slot(slot: Any) -> Any:
    """``act`` | ``act...`` | ``wt@0`` | ``wt@N`` | ``-`` (not quantized), or a mapping."""
    if not isinstance(slot, str):
        return slot
    if slot == "-":
        return {}
    name, _, axis = slot.removesuffix("...").partition("@")
    found: dict[str, Any] = {"use": name}
    if axis:
        found["axis"] = int(axis) if axis.removeprefix("-").isdecimal() else axis
    if slot.endswith("..."):
        found["variadic"] = True
    return found


def _chain(row: Any) -> Any:
    if not isinstance(row, dict):
        return row
    found = _with_field_names(row, CHAIN_KEYS)
    if isinstance(found.get("chain"), list):
        found["chain"] = [step.split("|") if isinstance(step, str) else step for step in found["chain"]]
    return found


def key(path: tuple[int | str, ...]) -> str:
    """Path of a field in the keys of the YAML file, such as ``ops.Conv.in.1``."""
    inside = {"ops": ROW_KEYS, "fused": CHAIN_KEYS}.get(str(path[0]), KEYS) if path else {}
    return ".".join(inside.get(str(part), str(part)) for part in path)


def keys(table: Any, *, brief: bool = True) -> dict[str, Any]:
    """The keys of a table from its fields; `brief` leaves out defaults and writes the short forms."""
    found = {KEYS.get(name, name): value for name, value in _as_yaml(table, brief).items()}
    rows = {op: {ROW_KEYS.get(name, name): v for name, v in row.items()} for op, row in found["ops"].items()}
    chains = [{CHAIN_KEYS.get(name, name): v for name, v in row.items()} for row in found.get("fused", ())]
    if brief:
        for row in rows.values():
            row.update({side: [_slot_text(slot) for slot in row[side]] for side in ROW_KEYS.values() if side in row})
        for chain in chains:
            chain["chain"] = ["|".join(step) for step in chain["chain"]]
    found["ops"] = rows
    if chains or not brief:
        found["fused"] = chains
    return found


def _as_yaml(value: Any, brief: bool) -> Any:
    if dataclasses.is_dataclass(value):
        found = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {f.name: _as_yaml(inner, brief) for f, inner in found if not (brief and _is_default(f, inner))}
    if isinstance(value, dict):
        return {key: _as_yaml(inner, brief) for key, inner in value.items()}
    return [_as_yaml(inner, brief) for inner in value] if isinstance(value, (tuple, list)) else value


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return field.default is not dataclasses.MISSING and bool(value == field.default)


def _slot_text(slot: dict[str, Any]) -> Any:
    if set(slot) - {"use", "axis", "variadic"}:
        return slot
    if "use" not in slot:
        return "-"
    return slot["use"] + (f"@{slot['axis']}" if "axis" in slot else "") + ("..." if "variadic" in slot else "")
