"""Builds an fx graph from an ONNX graph, one node at a time.

A lowering sees the :class:`NodeView` of its node: inputs in the form it needs (tensor, list of numbers, constant),
attributes, what is known of shapes and types, and ``call`` to emit code.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch
from torch import fx, nn

from onnxqat.bridge import module
from onnxqat.bridge.functional import shape_math
from onnxqat.bridge.importing import names, values
from onnxqat.bridge.importing.constant_store import RefusedError, Store
from onnxqat.bridge.importing.values import Const, Dims, Value
from onnxqat.graph import query

__all__ = ["Builder", "Lowered", "NodeView", "RefusedError", "Store"]

Lowered: TypeAlias = "Value | tuple[Value | None, ...]"

FOLD_LIMIT = 4096  # numbers in a constant that shape arithmetic still handles one by one
FLOAT_FOLD_LIMIT = 8  # the same for float constants next to shape arithmetic; more are weights


class Builder:
    """One scope: its fx graph and the value that stands for each of its ONNX values.

    Args:
        store: tensors of the module.
        opsets: versions that hold in this scope.
        finish: rewrites the finished graph of a scope in place; its rules know the lowerings, which know this module.
        parent: the builder of the enclosing scope, for a subgraph.
        path: of the module of this scope in its parent's, empty for the outermost.
    """

    def __init__(
        self,
        store: Store,
        opsets: Mapping[str, int],
        finish: Callable[[Builder], None],
        parent: Builder | None = None,
        path: str = "",
    ) -> None:
        self.store = store
        self.opsets = opsets
        self.finish = finish
        self.parent = parent
        self.path = path
        self.home = store.root if parent is None else nn.Module()
        self.paths = store.paths if parent is None else names.Paths()
        self.graph = fx.Graph()
        self.values: dict[int, Value] = {}
        self.tensor_nodes: dict[str, str] = {}
        self.captured: dict[fx.Node, fx.Node] = {}
        self._attributes: dict[str, fx.Node] = {}
        self._sizes: dict[tuple[fx.Node, int], fx.Node] = {}
        self._numbers: dict[int, fx.Node] = {}
        self._results: dict[Any, fx.Node] = {}
        self._devices: dict[fx.Node, fx.Node] = {}
        self._kept: list[Dims] = []
        self.anchor: fx.Node | None = None

    def emit(
        self, op: str, target: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None, name: str = ""
    ) -> fx.Node:
        """Append an fx node."""
        return self.graph.create_node(op, target, tuple(args), kwargs or {}, name=name or None)

    def placeholder(self, name: str) -> fx.Node:
        """Append an argument of ``forward``, behind those that exist."""
        nodes = [n for n in self.graph.nodes if n.op == "placeholder"]
        first = next(iter(self.graph.nodes), None)
        wanted = names.identifier(name, "input")
        target = wanted
        taken = {n.target for n in nodes}
        count = 0
        while target in taken:
            count += 1
            target = f"{wanted}_{count}"
        if nodes:
            with self.graph.inserting_after(nodes[-1]):
                return self.graph.create_node("placeholder", target, (), {}, name=target)
        if first is not None:
            with self.graph.inserting_before(first):
                return self.graph.create_node("placeholder", target, (), {}, name=target)
        return self.graph.create_node("placeholder", target, (), {}, name=target)

    def define(self, value: ir.Value, result: Value) -> None:
        """Record what `value` is; its fx node gets the ONNX name."""
        producer = value.producer()
        if isinstance(result, Const) and producer is not None and producer.op_type == "Constant":
            result = self.store.same(result)
        self.values[id(value)] = result
        if isinstance(result, fx.Node) and value.name:
            result.meta.setdefault("onnx_name", value.name)
            result.meta.setdefault(values.SHAPE, value.shape)
            result.meta.setdefault(values.DTYPE, value.dtype)
            self.tensor_nodes.setdefault(value.name, result.name)

    def known_shape(self, node: fx.Node) -> tuple[int | str | None, ...] | None:
        """Return the inferred shape of `node`: sizes, names of symbols, None for neither."""
        shape = node.meta.get(values.SHAPE)
        return None if shape is None else tuple(d if isinstance(d, int) else d.value for d in shape)

    def lookup(self, value: ir.Value) -> Value:
        """Look up what stands for `value`, importing it from an enclosing scope where necessary."""
        if id(value) not in self.values:
            if value.const_value is not None and value.producer() is None and not value.is_graph_input():
                self.root_values()[id(value)] = Const(str(value.name or ""), value.const_value)
                return self.root_values()[id(value)]
            if self.parent is None:
                if id(value) in self.root_values():
                    return self.root_values()[id(value)]
                raise KeyError(f"value {value.name!r} is used before it is defined")
            return self.import_value(self.parent.lookup(value))
        return self.values[id(value)]

    def root_values(self) -> dict[int, Value]:
        """Values of the outermost scope; initializers of every scope are kept there."""
        return self.values if self.parent is None else self.parent.root_values()

    def import_value(self, value: Value) -> Value:
        """A value of the parent scope as seen here."""
        if isinstance(value, fx.Node):
            return self.import_node(value)
        if isinstance(value, Dims) and not value.static:
            array = np.frompyfunc(lambda e: self.import_node(e) if isinstance(e, fx.Node) else e, 1, 1)(value.array)
            return Dims(np.asarray(array, dtype=object), value.dtype)
        return value

    def import_node(self, node: fx.Node) -> fx.Node:
        """An fx node of the parent scope as an argument of this one."""
        if node not in self.captured:
            self.captured[node] = self.placeholder(node.name)
        return self.captured[node]

    def tensor(self, value: Value, *, trainable: bool = True) -> fx.Node:
        """`value` as a tensor."""
        if isinstance(value, fx.Node):
            return value
        if self.parent is not None and (isinstance(value, Const) or value.static):
            return self.import_node(self.parent.tensor(value, trainable=trainable))
        if isinstance(value, Const):
            return self._attribute(self.store.key_of(value, trainable=trainable))
        return self._numbers_as_tensor(value)

    def _attribute(self, key: str) -> fx.Node:
        if key not in self._attributes:
            node = self.emit("get_attr", key, name=names.identifier(key, "tensor"))
            self._attributes[key] = node
        return self._attributes[key]

    def _numbers_as_tensor(self, value: Dims) -> fx.Node:
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        if value.static:
            array = wrapped(value.array, value.dtype)
            constant = Const("constant", ir.Tensor(array, dtype=value.dtype), trainable=False)
            node = self._attribute(self.store.key_of(constant))
        else:
            dtype = values.TORCH_DTYPES[value.dtype]
            numbers = list(value.array.flat)
            node = self.emit(
                "call_function", shape_math.to_tensor, (numbers, list(value.array.shape), dtype, self.device())
            )
        self._numbers[id(value)] = node
        self._kept.append(value)  # so that no other object gets its id
        return node

    @property
    def prefix(self) -> str:
        """Prefix that makes a path of this scope's module one of the outermost module."""
        return "" if self.parent is None else f"{self.parent.prefix}{self.path}."

    def add_module(self, name: str, added: nn.Module) -> str:
        """Register a submodule of this scope's module; returns its path there."""
        path = self.paths.claim(name)
        names.attach(self.home, path, added)
        return path

    def device(self) -> fx.Node | str:
        """The device that run-time constants go to: that of the first input, or of the first tensor of the module."""
        anchor = self.device_anchor()
        if anchor is None:
            return "cpu"
        if anchor not in self._devices:
            self._devices[anchor] = self.emit("call_function", getattr, (anchor, "device"), name="device")
        return self._devices[anchor]

    def device_anchor(self) -> fx.Node | None:
        """The tensor whose device run-time constants follow."""
        if self.anchor is None and self.parent is not None:
            outer = self.parent.device_anchor()
            self.anchor = None if outer is None else self.import_node(outer)
        return self.anchor or next(iter(self._attributes.values()), None)

    def size(self, node: fx.Node, axis: int) -> fx.Node:
        """Length of an axis at run time, computed once."""
        if (node, axis) not in self._sizes:
            self._sizes[node, axis] = self.emit("call_method", "size", (node, axis))
        return self._sizes[node, axis]

    def number(self, function: Callable[..., Any], *operands: values.Number) -> values.Number:
        """A function of :mod:`shape_math`, computed now where every operand is known, otherwise at run time."""
        if not any(isinstance(o, fx.Node) for o in operands):
            return function(*operands)  # type: ignore[no-any-return]
        key = (function, *((type(o), o) for o in operands))
        if key not in self._results:
            self._results[key] = self.emit("call_function", function, operands)
        return self._results[key]


