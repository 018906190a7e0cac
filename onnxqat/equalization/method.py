"""Base class of the equalizations, and the situation that they are given."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import onnx_ir as ir

from onnxqat.backends.schema import Backend, TypeRow
from onnxqat.equalization.channel_ranges import ChannelRanges
from onnxqat.passes._base import Pass
from onnxqat.passes._linked_layers import Link
from onnxqat.placement.table_overrides import NodeSelection


@dataclasses.dataclass(frozen=True, eq=False)
class Situation:
    """The model that is to be quantized and how.

    Attributes:
        model: prepared float model.
        table: backend table, overrides applied.
        chosen: nodes that the user took out; their inputs and outputs are left as they are.
        ranges: of channels on the calibration data.
        asked: the user named the method: no threshold holds it back.
        value: its number.
    """

    model: ir.Model
    table: Backend
    chosen: NodeSelection
    ranges: ChannelRanges
    asked: bool
    value: float | None

    def weight_type(self, op_type: str) -> TypeRow | None:
        """The type of the weights of an operator; None where the table leaves them in float."""
        row = self.table.ops.get(op_type)
        slot = row.input_slot(1) if row is not None else None
        return None if slot is None or slot.use is None else self.table.types[slot.use]

    def input_type(self, op_type: str) -> TypeRow | None:
        """The type of the activations that an operator reads; None where the table leaves them in float."""
        row = self.table.ops.get(op_type)
        slot = row.input_slot(0) if row is not None else None
        found = None if slot is None or slot.use is None else self.table.types[slot.use]
        return found if found is not None and found.observed else None

    def quantizes(self, link: Link) -> bool:
        """Check whether the tensor of a link is quantized, with none of its ends taken out by the user."""
        quantized = all(self.input_type(reader.op_type) is not None for reader in link.readers)
        return quantized and not any(self.chosen.reason(node) for node in (link.source, *link.readers))

    def is_per_channel(self, op_type: str) -> bool:
        """Check whether weights of an operator have a scale for each output channel, or several."""
        found = self.weight_type(op_type)
        return found is not None and found.granularity != "tensor"


class Method(abc.ABC):
    """One way to equalize: finds its places, looks at their channels, and makes the pass that scales them.

    Attributes:
        tried: whether it is kept only where held-out samples come out better, when nobody asked for it by name.
        every_sample: whether its ranges have to be those of all calibration data.
        rows: whether it looks at values, and not at ranges alone.
    """

    tried: ClassVar[bool] = True
    every_sample: ClassVar[bool] = False
    rows: ClassVar[bool] = False

    @abc.abstractmethod
    def tensors(self, situation: Situation) -> Mapping[str, int]:
        """Tensors whose ranges of channels it looks at, with the axis of the channels; empty where it has no place."""

    @abc.abstractmethod
    def made(self, situation: Situation) -> Pass | None:
        """The pass that equalizes; None where nothing is worth it."""
