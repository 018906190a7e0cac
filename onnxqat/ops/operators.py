"""The table of operators, and how to look one up."""

from __future__ import annotations

import dataclasses
import functools

import onnx_ir as ir

from onnxqat.ops import microsoft, onnx
from onnxqat.ops.definition import OpDef


@functools.cache
def table() -> dict[tuple[str, str], OpDef]:
    """All rows, by (domain, operator type)."""
    rows: dict[tuple[str, str], OpDef] = {}
    for families in (onnx.FAMILIES, microsoft.FAMILIES):
        for family, operators in families.items():
            for row in operators:
                key = (row.domain, row.name)
                if key in rows:
                    raise ValueError(f"operator {row.name} has rows in {rows[key].family} and {family}")
                rows[key] = dataclasses.replace(row, family=family)
    return rows


def find(domain: str, op_type: str) -> OpDef | None:
    """The row of an operator, or None where onnxqat knows nothing about it."""
    return table().get(("" if domain == "ai.onnx" else domain, op_type))


def of(node: ir.Node) -> OpDef | None:
    """The row of the operator of `node`, which is of the node's own domain; None where onnxqat knows nothing about it."""
    return find(node.domain, node.op_type)


def is_passthrough(node: ir.Node) -> bool:
    """Check whether `node` only moves values: each that it gives is one of its input."""
    row = of(node)
    return row is not None and row.passthrough
