"""Backend tables: what a compiler wants quantized, with which types, and what it fuses.

A table is one YAML file. ``extends: NAME`` starts from another table: mappings are merged key by key (a key with the
value null is removed), lists and scalars replace. In place of a name may stand a path, relative to the table's folder.
Every error names the file and the key.

The classes are plain dataclasses: a table of this package, which the tests have validated, is read without pydantic,
whose import takes longer than placing. Any other is validated against these very annotations.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import yaml

from onnxqat import discover
from onnxqat.backends import _text
from onnxqat.errors import BackendError
from onnxqat.ops import _base as ops
from onnxqat.types import STORAGE, QType, Role, TensorSpec

FOLDER = Path(__file__).parent
WIDTHS = (*range(2, 9), 16)
COMPOSITES = {"Silu"}  # recognised patterns that a fused chain may name like an operator
SCALE_BITS = range(1, 25)
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is libyaml's, ten times as fast

T = TypeVar("T", bound="_Row")


class _Row:
    """A part of a table."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    def model_copy(self: T, *, update: Mapping[str, object]) -> T:
        """The same with some fields changed, unchecked."""
        made = copy.copy(self)
        made.__dict__.update(update)
        return made


@dataclasses.dataclass(frozen=True)
class TypeRow(_Row):
    """A named tensor type.

    `dtype` is the ONNX storage type or ``float``; `bits` below the storage width gives a narrower grid inside it.
    ``scale: pow2`` restricts scales to powers of two. `scale_bits` restricts them to so many significant bits at a
    width of 8, to one more for every two bits less, and leaves them free above 8 bits: products of short codes and
    short scales sum up without rounding (see :func:`onnxqat.numerics.shorten`).
    `reduce_range` keeps 8-bit weights in -64..63: CPUs without VNNI add pairs of u8 x s8 products in 16 bits, which
    saturates for larger weights. A bias has `derive: in0*in1`: int32 codes with the product of its node's input
    scales, or with ``dtype: float`` float values on that grid.
    """

    dtype: str
    symmetric: bool = True
    granularity: Literal["tensor", "channel"] = "tensor"
    bits: int | None = None
    qrange: tuple[int, int] | None = None
    scale: Literal["any", "pow2"] = "any"
    scale_bits: int | None = None
    observer: str = "minmax"
    reduce_range: bool = False
    derive: Literal["in0*in1"] | None = None

    def __post_init__(self) -> None:
        if self.dtype != "float" and self.dtype not in STORAGE:
            raise ValueError(f"dtype {self.dtype!r} is none of float, {', '.join(STORAGE)}")
        if self.bits is not None and self.bits not in WIDTHS:
            raise ValueError(f"a width of {self.bits} bits is not possible: 2 to 8, or 16")
        if self.scale_bits is not None and self.scale_bits not in SCALE_BITS:
            raise ValueError(f"scale_bits is {self.scale_bits}, which is not in 1 to 24")
        if self.dtype != "float" and self.derive is None:
            grid = self.qtype()
            if grid.needs_clip and grid.storage in ("int2", "uint2", "int4", "uint4"):
                raise ValueError(f"a narrower grid does not go into {grid.storage}: ONNX has no Clip for it; use int8")

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

    def scale_width(self) -> int | None:
        """Significant bits of a scale of this type, None for any scale."""
        if self.scale == "pow2":
            return 1
        width = self.qtype().bits
        return None if self.scale_bits is None or width > 8 else min(self.scale_bits + (8 - width) // 2, 24)

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
            scale_bits=self.scale_width(),
            observer=self.observer,
            role=role,
        )


@dataclasses.dataclass(frozen=True)
class FixedValue(_Row):
    """Prescribed output parameters; ``range`` gives the grid that covers exactly the operator's output range."""

    scale: float | None = None
    zero_point: int | Literal["qmin"] | None = None
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if (self.scale is None) == (self.range is None) or (self.scale is not None and not self.scale > 0):
            raise ValueError("fixed parameters are a scale > 0 (and a zero_point), or a range")


