"""Inputs of integer functions for tests and for the page of bounds, and execution in numpy, torch and onnxruntime."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper

from onnxqat.graph import io
from onnxqat.integer_functions import library
from onnxqat.integer_functions.definition import DOMAIN, VERSION, Call, CodeGrid, Constants, IntegerFunction
from onnxqat.runtime.session import Session

RANGES: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "Abs": ((-4.0, 4.0), (0.0, 4.0)),
    "Div": ((0.0, 4.0), (0.0, 8.0)),
    "Celu": ((-4.0, 4.0), (-1.0, 4.0)),
    "CumSum": ((-4.0, 4.0), (-64.0, 64.0)),
    "Cos": ((-4.0, 4.0), (-1.0, 1.0)),
    "Elu": ((-4.0, 4.0), (-1.0, 4.0)),
    "Erf": ((-4.0, 4.0), (-1.0, 1.0)),
    "Exp": ((-4.0, 4.0), (0.0, 55.0)),
    "Gelu": ((-4.0, 4.0), (-0.2, 4.0)),
    "GlobalAveragePool": ((-4.0, 4.0), (-1.0, 1.0)),
    "GroupNormalization": ((-4.0, 4.0), (-8.0, 8.0)),
    "HardSigmoid": ((-4.0, 4.0), (0.0, 1.0)),
    "HardSwish": ((-6.0, 6.0), (-0.4, 6.0)),
    "InstanceNormalization": ((-4.0, 4.0), (-8.0, 8.0)),
    "LayerNormalization": ((-4.0, 4.0), (-8.0, 8.0)),
    "LeakyRelu": ((-4.0, 4.0), (-1.0, 4.0)),
    "PRelu": ((-4.0, 4.0), (-4.0, 4.0)),
    "Log": ((0.0, 8.0), (-4.0, 2.1)),
    "LogSoftmax": ((-8.0, 8.0), (-20.0, 0.0)),
    "MaskedSoftmax": ((-8.0, 8.0), (0.0, 1.0)),
    "Max": ((-4.0, 4.0), (-4.0, 4.0)),
    "MaxWithConstant": ((-4.0, 4.0), (-3.0, 4.0)),
    "Min": ((-4.0, 4.0), (-4.0, 4.0)),
    "MinWithConstant": ((-4.0, 4.0), (-4.0, 3.0)),
    "Mish": ((-4.0, 4.0), (-0.4, 4.0)),
    "RMSNormalization": ((-4.0, 4.0), (-8.0, 8.0)),
    "Reciprocal": ((0.0, 8.0), (0.0, 8.0)),
    "ReduceL2": ((-4.0, 4.0), (0.0, 24.0)),
    "ReduceMean": ((-4.0, 4.0), (-1.0, 1.0)),
    "ReduceSum": ((-4.0, 4.0), (-64.0, 64.0)),
    "Resize": ((-4.0, 4.0), (-3.0, 3.0)),
    "Selu": ((-4.0, 4.0), (-1.8, 4.2)),
    "Sigmoid": ((-8.0, 8.0), (0.0, 1.0)),
    "Sin": ((-4.0, 4.0), (-1.0, 1.0)),
    "Softmax": ((-8.0, 8.0), (0.0, 1.0)),
    "Softplus": ((-4.0, 4.0), (0.0, 4.1)),
    "Sqrt": ((0.0, 4.0), (0.0, 2.0)),
    "Swish": ((-4.0, 4.0), (-0.3, 4.0)),
    "WeightedSum": ((-4.0, 4.0), (-4.0, 4.0)),
    "Tanh": ((-4.0, 4.0), (-1.0, 1.0)),
}
"""Range of the input and of the result of each operator."""

TYPES = (("int8", "int8"), ("uint8", "uint8"), ("int16", "int16"), ("uint16", "uint16"))
"""Types of codes of the input and of the result; those of 8 bits alone come first."""

RESIZED: dict[str, Any] = {
    "coordinate_transformation_mode": "half_pixel",
    "lengths": [8, 8],
    "sizes": [11, 5],
    "scales": [11 / 8, 5 / 8],
}
"""Attributes of a Resize of a row as an image, up along one axis and down along the other."""

ROW = 64
ROWS = 400
CHANNELS = 4


@dataclasses.dataclass(frozen=True)
class Case:
    """A function between two grids, with codes and constants."""

    function: IntegerFunction
    x: CodeGrid
    y: CodeGrid
    call: Call
    codes: tuple[np.ndarray, ...]
    constants: Constants

    @property
    def errors(self) -> np.ndarray:
        """Distances from the float operator, of results inside the range of the output's grid."""
        wanted = self.function.reference(self._given([self.x.values(codes) for codes in self.codes]), self.call)
        found = self.y.values(self.in_numpy())
        inside = (wanted >= self.y.values(np.array(self.y.low))) & (wanted <= self.y.values(np.array(self.y.high)))
        return np.abs(found - wanted)[inside]

    def _given(self, operands: list[Any]) -> Any:
        return tuple(operands) if self.function.takes_tuple else operands[0]

    def in_numpy(self) -> np.ndarray:
        """Codes of the result."""
        codes = self._given([codes.astype(np.int64) for codes in self.codes])
        return np.asarray(self.function.compute(codes, self.constants, self.call))

    def in_torch(self) -> np.ndarray:
        """Codes of the result."""
        constants = {name: torch.from_numpy(value) for name, value in self.constants.items()}
        codes = self._given([torch.from_numpy(codes.astype(np.int64)) for codes in self.codes])
        result = self.function.compute(codes, constants, self.call)
        return np.asarray(result.numpy())

    def in_onnxruntime(self, opset: int) -> np.ndarray:
        """Codes of the result."""
        given = dict(zip(self.function.operand_names, self.codes, strict=True))
        return np.asarray(Session(io.load(self.model(opset)), optimize=True, what="the function").run(given)["y"])

    def model(self, opset: int) -> onnx.ModelProto:
        """A model that calls the function."""
        names, types = (
            (*self.function.operand_names, "y"),
            (*[self.function.x] * self.function.operands, self.function.y),
        )
        values = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), array.shape)
            for name, kind, array in zip(names, types, (*self.codes, self.in_numpy()), strict=True)
        ]
        dtypes = self.function.dtypes()
        initializers = [
            helper.make_tensor(name, dtypes[name], array.shape, array.reshape(-1).tolist())
            for name, array in self.constants.items()
        ]
        attributes: dict[str, Any] = {"axes": list(self.call.axes)} if self.function.rows else {}
        attributes |= {
            name: self.call.attributes[name] for name in self.function.attributes if name in self.call.attributes
        }
        node = helper.make_node(self.function.name, [*names[:-1], *self.constants], ["y"], domain=DOMAIN, **attributes)
        graph = helper.make_graph([node], "g", values[:-1], values[-1:], initializers)
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, VERSION)]
        function = self.function.to_onnx(opset)
        made = helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=8)
        onnx.checker.check_model(made, full_check=True)
        return made


