"""Tables that quantize weights alone: the one of a backend, and the type and blocks that the user chooses for it."""

from __future__ import annotations

from typing import Literal, get_args

from onnxqat.backends.schema import Backend, OpRow, TypeRow
from onnxqat.errors import UsageError
from onnxqat.placement import named_table

WeightType = Literal["int4", "uint4", "int8", "uint8"]
"""Types of weights; the unsigned ones have a zero point."""


def of_backend(backend: Backend, weight_type: str | None) -> Backend:
    """The table of weights alone that belongs to `backend`, which may be one itself; as it is without a type.

    Raises:
        UsageError: ``option-invalid``.
    """
    if weight_type is None:
        return backend
    if weight_type not in get_args(WeightType):
        known = ", ".join(get_args(WeightType))
        raise UsageError("option-invalid", f"there is no weight type {weight_type!r}", hint=f"one of: {known}")
    if _is_weight_only(backend):
        return backend
    hint = "for another target write a table with `placement: inputs` and weights alone"
    return named_table.load(backend, "weight_only", "of weights alone", hint)


def with_type(row: TypeRow, weight_type: str | None, block: int | None) -> TypeRow:
    """`row` with another storage type, and blocks of so many elements; 0 is one scale for each channel.

    Raises:
        UsageError: ``option-invalid``.
    """
    update: dict[str, object] = {}
    if weight_type is not None:
        update |= {"dtype": weight_type, "symmetric": weight_type.startswith("int"), "bits": None, "qrange": None}
    if block is not None:
        if block < 0 or block == 1:
            raise UsageError(
                "option-invalid", f"a block of {block} is not possible", hint="0, or 2 and more: 32, 64, 128"
            )
        update |= {"granularity": "block", "block": block} if block else {"granularity": "channel", "block": None}
    return row.model_copy(update=update)


def with_channels(backend: Backend) -> Backend:
    """`backend` with scales along the output channels, where blocks would lie along the axis that is summed over."""

    def changed(row: OpRow) -> OpRow:
        slots = tuple(s.model_copy(update={"axis": "N"}) if s.axis == "K" else s for s in row.inputs)
        return row.model_copy(update={"inputs": slots})

    return backend.model_copy(update={"ops": {op: changed(row) for op, row in backend.ops.items()}})


def _is_weight_only(backend: Backend) -> bool:
    return not any(
        slot.use and slot.axis is None for row in backend.ops.values() for slot in (*row.inputs, *row.outputs)
    )
