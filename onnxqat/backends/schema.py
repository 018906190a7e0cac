"""Backend tables: what a compiler wants quantized, with which types, and what it fuses.

A table is one YAML file. ``extends: NAME`` starts from another table: mappings are merged key by key (a key with the
value null is removed), lists and scalars replace. In place of a name may stand a path, relative to the table's folder.
Every error names the file and the key.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from onnxqat import discover
from onnxqat.errors import BackendError
from onnxqat.ops import _base as ops
from onnxqat.types import STORAGE, QType, Role, TensorSpec

FOLDER = Path(__file__).parent
WIDTHS = (*range(2, 9), 16)
COMPOSITES = {"Silu"}  # recognised patterns that a fused chain may name like an operator


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class TypeRow(_Strict):
    """A named tensor type.

    `dtype` is the ONNX storage type or ``float``; `bits` below the storage width gives a narrower grid inside it.
    ``scale: pow2`` restricts scales to powers of two, `scale_bits` to so many significant bits.
    `reduce_range` keeps 8-bit weights in -64..63: CPUs without VNNI add pairs of u8 x s8 products in 16 bits, which
    saturates for larger weights. A bias has `derive: in0*in1`: int32 codes with the product of its node's input scales, or with ``dtype: float``
    float values on that grid.
    """

    dtype: str
    symmetric: bool = True
    granularity: Literal["tensor", "channel"] = "tensor"
    bits: int | None = Field(default=None, ge=2, le=16)
    qrange: tuple[int, int] | None = None
    scale: Literal["any", "pow2"] = "any"
    scale_bits: int | None = Field(default=None, ge=1, le=24)
    observer: str = "minmax"
    reduce_range: bool = False
    derive: Literal["in0*in1"] | None = None

    @pydantic.model_validator(mode="after")
    def _known_dtype(self) -> TypeRow:
        if self.dtype != "float" and self.dtype not in STORAGE:
            raise ValueError(f"dtype {self.dtype!r} is none of float, {', '.join(STORAGE)}")
        if self.dtype != "float" and self.derive is None:
            grid = self.qtype()
            if grid.needs_clip and grid.storage in ("int2", "uint2", "int4", "uint4"):
                raise ValueError(f"a narrower grid does not go into {grid.storage}: ONNX has no Clip for it; use int8")
        return self

    @property
    def observed(self) -> bool:
        """Whether the tensor gets a pair of its own: not a bias that is derived or left float."""
        return self.derive is None and self.dtype != "float"

    def qtype(self) -> QType:
        """The integer grid."""
        low, high, _ = STORAGE[self.dtype]
        if self.qrange is not None:
            return QType(self.dtype, *self.qrange)
        if self.reduce_range and self.dtype == "int8" and self.bits in (None, 8):
            return QType.of(7, signed=True, storage=self.dtype)
        if self.bits is not None:
            return QType.of(self.bits, signed=low < 0, storage=self.dtype)
        return QType(self.dtype, low, high)

    def with_bits(self, bits: int) -> TypeRow:
        """The same type, `bits` wide, in the 8- or 16-bit storage type of its sign."""
        sign = "int" if self.dtype.startswith("int") else "uint"
        return self.model_copy(update={"dtype": f"{sign}{16 if bits == 16 else 8}", "bits": bits, "qrange": None})

    def spec(self, role: Role, axis: int | None = None) -> TensorSpec:
        """The tensor spec; `axis` counts only with granularity ``channel``."""
        channel = self.granularity == "channel" and axis is not None
        return TensorSpec(
            qtype=self.qtype(),
            symmetric=self.symmetric,
            granularity="channel" if channel else "tensor",
            axis=axis if channel else None,
            scale_bits=1 if self.scale == "pow2" else self.scale_bits,
            observer=self.observer,
            role=role,
        )


class FixedValue(_Strict):
    """Prescribed output parameters; ``range`` gives the grid that covers exactly the operator's output range."""

    scale: float | None = None
    zero_point: int | Literal["qmin"] | None = None
    range: tuple[float, float] | None = None

    @pydantic.model_validator(mode="after")
    def _one_of_both(self) -> FixedValue:
        if (self.scale is None) == (self.range is None) or (self.scale is not None and not self.scale > 0):
            raise ValueError("fixed parameters are a scale > 0 (and a zero_point), or a range")
        return self


class Slot(_Strict):
    """What an operator's input or output is quantized with: a type, its channel axis, or fixed parameters."""

    use: str | None = None
    axis: int | Literal["N"] | None = None
    variadic: bool = False
    fixed: FixedValue | None = None
    dtype: str | None = None
    symmetric: bool | None = None
    granularity: Literal["tensor", "channel"] | None = None


def _parse_slot(value: Any) -> Any:
    """``act`` | ``act...`` | ``wt@0`` | ``wt@N`` | ``-`` (not quantized), or a mapping."""
    if not isinstance(value, str):
        return value
    if value == "-":
        return Slot()
    variadic = value.endswith("...")
    name, _, axis = value.removesuffix("...").partition("@")
    parsed: int | str | None = None
    if axis:
        parsed = "N" if axis == "N" else int(axis)
    return {"use": name, "axis": parsed, "variadic": variadic}


SlotText = Annotated[Slot, BeforeValidator(_parse_slot)]


