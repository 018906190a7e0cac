"""The bytes of a LiteRT model: flatbuffers by the schema that the package ``tflite`` carries."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnxqat.deployment.litert.model import NO_OPTIONS, Array, Grid, Model, Operator, Tensor
from onnxqat.errors import CheckError, UsageError

IDENTIFIER = b"TFL3"
SCHEMA_VERSION = 3
_ALIGNMENT = 16
"""Bytes that the runtime wants buffers to be aligned to, as they are used where they lie in the file."""
_LARGEST = 2**31 - 1
"""Offsets of flatbuffers have 32 bits, one of them for the sign."""
_TYPES = {"float32": "FLOAT32", "int32": "INT32", "int64": "INT64", "int8": "INT8", "bool": "BOOL"}
_VERSIONS = {
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "TRANSPOSE_CONV": 3,
    "FULLY_CONNECTED": 4,
    **dict.fromkeys(("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "AVERAGE_POOL_2D", "MAX_POOL_2D", "CONCATENATION"), 2),
    **dict.fromkeys(
        ("SOFTMAX", "LOGISTIC", "TANH", "LOG_SOFTMAX", "L2_NORMALIZATION", "RELU", "RELU6", "LEAKY_RELU"), 2
    ),
    **dict.fromkeys(("PAD", "PADV2", "MEAN", "REDUCE_MAX", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), 2),
    **dict.fromkeys(
        ("TRANSPOSE", "SLICE", "STRIDED_SLICE", "SPLIT", "BATCH_MATMUL", "DEQUANTIZE", "SPACE_TO_DEPTH"), 2
    ),
    "GATHER": 2,
}
"""Version of each operator that has int8, for runtimes that compare; 1 where none is said.

