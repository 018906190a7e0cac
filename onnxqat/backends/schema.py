"""Backend tables: the tensors that a compiler wants quantized, their types, and the operators that it fuses.

A table is one YAML file. ``extends: NAME`` (or a path, relative to the table's folder) starts from another table:
mappings are merged key by key (a key with the value null is removed), lists and scalars replace.

The classes are plain dataclasses: a table of this package, which the tests have validated, is read without pydantic,
whose import takes longer than placing. Any other is validated against these very annotations.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

import yaml

from onnxqat import arithmetic
from onnxqat.backends import equalizations, group_rules, shift_check, table_files, table_text
from onnxqat.backends.group_rules import GroupRule
from onnxqat.backends.limits import Limit
from onnxqat.errors import UsageError
from onnxqat.integer_functions import library as integer_functions
from onnxqat.ops import operators as ops
from onnxqat.types import FLOAT_STORAGE, STORAGE, QType, Role, TensorSpec

WIDTHS = (*range(2, 9), 16)
COMPOSITES = {"Silu", "Scale"}  # recognised patterns that a fused chain may name like an operator
SCALE_BITS = range(1, 25)
ACCURACY_LEVELS = range(5)  # of MatMulNBits: onnxruntime chooses, float32, float16, bfloat16, int8
FLOAT_OBSERVERS = ("auto", "minmax", "percentile")

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
    ``scale: pow2`` restricts scales to powers of two. `scale_bits` restricts them to that many significant bits at a
    width of 8, to one more for every two bits less, and leaves them free above 8 bits: products of short codes and
    short scales sum up without rounding (see :func:`onnxqat.numerics.shorten`).
    `reduce_range` keeps 8-bit weights in -64..63: CPUs without VNNI add pairs of u8 x s8 products in 16 bits, which
    saturates for larger weights; with `saturates` in its place, all codes are used, and only channels in which that can
    happen get a larger scale. A bias has `derive: in0*in1`: int32 codes with the product of its node's input
    scales, or with ``dtype: float`` float values on that grid; its `bits` are what the accumulator takes of the codes.
    With granularity ``block``, each `block` elements along the axis have a scale; where `whole_blocks` is set, nodes whose
    weight has a last block that is not full stay float. `unsigned` gives activations without a sign an unsigned twin.
    """

    dtype: str
    symmetric: bool = True
    granularity: Literal["tensor", "channel", "block"] = "tensor"
    block: int | None = None
    whole_blocks: bool = False
    unsigned: bool = False
    bits: int | None = None
    qrange: tuple[int, int] | None = None
    scale: Literal["any", "pow2"] = "any"
    scale_bits: int | None = None
    observer: str = "auto"
    reduce_range: bool = False
    saturates: bool = False
    derive: Literal["in0*in1"] | None = None

    def __post_init__(self) -> None:
        if self.dtype != "float" and self.dtype not in (*STORAGE, *FLOAT_STORAGE):
            raise ValueError(f"dtype {self.dtype!r} is none of float, {', '.join((*STORAGE, *FLOAT_STORAGE))}")
        if self.dtype == "int32" and self.derive is None:
            raise ValueError("int32 is for a bias with derive: in0*in1, QuantizeLinear has no such codes")
        if self.derive is not None and self.bits is not None and not 8 <= self.bits <= 32:
            raise ValueError(f"{self.bits} bits of a derived bias are not possible: 8 to 32")
        if self.derive is None and self.bits is not None and self.bits not in WIDTHS:
            raise ValueError(f"a width of {self.bits} bits is not possible: 2 to 8, or 16")
        if (self.granularity == "block") != (self.block is not None) or (self.block is not None and self.block < 2):
            raise ValueError("a block of at least 2 elements goes with granularity block, and only with it")
        if self.is_float and (not self.symmetric or self.bits is not None or self.qrange is not None or self.unsigned):
            raise ValueError(f"{self.dtype} is symmetric and has all its values")
        if self.is_float and self.observer not in FLOAT_OBSERVERS:
            raise ValueError(f"{self.observer} counts equal steps, which {self.dtype} has not")
        if self.unsigned and not (self.dtype.startswith("int") and self.symmetric):
            raise ValueError("only a signed symmetric type has an unsigned twin")
        if self.scale_bits is not None and self.scale_bits not in SCALE_BITS:
            raise ValueError(f"scale_bits is {self.scale_bits}, which is not in 1 to 24")
        if self.dtype != "float" and self.derive is None:
            grid = self.qtype()
            if grid.needs_clip and grid.storage in ("int2", "uint2", "int4", "uint4"):
                raise ValueError(f"a narrower grid does not go into {grid.storage}: ONNX has no Clip for it; use int8")

    @property
    def is_float(self) -> bool:
        """Check whether the codes are of a small float type instead of integers."""
        return self.dtype in FLOAT_STORAGE

    @property
    def observed(self) -> bool:
        """Check whether the tensor gets a pair of its own: not a bias that is derived or left float."""
        return self.derive is None and self.dtype != "float"

    def qtype(self) -> QType:
        """The grid of codes."""
        if self.is_float:
            return QType(self.dtype, -FLOAT_STORAGE[self.dtype], FLOAT_STORAGE[self.dtype])
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
        """The same type, `bits` wide, in the 8- or 16-bit storage of its sign; a type of 2 or 4 bits keeps its own."""
        if self.dtype in ("int2", "uint2", "int4", "uint4") and self.qtype().bits == bits:
            return self
        sign = "int" if self.dtype.startswith("int") else "uint"
        largest = 2 ** (bits - 1) - 1
        narrow = self.qrange is not None and self.qrange[0] == -self.qrange[1]
        qrange = (-largest, largest) if narrow else None
        return self.model_copy(update={"dtype": f"{sign}{16 if bits == 16 else 8}", "bits": bits, "qrange": qrange})

    def without_sign(self) -> TypeRow:
        """The unsigned twin with zero point 0, for values that are at least 0."""
        qrange = None if self.qrange is None else (0, 2 * self.qrange[1] + 1)
        return self.model_copy(update={"dtype": f"u{self.dtype}", "symmetric": False, "qrange": qrange})

    def _observer(self, role: Role) -> str:
        """Observer of a tensor in `role`; ``auto`` of weights and of wide or float types becomes minmax or mse."""
        if self.observer != "auto":
            return self.observer
        if self.is_float or self.qtype().bits > 8:
            return "minmax"  # such a grid loses next to nothing by being wide
        if role == "weight":
            return "mse" if self.qtype().bits < 7 else "minmax"
        return "auto"

    def spec(self, role: Role, axis: int | None = None) -> TensorSpec:
        """The tensor spec; `axis` counts only with granularity ``channel`` or ``block``."""
        granularity = self.granularity if axis is not None else "tensor"
        return TensorSpec(
            qtype=self.qtype(),
            symmetric=self.symmetric,
            granularity=granularity,
            axis=None if granularity == "tensor" else axis,
            scale_bits=self.scale_width(),
            observer=self._observer(role),
            role=role,
            block_size=self.block if granularity == "block" else None,
            saturates=self.saturates and self.dtype == "int8" and not self.reduce_range,
        )


