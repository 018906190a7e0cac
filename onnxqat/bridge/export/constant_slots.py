"""Slots of a model's constants: initializers and Constant nodes of every scope, read and replaced in place."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from onnxqat.bridge.export.packed_weights import Packing
from onnxqat.graph import external, walk

Array: TypeAlias = npt.NDArray[Any]

_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


class Slot(Protocol):
    """A constant of the model that can be read and replaced."""

    @property
    def array(self) -> Array:
        """The value, in the dtype and shape that the model states."""
        ...

    def replace(self, array: Array) -> None:
        """Store `array`, of the same dtype and shape, in the field that holds the value now."""
        ...


@dataclasses.dataclass(eq=False)
class TensorSlot:
    """A TensorProto; the data stays in the field it is in, external data comes inside."""

    tensor: onnx.TensorProto
    folder: str

    @functools.cached_property
    def array(self) -> Array:
        """See :class:`Slot`."""
        tensor = self.tensor
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor = onnx.TensorProto()
            tensor.CopyFrom(self.tensor)
            external.state_length(tensor)
        return np.asarray(numpy_helper.to_array(tensor, self.folder))

    def replace(self, array: Array) -> None:
        """See :class:`Slot`."""
        tensor = self.tensor
        outside = tensor.data_location == onnx.TensorProto.EXTERNAL
        if outside or tensor.HasField("raw_data"):
            tensor.raw_data = numpy_helper.from_array(array).raw_data
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            return
        fresh = onnx.helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, array.reshape(-1))
        for field in _TYPED_FIELDS:
            tensor.ClearField(field)
            getattr(tensor, field).extend(getattr(fresh, field))


@dataclasses.dataclass(eq=False)
class FloatSlot:
    """Attribute ``value_float`` or ``value_floats`` of a Constant node."""

    attribute: onnx.AttributeProto

    @property
    def array(self) -> Array:
        """See :class:`Slot`."""
        one = self.attribute.type == onnx.AttributeProto.FLOAT
        return np.asarray(self.attribute.f if one else list(self.attribute.floats), np.float32)

    def replace(self, array: Array) -> None:
        """See :class:`Slot`."""
        if self.attribute.type == onnx.AttributeProto.FLOAT:
            self.attribute.f = float(array)
        else:
            self.attribute.floats[:] = array.tolist()


@dataclasses.dataclass(eq=False)
class IrSlot:
    """An initializer or Constant node of onnx_ir."""

    value: ir.Value
    attribute: ir.Attr | None = None

    @functools.cached_property
    def array(self) -> Array:
        """See :class:`Slot`."""
        held: Any = self.value.const_value if self.attribute is None else self.attribute.value
        return np.asarray(held.numpy() if isinstance(held, ir.TensorProtocol) else np.asarray(held, np.float32))

    def replace(self, array: Array) -> None:
        """See :class:`Slot`."""
        dtype = ir.DataType.from_numpy(array.dtype)
        tensor = ir.Tensor(np.array(array, order="C"), dtype=dtype, name=self.value.name)
        if self.attribute is None:
            self.value.const_value = tensor
            return
        node = self.value.producer()
        assert node is not None
        new: Any = {"value": tensor, "value_float": array.tolist(), "value_floats": array.tolist()}[self.attribute.name]
        node.attributes[self.attribute.name] = ir.Attr(self.attribute.name, self.attribute.type, new)


def proto_slots(proto: onnx.ModelProto, folder: str) -> Iterator[tuple[str, Slot, bool]]:
    """Name, slot and whether it is inside a model-local function."""
    yield from _slots_of([proto.graph], [], folder, False)
    yield from _slots_of([], [node for function in proto.functions for node in function.node], folder, True)


def _slots_of(
    graphs: list[onnx.GraphProto], nodes: list[onnx.NodeProto], folder: str, in_function: bool
) -> Iterator[tuple[str, Slot, bool]]:
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            for tensor in graph.initializer:
                yield tensor.name, TensorSlot(tensor, folder), in_function
            nodes.extend(graph.node)
            continue
        node = nodes.pop()
        for attribute in node.attribute:
            if attribute.HasField("g"):
                graphs.append(attribute.g)
            graphs.extend(attribute.graphs)
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                if attribute.name == "value":
                    yield node.output[0], TensorSlot(attribute.t, folder), in_function
                elif attribute.name in ("value_float", "value_floats"):
                    yield node.output[0], FloatSlot(attribute), in_function


def ir_slots(model: ir.Model) -> Iterator[tuple[str, Slot, bool]]:
    """The same for a model of onnx_ir."""
    for scope in walk.scopes(model):
        in_function = isinstance(scope, ir.Function)
        for value in scope.initializers.values() if isinstance(scope, ir.Graph) else ():
            if value.const_value is not None:
                yield str(value.name), IrSlot(value), False
        for node in scope:
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                for key in ("value", "value_float", "value_floats"):
                    if key in node.attributes:
                        yield str(node.outputs[0].name), IrSlot(node.outputs[0], node.attributes[key]), in_function


@dataclasses.dataclass(eq=False)
class PackedSlot:
    """Several codes a byte in another slot; read and replaced as a matrix of codes."""

    inner: Slot
    packing: Packing

    @functools.cached_property
    def array(self) -> Array:
        """See :class:`Slot`."""
        """The codes."""
        return self.packing.unpack(self.inner.array)

    def replace(self, array: Array) -> None:
        """See :class:`Slot`."""
        """Pack other codes."""
        self.inner.replace(self.packing.pack(array, self.inner.array))
