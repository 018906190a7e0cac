"""Base of integer functions: what one states, and the parts that are the same for all of them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from onnxqat.integer_functions.operations import ArrayOperations, Integers, Operations, Runs
from onnxqat.integer_functions.tracing import Stage, Tracer, kind_of
from onnxqat.types import STORAGE

DOMAIN = "onnxqat.integer"
VERSION = 1

Constants = dict[str, npt.NDArray[np.int64]]
Bounds = dict[str, tuple[int, int]]


def as_constants(found: Mapping[str, Any]) -> Constants:
    """Whole numbers by their names, as the arrays of int64 that functions take."""
    return {name: np.asarray(value, np.int64) for name, value in found.items()}


@dataclasses.dataclass(frozen=True)
class CodeGrid:
    """Grid of the codes that a function reads or gives, one for the whole tensor.

    Attributes:
        scale: of float32, as a Python number.
        zero_point: code of zero.
        storage: ONNX type of the codes.
    """

    scale: float
    zero_point: int
    storage: str

    @property
    def low(self) -> int:
        """Smallest code."""
        return STORAGE[self.storage][0]

    @property
    def high(self) -> int:
        """Largest code."""
        return STORAGE[self.storage][1]

    def values(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Dequantized `codes`, in float64."""
        return (codes.astype(np.float64) - self.zero_point) * self.scale


@dataclasses.dataclass(frozen=True)
class Call:
    """The demand of one place in a graph on a function.

    Attributes:
        axes: the axes along which rows lie.
        length: elements of a row; 1 for functions of single elements.
        parameters: float weights of the operator, such as gamma and beta.
        attributes: of the float operator, such as ``epsilon``.
        others: grids of the operands behind the first, of a function of several.
    """

    axes: tuple[int, ...] = (-1,)
    length: int = 1
    parameters: Mapping[str, npt.NDArray[np.float64]] = dataclasses.field(default_factory=dict)
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    others: tuple[CodeGrid, ...] = ()

    @property
    def keeps_axes(self) -> bool:
        """Check whether a reduction keeps its axes with length 1."""
        return bool(self.attributes.get("keepdims", 1))

    def check_length(self, longest: int) -> None:
        """Raise ValueError for rows of more than `longest` elements."""
        if self.length > longest:
            raise ValueError(f"a row has {self.length} elements, and at most {longest} are summed in integers")

    def number(self, name: str, default: float) -> float:
        """Return a float attribute of the operator."""
        value = self.attributes.get(name)
        return default if value is None else float(value)


