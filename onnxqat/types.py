"""The words of the toolchain as frozen data: what a quantizer is and what a plan decides.

A tensor's treatment is one of five things: quantized with a :class:`TensorSpec`, shared with a group
(:class:`Shared`), :class:`Fixed`, :class:`Derived` (a bias), or left :class:`Float` with a reason.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

Granularity = Literal["tensor", "channel", "block"]
Role = Literal["activation", "weight", "bias"]

STORAGE: dict[str, tuple[int, int, int]] = {
    # ONNX type: (smallest code, largest code, first opset whose QuantizeLinear writes it)
    "int2": (-2, 1, 25),
    "uint2": (0, 3, 25),
    "int4": (-8, 7, 21),
    "uint4": (0, 15, 21),
    "int8": (-128, 127, 10),
    "uint8": (0, 255, 10),
    "int16": (-32768, 32767, 21),
    "uint16": (0, 65535, 21),
    "int32": (-(2**31), 2**31 - 1, 10),
}

FLOAT_STORAGE: dict[str, int] = {
    # ONNX type: largest value; the codes of such a grid are its values
    "float8e4m3fn": 448,
    "float8e4m3fnuz": 240,
    "float8e5m2": 57344,
    "float8e5m2fnuz": 57344,
    "float4e2m1": 6,
}
Precision = Literal["float32", "float16", "bfloat16"]


def first_opset(storage: str) -> int:
    """First opset whose QuantizeLinear writes the ONNX type `storage`."""
    if storage in FLOAT_STORAGE:
        return 23 if storage == "float4e2m1" else 19
    return STORAGE[storage][2]


@dataclasses.dataclass(frozen=True)
class QType:
    """A grid: codes ``quant_min..quant_max``, held in the ONNX type `storage`; of a float type all its values.

    An integer grid narrower than its storage is written as ``QuantizeLinear -> Clip -> DequantizeLinear``.
    """

    storage: str
    quant_min: int
    quant_max: int

    def __post_init__(self) -> None:
        if self.storage in FLOAT_STORAGE:
            if (self.quant_min, self.quant_max) != (-FLOAT_STORAGE[self.storage], FLOAT_STORAGE[self.storage]):
                raise ValueError(f"a grid of {self.storage} has all its values")
            return
        if self.storage not in STORAGE:
            raise ValueError(f"unknown storage type {self.storage!r}; one of {', '.join(STORAGE)}")
        low, high, _ = STORAGE[self.storage]
        if not low <= self.quant_min < self.quant_max <= high:
            raise ValueError(f"codes {self.quant_min}..{self.quant_max} do not fit {self.storage}")

    @property
    def is_float(self) -> bool:
        """Check whether the codes are the values of a small float type."""
        return self.storage in FLOAT_STORAGE

    @property
    def computed_type(self) -> type[np.float32] | type[np.int64]:
        """Numpy type that codes are converted to before they are computed with; that of the storage would overflow."""
        return np.float32 if self.is_float else np.int64

    @property
    def signed(self) -> bool:
        """Check whether the storage type has negative codes."""
        return self.is_float or STORAGE[self.storage][0] < 0

    @property
    def needs_clip(self) -> bool:
        """Check whether the grid is narrower than the range that QuantizeLinear saturates to."""
        return not self.is_float and (self.quant_min, self.quant_max) != STORAGE[self.storage][:2]

    @property
    def middle(self) -> int:
        """Zero point of a symmetric quantizer: 0 on signed grids, the middle (128 for uint8) on unsigned ones."""
        return 0 if self.quant_min < 0 else (self.quant_max + 1) // 2

    @property
    def bits(self) -> int:
        """Width of the smallest two's complement or unsigned integer that holds every code; of a float its own."""
        if self.is_float:
            return 4 if self.storage == "float4e2m1" else 8
        if self.quant_min < 0:
            return max((-self.quant_min - 1).bit_length(), self.quant_max.bit_length()) + 1
        return self.quant_max.bit_length()

    @staticmethod
    def of(bits: int, *, signed: bool, narrow: bool = False, storage: str | None = None) -> QType:
        """The full (or, when `narrow`, symmetric ``-n..n``) grid of `bits` bits, 2 to 8 or 16.

        The storage type defaults to the 8- or 16-bit carrier, which every opset from 10 (21 for 16 bits) has.
        """
        if not (2 <= bits <= 8 or bits == 16):
            raise ValueError(f"width of {bits} bits; onnxqat quantizes to 2..8 or 16 bits")
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        if narrow and signed:
            low = -high
        carrier = ("int" if signed else "uint") + ("16" if bits == 16 else "8")
        return QType(storage or carrier, low, high)


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Scheme of a quantizer: all that it is beside the numbers in its scale and zero point.

    Attributes:
        qtype: the grid.
        symmetric: zero point fixed to the middle of the grid (0 for signed grids).
        axis: the channel axis, or the axis that is cut into blocks; None for one scale per tensor.
        scale_bits: significant bits of a scale; 1 restricts scales to powers of two, None does not restrict them.
        block_size: elements along `axis` that share a scale, the last block may have fewer; None without blocks.
        precision: what ``x / scale`` is rounded to before it is rounded to a code.
    """

    qtype: QType
    symmetric: bool = True
    _: dataclasses.KW_ONLY
    axis: int | None = None
    scale_bits: int | None = None
    block_size: int | None = None
    precision: Precision = "float32"

    @property
    def codes_above(self) -> int:
        """Codes above zero: of the whole grid for an asymmetric quantizer, of its upper half for a symmetric one."""
        return self.qtype.quant_max - (self.qtype.middle if self.symmetric else self.qtype.quant_min)

    @property
    def is_integer(self) -> bool:
        """Check whether codes are integers with one scale per tensor or channel."""
        return not self.qtype.is_float and not self.block_size

    def but(self, **changes: Any) -> Scheme:
        """This scheme with other values for the fields in `changes`; of a subclass its scheme alone."""
        return Scheme(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Scheme)} | changes)


@dataclasses.dataclass(frozen=True)
class TensorSpec(Scheme):
    """Quantization of one tensor, before any range is known: its :class:`Scheme` and how a range is found.

    Attributes:
        granularity: one scale per tensor, per slice along `axis`, or per `block_size` elements along it.
        observer: name of the range observer, or the path of a file with one.
        role: role of the tensor for its consumer.
        saturates: of a weight, whether kernels of the target add its products in pairs of 16 bits, so that scales are
            raised where these could saturate (:mod:`onnxqat.calibration.saturation`).
    """

    granularity: Granularity = "tensor"
    observer: str = "minmax"
    role: Role = "activation"
    saturates: bool = False

    def __post_init__(self) -> None:
        if (self.granularity == "tensor") != (self.axis is None):
            raise ValueError("a channel axis goes with granularity 'channel', and only with it")
        if (self.granularity == "block") != (self.block_size is not None):
            raise ValueError("a block size goes with granularity 'block', and only with it")


@dataclasses.dataclass(frozen=True, eq=False)
class QParams:
    """Known quantization parameters of a tensor.

    Attributes:
        scale: float32, shape () per tensor or (C,) per channel; finite and > 0. In blocks it has the tensor's rank and
            may be negative: onnxruntime gives the largest value of a block the code -8.
        zero_point: int64 codes of the same shape.
        qtype, axis, scale_bits, block_size, precision: as in :class:`Scheme`.
    """

    scale: FloatArray
    zero_point: IntArray
    qtype: QType
    axis: int | None = None
    scale_bits: int | None = None
    block_size: int | None = None
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        scale = np.asarray(self.scale, np.float32)
        zero_point = np.asarray(self.zero_point, np.int64)
        fits = scale.ndim > (self.axis or 0) if self.block_size else scale.ndim == (self.axis is not None)
        if scale.shape != zero_point.shape or not fits or (self.block_size and self.axis is None):
            raise ValueError(f"scale {scale.shape} and zero point {zero_point.shape} do not fit axis {self.axis}")
        if not (np.isfinite(scale).all() and (np.abs(scale) if self.block_size else scale > 0).all()):
            raise ValueError("a scale must be finite and > 0")
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "zero_point", zero_point)

    @staticmethod
    def of(scale: FloatArray, zero_point: IntArray, scheme: Scheme) -> QParams:
        """Parameters `scale` and `zero_point` of a quantizer that has `scheme`."""
        s = scheme
        return QParams(scale, zero_point, s.qtype, s.axis, s.scale_bits, s.block_size, s.precision)

    @property
    def scheme(self) -> Scheme:
        """The scheme; symmetric where every zero point lies in the middle of the grid."""
        return Scheme(
            self.qtype,
            bool((self.zero_point == self.qtype.middle).all()),
            axis=self.axis,
            scale_bits=self.scale_bits,
            block_size=self.block_size,
            precision=self.precision,
        )

    def same(self, other: QParams) -> bool:
        """Check whether both describe the same quantizer, bit for bit."""
        return (
            self.qtype == other.qtype
            and (self.axis, self.block_size, self.precision) == (other.axis, other.block_size, other.precision)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )


@dataclasses.dataclass(frozen=True)
class Shared:
    """Shared parameters of the group whose root tensor is `root`: one scale, one zero point, one merged range."""

    root: str


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Parameters prescribed by the operator or the backend (softmax, sigmoid, tanh outputs).

    `prescribed`: the backend's kernel has them built in, so that training must not move them either.
    """

    qparams: QParams
    prescribed: bool = False