def grid(low: float, high: float, storage: str) -> CodeGrid:
    """The grid of `storage` that covers a range."""
    made = CodeGrid(1.0, 0, storage)
    scale = float(np.float32((high - low) / (made.high - made.low)))
    return CodeGrid(scale, min(max(round(made.low - low / scale), made.low), made.high), storage)


def case(operator: str, x: str, y: str, *, rows: int = ROWS, keepdims: int = 1) -> Case:
    """Random rows, rows around one end, and rows of all codes' ends; all codes of functions of single elements."""
    kind = library.kinds()[operator]
    function = library.variadic(kind, x, y, 3) if kind.is_variadic else kind(x, y)
    ranges = RANGES[operator]
    of_x, of_y = grid(*ranges[0], x), grid(*ranges[1], y)
    random = np.random.default_rng(0)
    by_channel = operator in ("GroupNormalization", "InstanceNormalization")
    weights = {
        name: random.normal(1.0, 0.3, CHANNELS if by_channel else ROW if function.rows else ())
        for name in function.weights
    }
    attributes: dict[str, Any] = {"epsilon": 1e-5} if function.rows and function.weights else {}
    attributes |= {"keepdims": keepdims} if function.reduces else {}
    attributes |= {"num_groups": 2} if operator == "GroupNormalization" else {}
    attributes |= RESIZED if operator == "Resize" else {}
    others = (of_x,) * (function.operands - 1)
    length = (CHANNELS // 2 if operator == "GroupNormalization" else 1) * (ROW if function.rows else 1)
    call = Call((-1,), length, weights, attributes, others)
    first = _rows(of_x, rows) if function.rows else np.arange(of_x.low, of_x.high + 1)
    if by_channel:
        first = first[: len(first) // CHANNELS * CHANNELS].reshape(-1, CHANNELS, ROW)
    if operator == "Resize":
        first = first.reshape(-1, 1, 8, 8)
    # The other operands have all codes too, in another order each.
    codes = [first, *(random.permutation(first) for _ in others)]
    return Case(function, of_x, of_y, call, tuple(c.astype(x) for c in codes), function.constants(of_x, of_y, call))


def _rows(x: CodeGrid, count: int) -> np.ndarray:
    random = np.random.default_rng(zlib.crc32(x.storage.encode()))
    middle, half = (x.low + x.high) / 2, (x.high - x.low) / 2
    usual = random.normal(middle, half / 4, (count, ROW))
    far = random.integers(x.low, x.high + 1, (count // 4, ROW))
    edges = np.array([x.low, x.high])[random.integers(0, 2, (count // 8, ROW))]
    flat = np.repeat(random.integers(x.low, x.high + 1, (8, 1)), ROW, axis=1)
    return np.clip(np.rint(np.concatenate([usual, far, edges, flat])), x.low, x.high)
