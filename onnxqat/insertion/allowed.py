"""Changes that the guard may make: none that the user's options rule out."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.placement.table_overrides import NodeSelection, Overrides


@dataclasses.dataclass(frozen=True)
class Allowed:
    """Remedies that do not go against the user.

    Attributes:
        ranges: other observers.
        types: 16 bits, and float.
        wide: 16 bits; never with ``--exact``, whose rules hold for sums of 8-bit products.
        kept: names of nodes, and of the tensors that they make, whose types the user chose.
        why: what the user asked for where something is not allowed.
    """

    ranges: bool
    types: bool
    wide: bool
    kept: frozenset[str]
    why: str = ""


def of(overrides: Overrides, chosen: NodeSelection, model: ir.Model) -> Allowed:
    """Return the changes that `overrides` leave to the guard.

    A user who asks for one width everywhere, or names the nodes to quantize, gets that whatever it costs.
    """
    bits = overrides.weight_bits is not None or overrides.activation_bits is not None
    kept = {*chosen.widths, *chosen.rules}
    if overrides.first_last_bits is not None:
        kept.update(str(node.name) for node in dataflow.first_and_last(model.graph))
    asked = {
        "--bits": bits,
        "--include": bool(overrides.include),
        "--observer": overrides.observer is not None,
        "--bits-of": bool(chosen.widths),
        "--config": bool(chosen.rules),
        "--first-last-bits": overrides.first_last_bits is not None,
    }
    return Allowed(
        ranges=overrides.observer is None,
        types=not bits and not overrides.include,
        wide=not bits and not overrides.include and not overrides.exact,
        kept=frozenset(kept),
        why=", ".join(option for option, given in asked.items() if given),
    )