@dataclasses.dataclass(frozen=True)
class FixedValue(_Row):
    """Prescribed output parameters; ``range`` gives the grid that covers exactly the operator's output range.

    A ``scale`` is one that the backend's kernel has built in: training does not move it.
    """

    scale: float | None = None
    zero_point: int | Literal["qmin"] | None = None
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if (self.scale is None) == (self.range is None) or (self.scale is not None and not self.scale > 0):
            raise ValueError("fixed parameters are a scale > 0 (and a zero_point), or a range")


@dataclasses.dataclass(frozen=True)
class Slot(_Row):
    """Quantization of an operator's input or output: a type, its channel axis, or fixed parameters.

    In a table ``act``, ``act...`` (every input from here on), ``wt@0``, ``wt@N`` (the output channel, whatever
    transposition), ``wt@K`` (the axis that is summed over), ``-`` (not quantized), or a mapping. `constants`: as in a row.
    """

    use: str | None = None
    axis: int | Literal["N", "K"] | None = None
    variadic: bool = False
    fixed: FixedValue | None = None
    dtype: str | None = None
    symmetric: bool | None = None
    unsigned: bool | None = None
    granularity: Literal["tensor", "channel"] | None = None
    constants: Literal["pair", "float"] = "pair"


@dataclasses.dataclass(frozen=True)
class OpRow(_Row):
    """One operator: slots of its inputs and outputs, tensors that share parameters, and the attribute values that the row is for.

    `float_output`: the backend's kernel gives float by itself, so that a result that leaves the graph needs no pair.
    `computed`: the row is for nodes without a constant among the inputs that it quantizes.
    `elementwise`: the compiler computes it in float, in one kernel with its neighbours: it reads a tensor on whatever grid
    its maker and its other readers want, and a tensor that only such operators read carries no pair.
    `constants`: ``float`` where the compiler folds a constant operand into the grid of the other one, so that it has none.
    `not_behind`: the row is not for a node that reads the result of one of these operators.
    `convert`: equal parameters are a must, so that an input with prescribed ones, or of another type, gets a second
    pair onto the common grid.
    `meets_ties`: the results, means or products, may lie half-way between two codes, see :mod:`onnxqat.passes.divide_averages`;
    with tie-free sums they get a grid of their own, whatever `share` says (:mod:`onnxqat.calibration.exact.tie_free_means`).
    """

    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    share: Literal["io", "in"] | None = None
    convert: bool = False
    computed: bool = False
    elementwise: bool = False
    constants: Literal["pair", "float"] = "pair"
    not_behind: tuple[str, ...] = ()
    float_output: bool = False
    meets_ties: bool = False
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
    ``else: share``, the tensor between gets a pair that shares the parameters of the chain's output.

    With ``inner: pair`` the result of the first operator has a pair of its own: what follows is a function of as many
    values as there are codes, which every formula for it rounds alike. `exact` is what ``--exact`` sets `inner` to.
    """

    chain: tuple[tuple[str, ...], ...]
    when: Literal["always", "clip_is_redundant"] = "always"
    otherwise: Literal["share", "float"] = "share"
    inner: Literal["no_pair", "pair"] = "no_pair"
    exact: Literal["no_pair", "pair"] = "no_pair"


@dataclasses.dataclass(frozen=True)
class InputOutput(_Row):
    """Q/DQ of graph inputs, graph outputs and probabilities that leave the graph: quantized or float.

    8 bits are coarse for a probability: a backend that can leave it in float should.
    """

    inputs: Literal["quantize", "float"] = "quantize"
    outputs: Literal["quantize", "float"] = "quantize"
    probabilities: Literal["quantize", "float"] = "float"


@dataclasses.dataclass(frozen=True)
class Check(_Row):
    """A limit of the backend's shifter: ``shift`` is a sum of positions (-log2 of a scale) that stays in `range`.

    Terms are ``in0``, ``in1``, ``in2``, ``out``, and ``max_in``, ``min_in``, ``sum_in`` over the inputs.
    """

    op: str
    shift: str
    range: tuple[int, int]

    def __post_init__(self) -> None:
        shift_check.parse(self.shift)
        if self.range[0] > self.range[1]:
            raise ValueError(f"the range {list(self.range)} is empty")

    @property
    def ops(self) -> tuple[str, ...]:
        """The operators that the limit is for."""
        return tuple(self.op.split("|"))

    @property
    def terms(self) -> tuple[tuple[int, str], ...]:
        """Signs and terms of the sum."""
        return shift_check.parse(self.shift)


@dataclasses.dataclass(frozen=True)
class Fact(_Row):
    """Source of the value of a key.

    `status`: ``run`` (observed with the toolchain itself), ``document`` (stated by the vendor), ``inferred``, or
    ``unverified`` (without a public source; a choice had to be made).
    """

    source: str
    status: Literal["run", "document", "inferred", "unverified"]
    note: str | None = None


ACCUMULATOR_BITS = range(8, 33)
"""Widths of accumulators that sums can be kept within; fewer hold no product of 4-bit codes."""


@dataclasses.dataclass(frozen=True)
class Backend(_Row):
    """A backend table.

    `first_last_bits` is the width of the first and last weighted layers (0: float), which `first_last_observer`
    observes: what suits few bits clips too much of 8. `pairs` says whether all consumers of a tensor read one pair, or
    each its own. Where `data_movement` is ``no_pair``, what only moves data (the operators of `passthrough`, and a Concat on one grid)
    carries no pair that repeats the grid of its inputs, since the compiler carries the grid on. Operators of
    `fused_residual_add` carry no pair where a sum alone reads their result: the compiler adds before it rounds. A MatMul and the Add of its
    bias have no pair between them; ``gemm`` makes them one Gemm. Operators of `claims` it runs on codes between any two pairs, with a weight that it rounds itself, so that one
    left in float has no pair behind it. `exact` is what ``--exact`` does: ``short`` scales, for kernels that add or
    multiply in float, or ``tie_free`` sums, for those with a fixed-point factor (:mod:`onnxqat.calibration.exact.tie_free_sums`); then
    it sets `sums`. `weight_only` names the table that quantizes weights alone for the same runtime, `dynamic` the one whose products quantize their data when the model runs, which says `dynamic_activations`. With `matmul_nbits`, an
    `accuracy_level`, products with stored weights become MatMulNBits in the deploy form. `groups` says what becomes of each kind of group. With `gather_codes`, rows of a quantized table are picked as codes there. With `permute_from_back`, a Gather that reorders channels names their axis from the back. With `written_attributes`, operators get the attributes that they leave at their defaults, for compilers that do not know them. With `float16`, the chip computes in float16 what has no pairs, so the guard may leave more there. `arithmetic` is what the integer kernels compute, where that is known to the last bit
    (:mod:`onnxqat.arithmetic`): training computes it. `limits` are what the compiler is known to stop at or to leave to the CPU. `equalize` names the equalizations that run where the user names none (:mod:`onnxqat.backends.equalizations`). `accepts` names the types of activations and of weights that the compiler takes,
    any where it says nothing; ``int8-symmetric`` is int8 without a zero point. `facts` gives the source of keys by path
    (``types.act``), for all below it too. `integer` names operators that become integer functions
    (:mod:`onnxqat.integer_functions`). `accumulator_bits` is the width that sums of products have to stay within for any input. `former_keys` says which names of earlier releases the table was read from.
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
    pairs: Literal["tensor", "consumer"] = "tensor"
    data_movement: Literal["pair", "no_pair"] = "pair"
    fused_residual_add: tuple[str, ...] = ()
    matmul_bias: Literal["add", "gemm"] = "add"
    groups: dict[str, GroupRule] = dataclasses.field(default_factory=dict)
    claims: tuple[str, ...] = ()
    exact: Literal["short", "tie_free"] = "short"
    sums: Literal["any", "tie_free"] = "any"
    checks: tuple[Check, ...] = ()
    limits: tuple[Limit, ...] = ()
    weight_only: str | None = None
    dynamic: str | None = None
    dynamic_activations: bool = False
    matmul_nbits: int | None = None
    gather_codes: bool = False
    permute_from_back: bool = False
    written_attributes: bool = False
    float16: bool = False
    arithmetic: str | None = None
    accepts: dict[Literal["activations", "weights"], tuple[str, ...]] = dataclasses.field(default_factory=dict)
    facts: dict[str, Fact] = dataclasses.field(default_factory=dict)
    first_last_bits: int | None = None
    first_last_observer: str = "auto"
    equalize: tuple[str, ...] = ("auto",)
    session: dict[str, str] = dataclasses.field(default_factory=dict)
    former_keys: tuple[str, ...] = ()
    integer: tuple[str, ...] = ()
    accumulator_bits: int | None = None

    def __post_init__(self) -> None:
        for op, row in self.ops.items():
            for slot in (*row.inputs, *row.outputs):
                if slot.use is not None and slot.use not in self.types:
                    raise ValueError(f"ops.{op} uses type {slot.use!r}, which `types` does not define")
                if slot.dtype is not None and slot.dtype not in STORAGE:
                    raise ValueError(f"ops.{op} has dtype {slot.dtype!r}, which is none of {', '.join(STORAGE)}")
        group_rules.check(self.groups)
        if self.matmul_nbits is not None and self.matmul_nbits not in ACCURACY_LEVELS:
            raise ValueError(f"matmul_nbits is {self.matmul_nbits}; accuracy levels are 0 to 4")
        if self.arithmetic is not None and self.arithmetic not in arithmetic.names():
            known = ", ".join(arithmetic.names())
            raise ValueError(f"arithmetic {self.arithmetic!r} is none of {known}")
        for operator in self.integer:
            if operator not in integer_functions.kinds():
                known = ", ".join(integer_functions.kinds())
                raise ValueError(f"integer names {operator!r}, which is none of {known}")
        if self.accumulator_bits is not None and self.accumulator_bits not in ACCUMULATOR_BITS:
            raise ValueError(f"accumulator_bits is {self.accumulator_bits}; accumulators have 8 to 32 bits")
        if self.first_last_bits is not None and self.first_last_bits not in (0, *WIDTHS):
            raise ValueError(f"first_last_bits is {self.first_last_bits}, which is none of 0, 2 to 8, 16")
        try:
            equalizations.choices(self.equalize)
        except UsageError as error:
            raise ValueError(f"equalize: {error.message}; {error.hint}") from None
        chained = {o for c in self.fused for step in c.chain for o in step}
        checked = {o for row in (self.checks, self.limits) for check in row for o in check.ops}
        checked |= {o for limit in self.limits for o in limit.producers}
        placed = {*self.ops, *self.passthrough, *self.fused_residual_add, *self.claims}
        for op in (placed | chained | checked) - COMPOSITES:
            if ops.find("", op.partition("/")[0]) is None:
                raise ValueError(f"{op!r} is not an operator that onnxqat knows")