class OpRow(_Strict):
    """One operator: slots of its inputs and outputs, ties, and the attribute values that the row is for.

    `float_output`: the backend's kernel gives float by itself, so that a result that leaves the graph needs no pair.
    """

    inputs: tuple[SlotText, ...] = Field(default=(), alias="in")
    outputs: tuple[SlotText, ...] = Field(default=(), alias="out")
    tie: Literal["io", "in"] | None = None
    float_output: bool = False
    when: dict[str, Any] = {}

    def input_slot(self, index: int) -> Slot | None:
        """Slot of input `index`; a variadic last slot repeats."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.inputs and self.inputs[-1].variadic else None

    def output_slot(self, index: int) -> Slot | None:
        """Slot of output `index`; the last one repeats (Split)."""
        return self.outputs[min(index, len(self.outputs) - 1)] if self.outputs else None


def _parse_chain(value: Any) -> Any:
    return tuple(tuple(step.split("|")) if isinstance(step, str) else step for step in value)


class Chain(_Strict):
    """Operators that the backend fuses: tensors between them carry no Q/DQ.

    ``when: clip_is_redundant`` limits that to a Relu or Clip that the Q behind it already performs; otherwise, with
    ``else: tie``, the tensor between gets a pair that shares the parameters of the chain's output.
    """

    chain: Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_parse_chain)]
    when: Literal["always", "clip_is_redundant"] = "always"
    otherwise: Literal["tie", "float"] = Field(default="tie", alias="else")


class InputOutput(_Strict):
    """Whether graph inputs and outputs carry Q/DQ."""

    inputs: Literal["quantize", "float"] = "quantize"
    outputs: Literal["quantize", "float"] = "quantize"


class Backend(_Strict):
    """A backend table."""

    schema_version: Literal[1] = Field(alias="schema")
    backend: str
    description: str
    source: tuple[str, ...] = ()
    route: str | None = None
    extends: str | None = None
    opset: tuple[int, int]
    placement: Literal["both", "inputs"]
    io: InputOutput = InputOutput()
    types: dict[str, TypeRow]
    ops: dict[str, OpRow]
    passthrough: tuple[str, ...] = ()
    fused: tuple[Chain, ...] = ()
    first_last_bits: int | None = None
    session: dict[str, str] = {}

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Backend:
        for op, row in self.ops.items():
            for slot in (*row.inputs, *row.outputs):
                if slot.use is not None and slot.use not in self.types:
                    raise ValueError(f"ops.{op} uses type {slot.use!r}, which `types` does not define")
                if slot.dtype is not None and slot.dtype not in STORAGE:
                    raise ValueError(f"ops.{op} has dtype {slot.dtype!r}, which is none of {', '.join(STORAGE)}")
        if self.first_last_bits is not None and self.first_last_bits not in (0, *WIDTHS):
            raise ValueError(f"first_last_bits is {self.first_last_bits}, which is none of 0, 2 to 8, 16")
        chained = {o for c in self.fused for step in c.chain for o in step}
        for op in {*self.ops, *self.passthrough, *chained} - COMPOSITES:
            if ops.find("", op.partition("/")[0]) is None:
                raise ValueError(f"{op!r} is not an operator that onnxqat knows")
        return self


def names() -> list[str]:
    """Names of the built-in backends."""
    return sorted(p.stem.replace("_", "-") for p in FOLDER.glob("*.yaml"))


@functools.cache
def load(name: str) -> Backend:
    """The table called `name`, or the one in the YAML file at that path.

    Raises:
        BackendError: ``backend-unknown`` with close matches; ``backend-table`` naming file and key.
    """
    path = _find(name)
    raw = _merged(path, ())
    try:
        return Backend.model_validate(raw)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "table"
        raise BackendError("backend-table", f"{path}: {key}: {first['msg']}") from None


def _find(name: str, folder: Path = Path()) -> Path:
    if name.endswith((".yaml", ".yml")):
        path = folder / name
        if not path.is_file():
            raise BackendError("backend-unknown", f"{path}: no such backend table")
        return path
    path = FOLDER / f"{name.replace('-', '_')}.yaml"
    if not name.replace("-", "").replace("_", "").isalnum() or not path.is_file():
        known = discover.unknown("backend", name, names())
        raise BackendError("backend-unknown", known.message, hint=known.hint)
    return path


def _merged(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path in seen:
        raise BackendError("backend-table", f"{path}: extends: the tables extend each other in a circle")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        detail = str(error).splitlines()[0]
        raise BackendError("backend-table", f"{path}: not readable as YAML: {detail}") from None
    if not isinstance(raw, dict):
        raise BackendError("backend-table", f"{path}: a table is a mapping of keys")
    if not isinstance(raw.get("extends"), str):
        return raw
    return _overlay(_merged(_find(raw["extends"], path.parent), (*seen, path)), raw)


def _overlay(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _overlay(merged[key], value)
        else:
            merged[key] = value
    return merged


def describe(table: Backend) -> str:
    """`table` with everything that it inherits, as YAML; the given keys in their own order."""
    plain = table.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    plain["ops"] = {op: _row_text(row) for op, row in table.ops.items()}
    plain["fused"] = [
        c.model_dump(exclude_defaults=True, by_alias=True) | {"chain": _chain_text(c)} for c in table.fused
    ]
    return yaml.safe_dump(plain, sort_keys=False, width=120, default_flow_style=None).rstrip()


def _row_text(row: OpRow) -> dict[str, Any]:
    found = row.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    found |= {key: [_slot_text(s) for s in slots] for key, slots in (("in", row.inputs), ("out", row.outputs)) if slots}
    return found


def _slot_text(slot: Slot) -> Any:
    plain = slot.model_dump(mode="json", exclude_defaults=True)
    if set(plain) - {"use", "axis", "variadic"}:
        return plain
    if slot.use is None:
        return "-"
    return slot.use + ("" if slot.axis is None else f"@{slot.axis}") + ("..." if slot.variadic else "")


def _chain_text(chain: Chain) -> list[str]:
    return ["|".join(step) for step in chain.chain]