class IntegerFunction(abc.ABC):
    """An operator of codes, as one formula that numpy and torch compute and that is written down in ONNX.

    Args:
        x: ONNX type of the codes that it reads, the same for all operands.
        y: ONNX type of the codes that it gives.

    Attributes:
        operator: name of the float operator, by which the function is called in a file.
        domain: of the float operator.
        mode: attribute ``mode`` of the float operator, where it is the function of one mode alone.
        parts: operators that a float graph has in its place, where there is none of its name.
        operands: how many tensors of codes it reads.
        is_variadic: whether a call may have any number of operands, which is then part of the function's name.
        rows: whether it works on rows along axes.
        weights: float parameters of the operator, which become integer inputs of the function.
        attributes: those of the operator that change its numbers, which a call keeps.
        has_axis: whether the float operator says in its attribute ``axis`` along which axis rows lie.
        reduces: whether it is a reduction, which says its axes in an attribute or an input, and may drop them.
        since: first opset whose float operator has the form that is computed.
        has_tables: whether the class takes the size of a table, ``lut``.
    """

    operator: ClassVar[str]
    domain: ClassVar[str] = ""
    mode: ClassVar[str | None] = None
    parts: ClassVar[tuple[str, ...]] = ()
    operands: int = 1
    is_variadic: ClassVar[bool] = False
    rows: ClassVar[bool] = False
    weights: tuple[str, ...] = ()
    attributes: ClassVar[tuple[str, ...]] = ()
    has_axis: ClassVar[bool] = True
    reduces: ClassVar[bool] = False
    since: ClassVar[int] = 1
    has_tables: ClassVar[bool] = False

    def __init__(self, x: str, y: str) -> None:
        self.x, self.y = x, y

    @property
    def name(self) -> str:
        """Name of the function in a file: one for each pair of types, and each number of operands."""
        return f"{self.operator}{self.operands if self.is_variadic else ''}_{self.x}_{self.y}"

    @property
    def takes_tuple(self) -> bool:
        """Check whether :meth:`formula` takes a tuple of codes."""
        return self.is_variadic or self.operands > 1

    @property
    def operand_names(self) -> tuple[str, ...]:
        """Names of the inputs that are codes."""
        return ("x", *(f"x_{index}" for index in range(2, self.operands + 1)))

    @property
    def reads_wide(self) -> bool:
        """Check whether codes of more than 8 bits are read."""
        return self.span_of_codes > 255

    @property
    def is_wide(self) -> bool:
        """Check whether codes of more than 8 bits are read or given, which need finer stages."""
        return any(STORAGE[kind][1] - STORAGE[kind][0] > 255 for kind in (self.x, self.y))

    @classmethod
    def axes_of(cls, attributes: Mapping[str, Any], rank: int | None) -> tuple[int, ...]:
        """Return the axes of rows of a float operator with these attributes, on a tensor of `rank` dimensions.

        Nothing where they hang on a rank that is unknown, or there are none.
        """
        del rank
        return (int(attributes.get("axis", -1)),)

    def float_form(self, attributes: Mapping[str, Any]) -> tuple[dict[str, Any], list[npt.NDArray[Any] | None]]:
        """Return attributes of the float operator for those of a call, and further inputs that it has in their place."""
        return dict(attributes), []

    @abc.abstractmethod
    def bounds(self) -> Bounds:
        """Smallest and largest value of each constant, in the order in which they are inputs behind the codes."""

    @abc.abstractmethod
    def constants(self, x: CodeGrid, y: CodeGrid, call: Call) -> Constants:
        """Integer inputs of the function for these grids: scalars, or one-dimensional arrays."""

    def constants_of(self, grids: Sequence[CodeGrid], y: CodeGrid, call: Call) -> Constants:
        """Return :meth:`constants` for the grids of all operands."""
        return self.constants(grids[0], y, dataclasses.replace(call, others=tuple(grids[1:])))

    def parameters(
        self, constants: Constants, grids: Sequence[CodeGrid], y: CodeGrid
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Return the float weights that `constants` were made from, as near as these hold them."""
        del constants, grids, y
        return {}

    @abc.abstractmethod
    def formula(self, do: Operations, q: Integers, c: Mapping[str, Integers]) -> Integers:
        """Codes of the result, saturated, for codes `q` (a tuple of those of several operands) and constants `c`."""

    @abc.abstractmethod
    def reference(self, values: Any, call: Call) -> npt.NDArray[np.float64]:
        """The float operator, of float64 (of a tuple where there are several operands)."""

    @abc.abstractmethod
    def error_bound(self, x: CodeGrid, y: CodeGrid, call: Call) -> float:
        """Largest distance of a dequantized result from the float operator of the dequantized input.

        Of results inside the range of `y`; half a step of `y` is part of it.
        """

    def compute(self, codes: Any, constants: Mapping[str, Any], call: Call | None = None) -> Any:
        """Codes of the result, int64, of numpy or torch as `codes` and `constants` are; `call` says where rows lie."""
        call = call or Call()
        groups = int(call.attributes.get("num_groups") or 1)
        runs = Runs(*(bool(call.attributes.get(name)) for name in ("exclusive", "reverse")))
        do = ArrayOperations(call.axes, keeps_axes=call.keeps_axes, groups=groups, runs=runs)
        return self.formula(do, codes, constants)

    def stages(self) -> tuple[Stage, ...]:
        """The intermediate results with their proven bounds."""
        tracer = Tracer(18)
        self._trace(tracer)
        return tuple(tracer.stages)

    def to_onnx(self, opset: int) -> onnx.FunctionProto:
        """The function for a model of this opset."""
        tracer = Tracer(opset)
        self._trace(tracer)
        return helper.make_function(
            DOMAIN,
            self.name,
            [*self.operand_names, *self.bounds()],
            ["y"],
            tracer.nodes,
            [helper.make_opsetid("", opset)],
            [*(["axes"] if self.rows else []), *self.attributes],
            doc_string=f"{self.operator} of {self.x} codes in integers, made by onnxqat",
        )

    def _trace(self, tracer: Tracer) -> None:
        constants = {name: tracer.parameter(name, *ends) for name, ends in self.bounds().items()}
        codes = tuple(tracer.codes(name, self.x) for name in self.operand_names)
        result = self.formula(tracer, codes if self.takes_tuple else codes[0], constants)
        tracer.give(result, "y", self.y)

    def dtypes(self) -> dict[str, int]:
        """ONNX element type of each constant."""
        return {name: kind_of(*ends) for name, ends in self.bounds().items()}

    @property
    def range_of_codes(self) -> tuple[int, int]:
        """Smallest and largest code that it reads."""
        return STORAGE[self.x][:2]

    @property
    def span_of_codes(self) -> int:
        """Largest distance between two codes that it reads."""
        low, high = self.range_of_codes
        return high - low

    @property
    def range_of_result(self) -> tuple[int, int]:
        """Smallest and largest code of the result."""
        return STORAGE[self.y][:2]
