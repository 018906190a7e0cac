"""Write the rows about every backend table into docs/backends.md.

    python tools/backend_table.py

A test fails when the page is stale.
"""

from __future__ import annotations

import re
from pathlib import Path

from onnxqat.backends import schema
from onnxqat.backends.schema import Backend, TypeRow
from onnxqat.placement import table_overrides

PAGE = Path(__file__).resolve().parents[1] / "docs" / "backends.md"
START, END = "<!-- written by tools/backend_table.py -->\n", "<!-- end -->\n"
STATES = {"run": "seen to hold", "document": "documented", "inferred": "inferred", "unverified": "**unverified**"}


def type_text(row: TypeRow) -> str:
    """A type in a few words: ``int8 sym ±127 per channel, power of two``."""
    if row.dtype == "float":
        return "float on the int32 grid" if row.derive else "float"
    if row.derive:
        return f"int32{'' if row.bits is None else f' of {row.bits} bits'}, product of scales"
    parts = [row.dtype, *([] if row.is_float else ["sym" if row.symmetric else "asym"])]
    grid = row.qtype()
    if not row.is_float and grid.quant_min != schema.STORAGE[row.dtype][0]:
        parts.append(f"{grid.quant_min}..{grid.quant_max}")
    parts.append(f"in blocks of {row.block}" if row.granularity == "block" else f"per {row.granularity}")
    text = " ".join(parts)
    text += ", power of two" if row.scale == "pow2" else f", scales of {row.scale_bits} bits" if row.scale_bits else ""
    return text + (", unsigned where never negative" if row.unsigned else "")


def types(table: Backend, names: set[str]) -> str:
    """The types called `names`, those that only some operators have behind the first."""
    used = [name for name in table.types if name in names]
    return "; ".join(dict.fromkeys(type_text(table.types[name]) for name in used)) or "float"


def placement(table: Backend) -> str:
    """Where pairs stand."""
    sides = "inputs" if table.placement == "inputs" else "both sides"
    floats = [side for side in ("inputs", "outputs") if getattr(table.io, side) == "float"]
    kept = "; graph " + " and ".join(floats) + " float" if floats else ""
    probabilities = "; probabilities too" if table.io.probabilities == "quantize" else ""
    count = len(table.checks)
    limits = f"; {count} shift limit{'s' * (count > 1)}" if count else ""
    return sides + kept + probabilities + limits


def states(table: Backend) -> str:
    """Which statements rest on what."""
    found = {state: [key for key, fact in table.facts.items() if fact.status == state] for state in STATES}
    texts = [f"{STATES[state]}: {', '.join(f'`{k}`' for k in keys)}" for state, keys in found.items() if keys]
    return "; ".join(texts)


def rows() -> str:
    """The tables of the page."""
    first = ["| Name | Activations | Weights | Bias | Pairs | Opset |", "|---|---|---|---|---|---|"]
    second = ["| Name | What its statements rest on | Sources |", "|---|---|---|"]
    for name in schema.names():
        table = schema.load(name)
        activations, weights = table_overrides.type_roles(table)
        biases = {s.use for row in table.ops.values() for s in row.inputs if s.use} - activations - weights
        cells = (types(table, activations), types(table, weights), types(table, biases), placement(table))
        first.append(f"| `{name}` | {' | '.join(cells)} | {table.opset[0]}-{table.opset[1]} |")
        second.append(f"| `{name}` | {states(table)} | {'; '.join(table.source)} |")
    return "\n".join([*first, "", *second, ""])


def page(text: str) -> str:
    """`text` of the page with its rows renewed."""
    return re.sub(f"{re.escape(START)}.*?{re.escape(END)}", lambda _: f"{START}\n{rows()}\n{END}", text, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