def names() -> list[str]:
    """Names of the built-in backends."""
    return table_files.names()


def stated(name: str) -> dict[str, Any]:
    """Keys of the table's own file, without inherited ones; `name` as for :func:`load`."""
    return table_files.read(table_files.find(name))


@functools.cache
def load(name: str) -> Backend:
    """The table called `name`, of this package or by an entry point, or the one in the YAML file at that path.

    Raises:
        BackendError: ``backend-unknown`` with close matches, or with the reason why there can be none;
            ``backend-table`` naming file and key.
    """
    path = table_files.find(name)
    fields = table_text.fields(table_files.merged(path))
    if path.parent == table_files.FOLDER:
        return _built(fields)
    from onnxqat.backends import validation

    return validation.validated(Backend, fields, str(path))


def _op_row(row: dict[str, Any]) -> OpRow:
    slots: dict[str, Any] = {side: tuple(map(_slot, row[side])) for side in ("inputs", "outputs") if side in row}
    return OpRow(**_tuples(row) | slots)


def _built(table: dict[str, Any]) -> Backend:
    """A table of this package from its fields, lists become tuples."""
    fused = (Chain(**row | {"chain": tuple(map(tuple, row["chain"]))}) for row in table.get("fused", ()))
    parts = {
        "types": {name: TypeRow(**_tuples(row)) for name, row in table["types"].items()},
        "ops": {op: _op_row(row) for op, row in table["ops"].items()},
        "fused": tuple(fused),
        "checks": tuple(Check(**_tuples(row)) for row in table.get("checks", ())),
        "limits": tuple(Limit(**row) for row in table.get("limits", ())),
        "facts": {key: Fact(**fact) for key, fact in table.get("facts", {}).items()},
        "io": InputOutput(**table.get("io", {})),
        "accepts": _tuples(table.get("accepts", {})),
    }
    return Backend(**_tuples(table) | parts)


def _slot(fields: dict[str, Any]) -> Slot:
    fixed = {"fixed": FixedValue(**_tuples(fields["fixed"]))} if "fixed" in fields else {}
    return Slot(**fields | fixed)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def describe(table: Backend) -> str:
    """YAML of `table` with inherited keys written out, so that it extends nothing; unverified facts come first."""
    found = table_text.keys(table.model_copy(update={"extends": None}))
    text = yaml.safe_dump(found, sort_keys=False, width=120, default_flow_style=None, allow_unicode=True).rstrip()
    heading = [] if table.extends is None else [f"# with all that it takes over from {table.extends}"]
    open_ones = [f"#   {key}: {fact.note or fact.source}" for key, fact in unverified(table).items()]
    if open_ones:
        heading += ["# unverified, since nothing public says it:", *open_ones]
    return "\n".join([*heading, text])


def unverified(table: Backend) -> dict[str, Fact]:
    """The facts of `table` that rest on nothing published."""
    return {key: fact for key, fact in table.facts.items() if fact.status == "unverified"}


def as_json(table: Backend) -> dict[str, Any]:
    """Every field of `table`, under the keys that a table has, for json.dumps."""
    return table_text.keys(table, brief=False)