@dataclasses.dataclass(frozen=True)
class Derived:
    """A bias: int32, zero point 0, ``scale = scale[activation] * scale[weight]`` exactly (float32 product).

    With ``storage="float"`` the values are snapped to that grid but stay float: a runtime that turns a float
    bias into int32 by itself then changes nothing. `bits` is what the backend's accumulator keeps of the codes.
    """

    activation: str
    weight: str
    storage: Literal["int32", "float"] = "int32"
    bits: int = 32


@dataclasses.dataclass(frozen=True)
class Float:
    """Left in float, with the reason that the report prints."""

    reason: str


Decision: TypeAlias = "TensorSpec | Shared | Fixed | Derived | Float"


@dataclasses.dataclass(frozen=True)
class Edge:
    """The consumers of a tensor that read its quantized form.

    `consumers` are (node name, input index); None stands for every consumer, graph output included.
    """

    tensor: str
    decision: Decision
    rule: str
    consumers: tuple[tuple[str, int], ...] | None = None


Concern: TypeAlias = Literal["result", "note", "detail"]


@dataclasses.dataclass(frozen=True)
class Remark:
    """One thing worth telling the user: what, where and why.

    Attributes:
        message: one line.
        nodes: names of the nodes or tensors concerned.
        source: what says it.
        concern: ``result``, what changes the result or what it is worth; ``note``, what may be worth knowing;
            ``detail``, a rewrite by a pass, which a terminal lists with ``-v``.
    """

    message: str
    nodes: tuple[str, ...] = ()
    source: str = ""
    concern: Concern = "note"