def wrapped(array: np.ndarray, dtype: ir.DataType) -> np.ndarray:
    """Python numbers as a numpy array of `dtype`; integers beyond its range wrap around."""
    target = dtype.numpy()
    if dtype in values.INTEGERS:
        bits = np.dtype(target).itemsize * 8
        cut = np.frompyfunc(lambda e: int(e) & (2**bits - 1), 1, 1)(array)
        return np.asarray(cut, dtype=object).astype(np.dtype(f"uint{bits}")).astype(target)
    return np.asarray(array.astype(target))


class NodeView:
    """An ONNX node as its lowering sees it."""

    def __init__(self, builder: Builder, node: ir.Node, lower: Callable[[Builder, ir.Graph], None]) -> None:
        self.builder = builder
        self.node = node
        self.lower = lower
        domain = "" if node.domain == "ai.onnx" else node.domain
        imported = builder.opsets.get(domain, builder.opsets.get("ai.onnx", 1) if not domain else 1)
        self.opset = node.version or imported
        self.base = names.identifier(str(node.outputs[0].name or ""), node.op_type.lower()) if node.outputs else ""

    # What the node says ---------------------------------------------------------------------------------------

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as Python data: int, float, str, list or ir tensor.

        Attributes are float32, a default too: for a float64 input it makes a difference.
        """
        default = float(np.float32(default)) if isinstance(default, float) else default
        found = query.attribute(self.node, name, default)
        return list(found) if isinstance(found, (tuple, list)) else found

    def has(self, index: int) -> bool:
        """Check whether input `index` is given."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def wants(self, index: int) -> bool:
        """Check whether output `index` exists."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index].name)

    @property
    def count(self) -> int:
        """Number of inputs."""
        return len(self.node.inputs)

    def refuse(self, reason: str) -> RefusedError:
        """The exception to raise for a form that is not implemented."""
        return RefusedError(reason)

    def subgraph(self, name: str) -> ir.Graph:
        """A graph attribute."""
        graph = self.node.attributes[name].as_graph()
        if not isinstance(graph, ir.Graph):
            raise self.refuse(f"{name} is no graph")
        return graph

    def scope(self, name: str) -> Builder:
        """A builder for a subgraph that becomes a module ``<output>.<name>``."""
        outer = self.builder
        path = outer.paths.claim(f"{query.label(self.node)}.{name}")
        return Builder(outer.store, outer.opsets, outer.finish, outer, path)

    def close_scope(self, scope: Builder, results: list[fx.Node]) -> fx.Node:
        """Finish the module of `scope`; a node that is the module."""
        scope.graph.output(tuple(results))
        scope.finish(scope)
        made = module.make(scope.home, scope.graph, {"tensor_nodes": scope.tensor_nodes})
        names.attach(self.builder.home, scope.path, made)
        return self.builder.emit("get_attr", scope.path, name=names.identifier(scope.path, "subgraph"))

    # What is known at import ----------------------------------------------------------------------------------

    def value(self, index: int) -> Value:
        """Input `index` in whatever form it has."""
        source = self.node.inputs[index]
        if source is None:
            raise self.refuse(f"input {index} is missing")
        return self.builder.lookup(source)

    def rank(self, index: int) -> int | None:
        """Number of dimensions of an input, where known."""
        found = self.value(index)
        if isinstance(found, (Const, Dims)):
            return len(found.array.shape) if isinstance(found, Dims) else len(found.shape)
        return query.rank(self.node.inputs[index])

    def axis(self, default: int) -> int:
        """Return the attribute ``axis``; one outside of the rank of input 0 is refused, where torch would fail later."""
        axis, rank = int(self.attr("axis", default)), self.rank(0)
        if rank is not None and not -max(rank, 1) <= axis < max(rank, 1):
            raise self.refuse(f"axis {axis} of a tensor of {rank} dimensions")
        return axis

    def need_rank(self, index: int) -> int:
        """Number of dimensions of an input; refuses where it is unknown."""
        found = self.rank(index)
        if found is None:
            raise self.refuse(f"the rank of input {index} is unknown")
        return found

    def dims(self, index: int) -> tuple[int | None, ...] | None:
        """Dimensions of an input, None for each one that is not known; None where the rank is unknown."""
        found = self.value(index)
        if isinstance(found, Const):
            return found.shape
        if isinstance(found, Dims):
            return tuple(found.array.shape)
        source = self.node.inputs[index]
        if source is None or source.shape is None:
            return None
        return tuple(d if isinstance(d, int) else None for d in source.shape)

    def dtype(self, index: int) -> ir.DataType | None:
        """Element type of an input, where known."""
        found = self.value(index)
        if isinstance(found, (Const, Dims)):
            return found.dtype
        source = self.node.inputs[index]
        return None if source is None else source.dtype

    def is_float(self, index: int) -> bool:
        """Check whether an input holds floats; an unknown type counts as float."""
        found = self.dtype(index)
        return found is None or found in values.FLOATS

    def shaped(self, index: int) -> fx.Node | None:
        """The tensor whose whole shape input `index` is, where its rank is known at run time only."""
        found = self.value(index)
        if not isinstance(found, fx.Node) or getattr(found.target, "__name__", "") != "shape_as_tensor":
            return None
        tensor, start, end = found.args
        return tensor if isinstance(tensor, fx.Node) and start == 0 and end is None else None

    def static(self, index: int) -> np.ndarray | None:
        """The values of an input that is known at import, otherwise None."""
        if not self.has(index):
            return None
        found = self.value(index)
        if isinstance(found, Const):
            return found.array
        if isinstance(found, Dims) and found.static:
            return wrapped(found.array, found.dtype)
        return None

    # Inputs as code -------------------------------------------------------------------------------------------

    def tensor(self, index: int) -> fx.Node:
        """Input `index` as a tensor; a float constant becomes a Parameter."""
        return self.builder.tensor(self.value(index))

    def buffer(self, index: int) -> fx.Node:
        """Input `index` as a tensor; a constant becomes a buffer (running statistics)."""
        return self.builder.tensor(self.value(index), trainable=False)

    def optional(self, index: int) -> fx.Node | None:
        """Input `index` as a tensor, None where it is omitted."""
        return self.tensor(index) if self.has(index) else None

    def operand(self, index: int) -> fx.Node | values.Number:
        """Like :meth:`tensor`, but a scalar that is no weight stays a number."""
        found = self.value(index)
        if isinstance(found, Dims) and found.array.ndim == 0 and found.dtype is not ir.DataType.BOOL:
            number: values.Number = found.array.item()
            return number
        if isinstance(found, Const) and found.shape == () and found.dtype in values.INTEGERS:
            return int(found.array)
        return self.tensor(index)

    def ints(self, index: int) -> list[values.Number] | fx.Node:
        """Input `index` as a flat list of ints; a node that computes the list where it depends on data."""
        found = self.value(index)
        if isinstance(found, fx.Node):
            return self.builder.emit("call_function", shape_math.to_list, (found,))
        array = found.array if isinstance(found, Dims) else values.grid(found.array)
        return [e if isinstance(e, fx.Node) else int(e) for e in array.flat]

    def scalar(self, index: int) -> values.Number | fx.Node:
        """A one-element input as a number; a node that computes it where it depends on data."""
        found = self.ints(index) if not self.is_float(index) else self.floats(index)
        if isinstance(found, fx.Node):
            return self.builder.emit("call_function", operator.getitem, (found, 0))
        if not found:
            raise self.refuse(f"input {index} is empty, where a number is due")
        return found[0]

    def floats(self, index: int) -> list[values.Number] | fx.Node:
        """Input `index` as a flat list of numbers; a node that computes it where it depends on data."""
        found = self.value(index)
        if isinstance(found, fx.Node):
            return self.builder.emit("call_function", shape_math.to_list, (found,))
        array = found.array if isinstance(found, Dims) else values.grid(found.array)
        return list(array.flat)

    # Shape arithmetic -----------------------------------------------------------------------------------------

    def grids(self, indices: Iterable[int] | None = None) -> list[np.ndarray] | None:
        """The inputs as arrays of numbers, when the node is shape arithmetic: no tensor, no weight among them."""
        chosen = list(range(self.count) if indices is None else indices)
        found = [self.value(i) for i in chosen if self.has(i)]
        derived = any(isinstance(v, Dims) for v in found)
        arrays = []
        for value in found:
            if isinstance(value, Dims):
                arrays.append(value.array)
                continue
            if not isinstance(value, Const):
                return None
            is_float = value.dtype in values.FLOATS
            limit = FLOAT_FOLD_LIMIT if is_float else FOLD_LIMIT
            if np.prod(value.shape) > limit or (is_float and not derived) or value.dtype not in values.TORCH_DTYPES:
                return None
            arrays.append(values.grid(value.array))
        return arrays

    def numbers(self, array: np.ndarray, dtype: ir.DataType | None = None) -> Dims:
        """The result of shape arithmetic; its type is that of the first input unless given."""
        kind = dtype or self.dtype(0) or ir.DataType.INT64
        made = np.empty(np.shape(array), dtype=object)
        made[...] = array
        if kind in values.INTEGERS and kind is not ir.DataType.INT64 and Dims(made, kind).static:
            made[...] = wrapped(made, kind).astype(object)  # the next step divides or compares what a tensor would hold
        return Dims(made, kind)

    def elementwise(
        self, function: Callable[..., Any], arrays: Sequence[np.ndarray], dtype: ir.DataType | None = None
    ) -> Dims:
        """A function of :mod:`shape_math` applied to broadcast arrays."""
        made = np.frompyfunc(lambda *e: self.builder.number(function, *e), len(arrays), 1)(*arrays)
        return self.numbers(np.asarray(made, dtype=object), dtype)

    # Code -----------------------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Emit a call, named after the node's first output."""
        return self.builder.emit("call_function", function, args, kwargs, name=self.base)

    def method(self, method: str, *args: Any, **kwargs: Any) -> fx.Node:
        """Emit a method call on the first argument."""
        return self.builder.emit("call_method", method, args, kwargs, name=self.base)

    def item(self, node: fx.Node, index: int) -> fx.Node:
        """Emit ``node[index]`` of a tuple."""
        return self.builder.emit("call_function", operator.getitem, (node, index))

    def size(self, index: int, axis: int) -> values.Number:
        """Length of an axis of input `index`: an int where it is known."""
        dims = self.dims(index)
        if dims is not None and isinstance(dims[axis], int):
            return int(dims[axis] or 0)
        return self.builder.size(self.tensor(index), axis)

    def device(self) -> fx.Node | str:
        """Device for a constant that is made at run time."""
        return self.builder.device()

    def torch_dtype(self, dtype: ir.DataType | int | None) -> torch.dtype:
        """The torch type; refuses what torch has no arithmetic for."""
        kind = None if dtype is None else ir.DataType(dtype)
        if kind not in values.TORCH_DTYPES:
            raise self.refuse(f"element type {kind.name if kind is not None else 'unknown'}")
        return values.TORCH_DTYPES[kind]
