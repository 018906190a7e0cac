"""What is known of an ONNX value while the graph is built: a constant, a grid of Python numbers, or a tensor.

==========  ==========================================================================================
Const       a constant of the file; becomes a Parameter (float) or a buffer when a lowering needs a tensor
Dims        Python numbers, some of them results of fx nodes (SymInts): shape arithmetic, never a tensor
fx.Node     a tensor at run time
==========  ==========================================================================================
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

TORCH_DTYPES: dict[ir.DataType, torch.dtype] = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.INT8: torch.int8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.UINT8: torch.uint8,
    ir.DataType.UINT16: torch.uint16,
    ir.DataType.UINT32: torch.uint32,
    ir.DataType.UINT64: torch.uint64,
    ir.DataType.BOOL: torch.bool,
    ir.DataType.COMPLEX64: torch.complex64,
    ir.DataType.COMPLEX128: torch.complex128,
}
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
INTEGERS = frozenset(t for t in TORCH_DTYPES if t.name.lstrip("U").startswith("INT"))
# Types narrower than a byte; torch computes on them in these.
CONTAINERS: dict[ir.DataType, torch.dtype] = {
    ir.DataType.INT4: torch.int8,
    ir.DataType.INT2: torch.int8,
    ir.DataType.UINT4: torch.uint8,
    ir.DataType.UINT2: torch.uint8,
}


@dataclasses.dataclass(eq=False)
class Const:
    """A constant tensor of the file, or one computed at import.

    Attributes:
        name: ONNX name, which becomes its key in the state dict.
        data: the tensor.
        trainable: whether it is a Parameter where it is a float; False for what the import itself computed.
    """

    name: str
    data: ir.TensorProtocol
    trainable: bool = True

    @functools.cached_property
    def array(self) -> np.ndarray:
        """The values; 2- and 4-bit types unpacked."""
        return np.asarray(self.data.numpy())

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return tuple(d for d in self.data.shape if isinstance(d, int))

    @property
    def dtype(self) -> ir.DataType:
        """The ONNX element type."""
        return self.data.dtype

    def to_torch(self) -> torch.Tensor:
        """A copy that torch owns."""
        return tensor(self.array, self.dtype)


@dataclasses.dataclass(eq=False)
class Dims:
    """Numbers of shape arithmetic: an object array of int, float, bool or the fx node that computes one."""

    array: np.ndarray
    dtype: ir.DataType

    @property
    def static(self) -> bool:
        """Whether every number is known at import."""
        return not any(isinstance(e, fx.Node) for e in self.array.flat)


Value: TypeAlias = "Const | Dims | fx.Node"
Number: TypeAlias = "int | float | bool | fx.Node"
Argument: TypeAlias = Any


def tensor(array: np.ndarray, dtype: ir.DataType) -> torch.Tensor:
    """A torch tensor with the values of `array`; never shares memory with it.

    Raises:
        TypeError: a type that torch cannot hold.
    """
    array = np.asarray(array)
    if dtype in CONTAINERS:
        signed = CONTAINERS[dtype] is torch.int8
        return torch.from_numpy(array.astype(np.int8 if signed else np.uint8))
    if dtype is ir.DataType.BFLOAT16:
        return torch.from_numpy(np.array(array).view(np.int16).copy()).view(torch.bfloat16)
    if dtype not in TORCH_DTYPES:
        raise TypeError(f"torch has no tensors of type {dtype.name}")
    return torch.from_numpy(np.array(array, dtype=dtype.numpy()))


def grid(array: np.ndarray) -> np.ndarray:
    """`array` as an object array of Python numbers."""
    made = np.empty(array.shape, dtype=object)
    made[...] = array.astype(object)
    return made