DEPTH_TO_SPACE has version 2 for int8 (``op_version.cc``), but the reference kernels are listed with 1 alone and take int8.
"""


def to_bytes(model: Model) -> bytes:
    """The file of `model`.

    Raises:
        UsageError: ``dependency-missing``.
        CheckError: ``handoff-failed`` for a file beyond the 2 GB of the format.
    """
    size = sum(tensor.data.nbytes for tensor in model.tensors if tensor.data is not None)
    if size > _LARGEST:
        raise CheckError("handoff-failed", f"the constants have {size} bytes, and a .tflite file holds 2 GB")
    return _Writer(*_schema()).write(model)


def _schema() -> tuple[types.ModuleType, types.ModuleType]:
    try:
        return importlib.import_module("flatbuffers"), importlib.import_module("tflite")
    except ImportError:
        raise UsageError(
            "dependency-missing", "LiteRT files need the package tflite", hint="pip install 'onnxqat[litert]'"
        ) from None


class _Writer:
    """Writes tables from the leaves up, as flatbuffers are built."""

    def __init__(self, flatbuffers: types.ModuleType, schema: types.ModuleType) -> None:
        self._builder: Any = flatbuffers.Builder(1024)
        self._schema = schema

    def write(self, model: Model) -> bytes:
        codes = list(dict.fromkeys((operator.code, _version(operator, model)) for operator in model.operators))
        # Buffer 0 is the empty one, of tensors that are no constants.
        held = [tensor.data for tensor in model.tensors if tensor.data is not None]
        buffers = self._vector([self._buffer(None), *map(self._buffer, held)])
        places = iter(range(1, len(held) + 1))
        tensors = [self._tensor(tensor, next(places) if tensor.data is not None else 0) for tensor in model.tensors]
        operators = [self._operator(item, codes.index((item.code, _version(item, model)))) for item in model.operators]
        graph = self._table(
            "SubGraph",
            Tensors=self._vector(tensors),
            Inputs=self._numbers([number for _, number in model.inputs]),
            Outputs=self._numbers([number for _, number in model.outputs]),
            Operators=self._vector(operators),
            Name=self._text("main"),
        )
        result = self._table(
            "Model",
            Version=SCHEMA_VERSION,
            OperatorCodes=self._vector([self._code(*code) for code in codes]),
            Subgraphs=self._vector([graph]),
            Description=self._text(model.description),
            Buffers=buffers,
            SignatureDefs=self._vector([self._signature(model)]),
        )
        self._builder.Finish(result, file_identifier=IDENTIFIER)
        return bytes(self._builder.Output())

    def _table(self, kind: str, **fields: Any) -> int:
        """Offset of a table; its vectors, strings and tables are given by their offsets."""
        getattr(self._schema, f"{kind}Start")(self._builder)
        for name, value in fields.items():
            getattr(self._schema, f"{kind}Add{name}")(self._builder, value)
        return int(getattr(self._schema, f"{kind}End")(self._builder))

    def _text(self, text: str) -> int:
        return int(self._builder.CreateString(text))

    def _vector(self, offsets: Sequence[int]) -> int:
        return self._filled(4, offsets, self._builder.PrependUOffsetTRelative)

    def _numbers(self, numbers: Sequence[int]) -> int:
        return self._filled(4, numbers, self._builder.PrependInt32)

    def _filled(self, width: int, items: Sequence[Any], prepend: Callable[[Any], None]) -> int:
        self._builder.StartVector(width, len(items), width)
        for item in reversed(items):
            prepend(item)
        return int(self._builder.EndVector())

    def _buffer(self, data: Array | None) -> int:
        if data is None:
            return self._table("Buffer")
        little = np.ascontiguousarray(data).astype(data.dtype.newbyteorder("<"), copy=False)
        content = np.frombuffer(little.tobytes(), np.uint8)
        self._builder.StartVector(1, content.size, _ALIGNMENT)
        # Byte by byte, prepending takes minutes for the weights of one network; this is what CreateByteVector does.
        self._builder.head = self._builder.head - content.size
        self._builder.Bytes[self._builder.head : self._builder.head + content.size] = content.tobytes()
        return self._table("Buffer", Data=int(self._builder.EndVector()))

    def _tensor(self, tensor: Tensor, buffer: int) -> int:
        fields: dict[str, Any] = {
            "Shape": self._numbers(tensor.shape),
            "Type": self._enumerated("TensorType", _TYPES[tensor.dtype.name]),
            "Buffer": buffer,
            "Name": self._text(tensor.name),
        }
        if tensor.grid is not None:
            fields["Quantization"] = self._grid(tensor.grid)
        return self._table("Tensor", **fields)

    def _grid(self, grid: Grid) -> int:
        scales = self._filled(4, grid.scale.tolist(), self._builder.PrependFloat32)
        zero_points = self._filled(8, grid.zero_point.tolist(), self._builder.PrependInt64)
        axis = {} if grid.axis is None else {"QuantizedDimension": grid.axis}
        return self._table("QuantizationParameters", Scale=scales, ZeroPoint=zero_points, **axis)

    def _operator(self, operator: Operator, code: int) -> int:
        fields: dict[str, Any] = {"Inputs": self._numbers(operator.inputs), "Outputs": self._numbers(operator.outputs)}
        if operator.options != NO_OPTIONS:
            kind, scalars = operator.options
            fields["BuiltinOptions"] = self._table(kind, **scalars)
            fields["BuiltinOptionsType"] = self._enumerated("BuiltinOptions", kind)
        return self._table("Operator", OpcodeIndex=code, **fields)

    def _code(self, name: str, version: int) -> int:
        number = self._enumerated("BuiltinOperator", name)
        # Files of schema 3 had the number in a byte, which readers of today still look at first.
        return self._table("OperatorCode", DeprecatedBuiltinCode=min(number, 127), BuiltinCode=number, Version=version)

    def _signature(self, model: Model) -> int:
        sides = {"Inputs": self._tensor_map(model.inputs), "Outputs": self._tensor_map(model.outputs)}
        key = self._text("serving_default")
        return self._table("SignatureDef", **sides, SignatureKey=key, SubgraphIndex=0)

    def _tensor_map(self, side: Sequence[tuple[str, int]]) -> int:
        """Vector of the names of inputs or outputs, each with the number of its tensor."""
        return self._vector([self._table("TensorMap", Name=self._text(name), TensorIndex=n) for name, n in side])

    def _enumerated(self, kind: str, name: str) -> int:
        return int(getattr(getattr(self._schema, kind), name))


def _version(operator: Operator, model: Model) -> int:
    """Version of `operator`: newer where it reads int8."""
    first = model.tensors[operator.inputs[0]]
    return _VERSIONS.get(operator.code, 1) if first.dtype == np.int8 else 1
