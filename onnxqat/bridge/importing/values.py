"""Kinds of ONNX values while the graph is built: a constant, a grid of Python numbers, or a tensor.

==========  ==========================================================================================
Const       a constant of the file; becomes a Parameter (float) or a buffer when a lowering needs a tensor
Dims        Python numbers, some of them results of fx nodes (SymInts): shape arithmetic, never a tensor
fx.Node     a tensor at run time
==========  ==========================================================================================

Every element type of ONNX but strings has one torch type, for constants, inputs and outputs alike:

======================  ====================================================================================
ONNX                    torch
======================  ====================================================================================
float, ints, bool, ...  the type of the same name
int2, int4              the values, in int8
uint2, uint4            the values, in uint8
float8 (four kinds)     torch.float8_*
float8e8m0              the bits, in uint8
float4, float6 (two)    the bits in the low end of uint8: sign, exponent, mantissa
======================  ====================================================================================
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
# Types that torch moves but does not compute in: see the table above.
CONTAINERS: dict[ir.DataType, torch.dtype] = {
    ir.DataType.INT4: torch.int8,
    ir.DataType.INT2: torch.int8,
    ir.DataType.UINT4: torch.uint8,
    ir.DataType.UINT2: torch.uint8,
    ir.DataType.FLOAT8E4M3FN: torch.float8_e4m3fn,
    ir.DataType.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    ir.DataType.FLOAT8E5M2: torch.float8_e5m2,
    ir.DataType.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
    ir.DataType.FLOAT8E8M0: torch.uint8,
    ir.DataType.FLOAT6E2M3: torch.uint8,
    ir.DataType.FLOAT6E3M2: torch.uint8,
    ir.DataType.FLOAT4E2M1: torch.uint8,
}

SHAPE = "onnx_shape"
"""Key in an fx node's meta: what inference knows of its dimensions."""

DTYPE = "onnx_dtype"
"""Key in an fx node's meta: its element type, as far as inference knows it."""


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
        """Check whether every number is known at import."""
        return not any(isinstance(e, fx.Node) for e in self.array.flat)


Value: TypeAlias = "Const | Dims | fx.Node"
Number: TypeAlias = "int | float | bool | fx.Node"
Argument: TypeAlias = Any


def as_input(value: torch.Tensor, kind: str) -> torch.Tensor:
    """Cast `value` to the element type named `kind`, where both are floats."""
    wanted = TORCH_DTYPES.get(ir.DataType.__members__.get(kind, ir.DataType.UNDEFINED))
    fits = wanted is None or not (wanted.is_floating_point and value.is_floating_point())
    return value if fits else value.to(wanted)


def tensor(array: np.ndarray, dtype: ir.DataType) -> torch.Tensor:
    """A torch tensor with the values of `array`; never shares memory with it.

    Raises:
        TypeError: a type that torch cannot hold.
    """
    array = np.asarray(array)
    if dtype in CONTAINERS:
        container = CONTAINERS[dtype]
        if dtype.name.lstrip("U").startswith("INT"):
            return torch.from_numpy(array.astype(np.int8 if container is torch.int8 else np.uint8))
        bits = np.array(array, dtype=dtype.numpy(), order="C")
        return torch.from_numpy(bits.view(np.uint8)).view(container)
    if dtype is ir.DataType.BFLOAT16:
        return torch.from_numpy(np.array(array, dtype=dtype.numpy(), order="C").view(np.int16)).view(torch.bfloat16)
    if dtype not in TORCH_DTYPES:
        raise TypeError(f"torch has no tensors of type {dtype.name}")
    return torch.from_numpy(np.array(array, dtype=dtype.numpy()))


def array(tensor: torch.Tensor, dtype: ir.DataType) -> np.ndarray:
    """The inverse of :func:`tensor`: a numpy array of type `dtype` (of ml_dtypes where numpy has none)."""
    tensor = tensor.detach().cpu()
    if dtype in CONTAINERS:
        if dtype.name.lstrip("U").startswith("INT"):
            return np.asarray(tensor.numpy().astype(dtype.numpy()))
        return np.ascontiguousarray(tensor.contiguous().view(torch.uint8).numpy()).view(dtype.numpy())
    if dtype is ir.DataType.BFLOAT16:
        return tensor.contiguous().view(torch.int16).numpy().view(dtype.numpy())
    return tensor.numpy()


def element_type(dtype: np.dtype[Any]) -> ir.DataType | None:
    """The ONNX type of a numpy type; None where it has none."""
    try:
        return ir.DataType.from_numpy(dtype)
    except TypeError:
        return None


def grid(array: np.ndarray) -> np.ndarray:
    """`array` as an object array of Python numbers."""
    made = np.empty(array.shape, dtype=object)
    made[...] = array.astype(object)
    return made
