"""Random ONNX graphs: 5 to 20 nodes over the operators of :mod:`tools.random_graphs.operators`.

A graph grows node by node; each node is run in onnxruntime at once, and is dropped where the checker or onnxruntime
refuse it or where its values are useless (NaN, infinite, huge). So every value of the graph is known while it grows,
which is how shapes, axes and indices fit.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx.checker
from onnx import helper, numpy_helper

from tools.random_graphs.compare import Feeds, results

LARGEST = 1e4  # of a value: beyond, differences of last bits say nothing
MOST_ELEMENTS = 4096
OPSETS = (13, 17, 18, 21)
SIZES = (1, 2, 3, 4, 5)
KINDS = (np.float32,) * 6 + (np.float16, np.float64, np.int64, np.int64, np.int32, np.int8, np.uint8, np.bool_)


@dataclasses.dataclass
class Growing:
    """A graph while it grows.

    Attributes:
        random: where all choices come from.
        opset: version of ai.onnx.
        arrays: every value so far.
        constants: names of initializers.
        inputs: names of graph inputs.
    """

    random: np.random.Generator
    opset: int
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    arrays: Feeds = dataclasses.field(default_factory=dict)
    constants: list[str] = dataclasses.field(default_factory=list)
    inputs: list[str] = dataclasses.field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        """A new name."""
        self.count += 1
        return f"v{self.count}"

    def chance(self, odds: float) -> bool:
        """True with this probability."""
        return bool(self.random.random() < odds)

    def pick(self, options: object) -> object:
        """One of a sequence."""
        listed = list(options)  # type: ignore[call-overload]
        return listed[int(self.random.integers(len(listed)))]

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """A random shape; seldom with an axis of size 0."""
        rank = int(self.random.choice(6, p=[0.06, 0.14, 0.25, 0.25, 0.22, 0.08])) if rank is None else rank
        return tuple(0 if self.chance(0.005) else int(self.random.choice(SIZES)) for _ in range(rank))

    def values(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """Random values of a type."""
        if dtype is np.bool_:
            return np.asarray(self.random.random(shape) < 0.5)
        if np.issubdtype(dtype, np.integer):
            return np.asarray(
                self.random.integers(0 if np.issubdtype(dtype, np.unsignedinteger) else -9, 10, shape), dtype
            )
        return np.asarray(self.random.standard_normal(shape) * self.pick([0.5, 1.0, 3.0]), dtype)

    def add(self, array: np.ndarray, *, constant: bool | None = None) -> str:
        """A new graph input or initializer."""
        name = self.name()
        self.arrays[name] = array
        fixed = self.chance(0.5) if constant is None else constant
        (self.constants if fixed else self.inputs).append(name)
        return name

    def find(self, dtypes: tuple[type, ...], ranks: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> str:
        """A value of one of the types and ranks; what was computed last is preferred, seldom a new one."""
        fits = [n for n, a in self.arrays.items() if a.dtype.type in dtypes and a.ndim in ranks]
        if not fits or self.chance(0.15):
            return self.add(self.values(self.shape(int(self.random.choice(ranks))), self.pick(dtypes)))  # type: ignore[arg-type]
        weights = np.arange(1, len(fits) + 1, dtype=np.float64)
        return fits[int(self.random.choice(len(fits), p=weights / weights.sum()))]

    def model(self, nodes: list[onnx.NodeProto], outputs: list[str], *, dynamic: bool = False) -> onnx.ModelProto:
        """The model of `nodes`; with `dynamic`, axes of graph inputs are symbolic."""
        produced = {n for node in nodes for n in node.output}
        used = {n for node in nodes for n in _names(node)} - produced
        infos = []
        for name in [*self.inputs, *(n for n in self.arrays if n in used and n not in self.constants)]:
            if name in used and name not in [i.name for i in infos]:
                array = self.arrays[name]
                axes = [f"{name}_{axis}" if dynamic and size > 1 else size for axis, size in enumerate(array.shape)]
                infos.append(_info(name, array, axes))
        graph = helper.make_graph(
            nodes,
            "random",
            infos,
            [_info(n, self.arrays[n], None) if n in self.arrays else onnx.ValueInfoProto(name=n) for n in outputs],
            [numpy_helper.from_array(self.arrays[n], n) for n in self.constants if n in used],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)

    def grow(self, op_type: str, inputs: list[str], outputs: int = 1, **attributes: object) -> bool:
        """Append a node, where it is valid and its values are useful."""
        names = [self.name() for _ in range(outputs)]
        kept = {k: v for k, v in attributes.items() if v is not None}
        node = helper.make_node(op_type, inputs, names, name=f"{op_type}_{self.count}", **kept)
        alone = self.model([node], names)
        given = {i.name: self.arrays[i.name] for i in alone.graph.input}
        try:
            found = results(alone, given)
        except Exception:
            return False
        for array in found:
            if array.size > MOST_ELEMENTS or array.ndim > 6 or not _useful(array):
                return False
        self.nodes.append(node)
        self.arrays |= dict(zip(names, found, strict=True))
        return True


def _useful(array: np.ndarray) -> bool:
    if array.dtype.kind != "f":
        return True
    return bool(np.isfinite(array).all()) and float(np.abs(array).max(initial=0.0)) < LARGEST


def _names(node: onnx.NodeProto) -> list[str]:
    graphs = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [*node.input, *(n for graph in graphs for inner in graph.node for n in _names(inner))]


def _info(name: str, array: np.ndarray, shape: list[object] | None) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, [None] * array.ndim if shape is None else shape)


def graph(seed: int) -> tuple[onnx.ModelProto, Feeds]:
    """The graph of a seed and values for its inputs; the same every time."""
    from tools.random_graphs import operators

    random = np.random.default_rng(seed)
    made = Growing(random, int(random.choice(OPSETS)))
    for _ in range(int(random.integers(1, 4))):
        made.add(made.values(made.shape(), made.pick(KINDS)), constant=False)  # type: ignore[arg-type]
    wanted = int(random.integers(5, 21))
    for _ in range(6 * wanted):
        if len(made.nodes) >= wanted:
            break
        operators.grow(made)
    used = {n for node in made.nodes for n in _names(node)}
    outputs = [n for node in made.nodes for n in node.output if n not in used or made.chance(0.1)]
    model = made.model(made.nodes, outputs, dynamic=made.chance(0.5))
    onnx.checker.check_model(model)
    return model, {i.name: made.arrays[i.name] for i in model.graph.input}
