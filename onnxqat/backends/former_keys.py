"""Former keys and values of backend tables, read for one more release: tables of users outlive the names in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEYS = {"moved": "data_movement", "summands": "fused_residual_add"}
ROW_KEYS = {"tie": "share", "midpoints": "meets_ties"}
VALUES = {
    "data_movement": {"bare": "no_pair"},
    "exact": {"odd": "tie_free", "bare": "no_pair"},
    "sums": {"odd": "tie_free"},
    "inner": {"bare": "no_pair"},
    "else": {"tie": "share"},
}


def renewed(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return `table` with the keys and values of today, and under ``former_keys`` the names of those it was read from."""
    found: list[str] = []
    new = _mapping(table, KEYS, "", found)
    if isinstance(new.get("ops"), dict):
        new["ops"] = {
            op: _mapping(row, ROW_KEYS, f"ops.{op}.", found) if isinstance(row, dict) else row
            for op, row in new["ops"].items()
        }
    if isinstance(new.get("fused"), list):
        new["fused"] = [_mapping(c, {}, "fused.", found) if isinstance(c, dict) else c for c in new["fused"]]
    if isinstance(new.get("facts"), dict):
        new["facts"] = {KEYS.get(key, key): fact for key, fact in new["facts"].items()}
    return {**new, "former_keys": found} if found else new


def _mapping(given: Mapping[str, Any], names: Mapping[str, str], place: str, found: list[str]) -> dict[str, Any]:
    new: dict[str, Any] = {}
    for key, value in given.items():
        name = names.get(key, key)
        known = VALUES.get(name, {})
        today = known.get(value, value) if isinstance(value, str) else value
        if name != key or today != value:
            text = f"{place}{name}" if today is value or not isinstance(today, str) else f"{place}{name}: {today}"
            found.append(f"{place}{key} is now {text}")
        new[name] = today
    return new
