"""Bit widths that a backend table can mix within one model."""

from __future__ import annotations

from collections.abc import Collection

from onnxqat.backends import schema
from onnxqat.backends.schema import Backend
from onnxqat.errors import UsageError
from onnxqat.placement import table_overrides
from onnxqat.placement.table_overrides import Overrides

WIDE = 16
"""Width of wide activations: the one above 8 bits that kernels have."""
WIDE_OPSET = 21  # the first whose QuantizeLinear writes codes of 16 bits


def takes(table: Backend, weight_bits: int, activation_bits: int) -> bool:
    """Check whether a node can have these widths (:attr:`Overrides.node_bits`) by what the table accepts."""
    try:
        table_overrides.apply(Overrides(node_bits=(("*", weight_bits, activation_bits),)), table)
    except UsageError:
        return False
    return True


def may_be_wide(table: Backend, op_types: Collection[str]) -> bool:
    """Check whether the backend has 16-bit activations for operators of these types.

    Its table says so, in a type or in those that it accepts, or another one of the compiler does (``qnn-htp-a16``).
    """
    if table.opset[1] < WIDE_OPSET or not op_types:
        return False
    accepted = table.accepts.get("activations")
    if accepted is not None:
        return any(kind.startswith(("int16", "uint16")) for kind in accepted)
    others = [schema.load(n) for n in schema.names() if n.startswith(f"{table.backend}-")]
    for other in (table, *others):
        activations, _ = table_overrides.type_roles(other)
        wide = any(other.types[kind].qtype().bits == WIDE for kind in activations if other.types[kind].observed)
        if wide and all(op_type in other.ops for op_type in op_types):
            return True
    return False


def weight_width(table: Backend) -> int | None:
    """Return the width of the table's weights, the largest of several types; None where no type is of integers."""
    rows = [table.types[name] for name in table_overrides.type_roles(table)[1]]
    # 8-bit weights in -64..63 are still bytes.
    widths = [8 if row.reduce_range else row.qtype().bits for row in rows if row.observed and not row.is_float]
    return max(widths, default=None)