@dataclasses.dataclass(frozen=True)
class RedundantClip:
    """A Relu or Clip between an operator and its quantizer that a backend drops only where the quantizer repeats it.

    Where ``[low, high]`` turns out narrower than what the parameters of `output` can represent, `interior` gets a
    pair of its own that shares the parameters of `output`.
    """

    interior: str
    output: str
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class SaturatingRange:
    """Values of `tensor` outside ``[low, high]`` are all the same to its consumers, which saturate there."""

    tensor: str
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class ShiftLimit:
    """Limit of a backend's shifter: ``low <= sum of signed positions <= high``, position = ``-log2(scale)``.

    Attributes:
        node: name of the node.
        terms: (sign, what): ``in0``, ``in1``, ``in2``, ``out``, ``max_in``, ``min_in`` or ``sum_in``.
        inputs: names of the node's input tensors, "" for one that is absent.
        output: the tensor that carries the output's parameters, behind a fused activation.
        low: smallest sum.
        high: largest sum.
    """

    node: str
    terms: tuple[tuple[int, str], ...]
    inputs: tuple[str, ...]
    output: str
    low: int
    high: int


@dataclasses.dataclass(frozen=True)
class TieFreeMean:
    """A node whose results, means or products of codes, may lie half-way between two codes.

    `output` is the tensor that is quantized behind it.
    """

    node: str
    inputs: tuple[str, ...]
    output: str


@dataclasses.dataclass(frozen=True)
class QuantPlan:
    """Decision for every edge of a graph, made from a backend table.

    `bare`: tensors on the grid of the tensor that they were moved from, without a pair of their own. `tie_free_sums`: see
    :mod:`onnxqat.calibration.exact.tie_free_sums`. `tie_free_means`: see :mod:`onnxqat.calibration.exact.tie_free_means`.
    """

    backend: str
    edges: tuple[Edge, ...]
    redundant_clips: tuple[RedundantClip, ...] = ()
    useful_ranges: tuple[SaturatingRange, ...] = ()
    remarks: tuple[Remark, ...] = ()
    float_nodes: tuple[tuple[str, str], ...] = ()
    shift_limits: tuple[ShiftLimit, ...] = ()
    bare: tuple[str, ...] = ()
    tie_free_sums: bool = False
    tie_free_means: tuple[TieFreeMean, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """One quantizer to insert: an edge of a plan whose parameters are known.

    Attributes:
        tensor: name of the float tensor.
        qparams: its parameters.
        rule: the rule behind it, for the node metadata.
        consumers: (node name, input index) that read the dequantized tensor; None for all, graph output included.
        group: root of the tie group; quantizers of one group share their scale and zero point constants.
        prescribed: nothing may change the parameters, see :class:`Fixed`.
    """

    tensor: str
    qparams: QParams
    rule: str
    consumers: tuple[tuple[str, int], ...] | None = None
    group: str | None = None
    prescribed: bool = False


@dataclasses.dataclass(frozen=True)
class BiasPlacement:
    """One bias to put on the grid of its node's accumulator."""

    node: str
    storage: Literal["int32", "float"]
    rule: str
