"""The setting that a recipe makes its passes for: a backend's table, and what the user chose."""

from __future__ import annotations

import dataclasses
from typing import Literal

from onnxqat.backends.schema import Backend
from onnxqat.placement.table_overrides import NodeSelection, Overrides
from onnxqat.types import BiasPlacement, Placement


@dataclasses.dataclass(frozen=True)
class Setting:
    """Ground of the decision of :meth:`onnxqat.passes._base.Pass.for_backend`.

    Attributes:
        table: backend table, user overrides applied.
        overrides: user choices.
        selection: nodes that the user took out; none before they are known.
        opset: operator set that the model needs at least; 0 where that does not matter.
        deploys: the deploy form is made; else a float model is prepared, or quantizers are placed.
        simplify: the user asked for onnxsim.
        batch_norm: the user's choice for BatchNormalization.
        placements: quantizers to insert.
        biases: biases to derive.
    """

    table: Backend
    overrides: Overrides = dataclasses.field(default_factory=Overrides)
    selection: NodeSelection | None = None
    opset: int = 0
    deploys: bool = False
    simplify: bool = False
    batch_norm: Literal["auto", "fold", "keep"] = "fold"
    placements: tuple[Placement, ...] = ()
    biases: tuple[BiasPlacement, ...] = ()

    @property
    def operators(self) -> frozenset[str]:
        """Operators of the rows of the table; a row ``Gelu/tanh`` is one of Gelu."""
        return frozenset(op.partition("/")[0] for op in self.table.ops)
