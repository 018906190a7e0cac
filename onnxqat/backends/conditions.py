"""Attributes that a table's row is for: its key ``when``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx_ir as ir

from onnxqat.graph import query, windows

AT_LEAST = ">="
"""End of a key whose value is the least that the largest number of the attribute must have."""


def unmet(node: ir.Node, when: Mapping[str, Any]) -> Iterator[str]:
    """The keys of `when` that `node` does not meet.

    A key names an attribute, or several of which one is enough: ``ceil_mode|count_include_pad: 0``. What a node does
    not state is 0, or empty where a list or a text is expected: ``dilations: []``. Padding is counted only where there is
    some: ``count_include_pad`` of another pool is 0. ``strides>=: 8`` is for strides of which one is 8 or more.
    """
    for key, expected in when.items():
        names = key.removesuffix(AT_LEAST).split("|")
        holds = _reaches if key.endswith(AT_LEAST) else _is
        if not any(holds(node, name, expected) for name in names):
            yield key


def _is(node: ir.Node, name: str, expected: Any) -> bool:
    return bool(_attribute_value(node, name, type(expected)()) == expected)


def _reaches(node: ir.Node, name: str, least: float) -> bool:
    found = query.attribute(node, name, 0)
    return max(found if isinstance(found, (list, tuple)) else [found], default=0) >= least


def _attribute_value(node: ir.Node, name: str, default: Any) -> Any:
    if name == "count_include_pad" and not _has_places_beyond(node):
        return default
    return query.attribute(node, name, default)


def _has_places_beyond(pool: ir.Node) -> bool:
    """Check whether windows may reach beyond the data: with padding, or with ``ceil_mode``, where kernels differ."""
    return windows.is_padded(pool) or bool(query.attribute(pool, "ceil_mode", 0))


def spelled(key: str, expected: Any) -> str:
    """One condition as words: ``with ceil_mode=0``, ``without dilations``."""
    names = key.removesuffix(AT_LEAST).split("|")
    if key.endswith(AT_LEAST):
        return f"with {' or '.join(names)} of {expected} and more"
    if isinstance(expected, (list, str)) and not expected:
        return f"without {' or '.join(names)}"
    return f"with {' or '.join(f'{name}={expected}' for name in names)}"