@dataclasses.dataclass(frozen=True)
class Slot(_Row):
    """What an operator's input or output is quantized with: a type, its channel axis, or fixed parameters.

    In a table ``act``, ``act...`` (every input from here on), ``wt@0``, ``wt@N`` (the output channel, whatever
    transposition), ``-`` (not quantized), or a mapping.
    """

    use: str | None = None
    axis: int | Literal["N"] | None = None
    variadic: bool = False
    fixed: FixedValue | None = None
    dtype: str | None = None
    symmetric: bool | None = None
    granularity: Literal["tensor", "channel"] | None = None


@dataclasses.dataclass(frozen=True)
class OpRow(_Row):
    """One operator: slots of its inputs and outputs, ties, and the attribute values that the row is for.

    `float_output`: the backend's kernel gives float by itself, so that a result that leaves the graph needs no pair.
    """

    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    tie: Literal["io", "in"] | None = None
    float_output: bool = False
    when: dict[str, Any] = dataclasses.field(default_factory=dict)

    def input_slot(self, index: int) -> Slot | None:
        """Slot of input `index`; a variadic last slot repeats."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.inputs and self.inputs[-1].variadic else None

    def output_slot(self, index: int) -> Slot | None:
        """Slot of output `index`; the last one repeats (Split)."""
        return self.outputs[min(index, len(self.outputs) - 1)] if self.outputs else None


@dataclasses.dataclass(frozen=True)
class Chain(_Row):
    """Operators that the backend fuses: tensors between them carry no Q/DQ.

    ``when: clip_is_redundant`` limits that to a Relu or Clip that the Q behind it already performs; otherwise, with
    ``else: tie``, the tensor between gets a pair that shares the parameters of the chain's output.
    """

    chain: tuple[tuple[str, ...], ...]
    when: Literal["always", "clip_is_redundant"] = "always"
    otherwise: Literal["tie", "float"] = "tie"


@dataclasses.dataclass(frozen=True)
class InputOutput(_Row):
    """Whether graph inputs and outputs carry Q/DQ."""

    inputs: Literal["quantize", "float"] = "quantize"
    outputs: Literal["quantize", "float"] = "quantize"


@dataclasses.dataclass(frozen=True)
class Backend(_Row):
    """A backend table.

    `first_last_bits` is the width of the first and last weighted layers (0: float); they are observed by
    `first_last_observer`, since what suits the few bits of the other layers clips too much of 8.
    """

    schema_version: Literal[1]
    backend: str
    description: str
    opset: tuple[int, int]
    placement: Literal["both", "inputs"]
    types: dict[str, TypeRow]
    ops: dict[str, OpRow]
    source: tuple[str, ...] = ()
    route: str | None = None
    extends: str | None = None
    io: InputOutput = InputOutput()
    passthrough: tuple[str, ...] = ()
    fused: tuple[Chain, ...] = ()
    first_last_bits: int | None = None
    first_last_observer: str = "minmax"
    session: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
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
    fields = _text.fields(_merged(path, ()))
    if path.parent == FOLDER:
        return _built(fields)
    from onnxqat.backends import _validation

    return _validation.validated(Backend, fields, str(path))


def _built(table: dict[str, Any]) -> Backend:
    """A table of this package from its fields, lists become tuples."""
    rows = {
        op: OpRow(**row | {side: tuple(map(_slot, row[side])) for side in ("inputs", "outputs") if side in row})
        for op, row in table["ops"].items()
    }
    fused = (Chain(**row | {"chain": tuple(map(tuple, row["chain"]))}) for row in table.get("fused", ()))
    parts = {
        "types": {name: TypeRow(**_tuples(row)) for name, row in table["types"].items()},
        "ops": rows,
        "fused": tuple(fused),
        "io": InputOutput(**table.get("io", {})),
    }
    return Backend(**_tuples(table) | parts)


def _slot(fields: dict[str, Any]) -> Slot:
    fixed = {"fixed": FixedValue(**_tuples(fields["fixed"]))} if "fixed" in fields else {}
    return Slot(**fields | fixed)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


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
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
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
    """`table` with everything that it inherits, as YAML."""
    return yaml.safe_dump(_text.keys(table), sort_keys=False, width=120, default_flow_style=None).rstrip()


def as_json(table: Backend) -> dict[str, Any]:
    """Every field of `table`, under the keys that a table has, for json.dumps."""
    return _text.keys(table, brief=False)
