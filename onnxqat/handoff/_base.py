"""What a compiler is: a file of this folder with a class ``Compiler``, found by its name."""

from __future__ import annotations

import abc
import dataclasses
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy.typing as npt
import onnx
import onnx.shape_inference

from onnxqat import discover
from onnxqat.errors import UsageError
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE

Array: TypeAlias = "npt.NDArray[Any]"
Kind = Literal["integer", "moved", "float"]

HEAVY = (
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "AveragePool",
    "GlobalAveragePool",
    "MaxPool",
    "Add",
    "Mul",
    "Concat",
)
"""Operators whose integer coverage is reported."""

MOVES = (
    "Reshape",
    "Transpose",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Split",
    "Gather",
    "Tile",
    "Expand",
    "DepthToSpace",
    "SpaceToDepth",
    "Identity",
    "Resize",
    "Pad",
)
"""Operators that only move numbers: on integers they count as integer."""

ABSORBED = "absorbed by a neighbour"
_PACKAGE = __name__.rpartition(".")[0]


@dataclasses.dataclass(frozen=True)
class NodeResult:
    """How the compiler runs one node of the user's model; quantizers are not listed.

    Attributes:
        name: the node's name; its first output where it has none.
        op_type: its operator.
        kind: ``integer``: computed on integers; ``moved``: only moves or reinterprets, on integers, or was absorbed by
            a neighbour; ``float``.
        detail: the operator or kernel that the compiler chose.
    """

    name: str
    op_type: str
    kind: Kind
    detail: str


@dataclasses.dataclass(frozen=True)
class CompilerResult:
    """What came out of one compilation.

    Attributes:
        outputs: the graph outputs by name, one dict a batch.
        nodes: the nodes of the main graph, in graph order.
        files: names of the vendor files that were written.
    """

    outputs: tuple[dict[str, Array], ...]
    nodes: tuple[NodeResult, ...]
    files: tuple[str, ...] = ()


class BaseCompiler(abc.ABC):
    """A compiler or runtime that takes QDQ ONNX.

    Args:
        options: settings that the backend's table asks for.
    """

    name: str = ""
    package: str = ""
    extra: str | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.name or cls.__module__.rpartition(".")[2].replace("_", "-")

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self.options = dict(options or {})

    def version(self) -> str | None:
        """Version of the installed package, None where it is not installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def missing(self) -> UsageError:
        """The error for a compiler that is not installed."""
        what = f"onnxqat[{self.extra}]" if self.extra else self.package
        return UsageError(
            "dependency-missing", f"{self.name} needs the package {self.package}", hint=f"pip install '{what}'"
        )

    @abc.abstractmethod
    def compile_and_run(
        self, path: Path, batches: Sequence[Mapping[str, Array]], artefacts: Path | None = None
    ) -> CompilerResult:
        """Compile the model at `path`, run `batches` through it and read back how each node runs.

        Args:
            path: the deploy form.
            batches: feeds by input name.
            artefacts: folder for the vendor's own files, if it makes any that others can load.

        Raises:
            UsageError: ``dependency-missing``.
        """


def names() -> list[str]:
    """Names of the compilers."""
    return [n.replace("_", "-") for n in discover.names(_PACKAGE) if n != "handoff"]


def load(name: str, options: Mapping[str, str] | None = None) -> BaseCompiler:
    """The compiler called `name`.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist.
    """
    if name.replace("_", "-") not in names():
        raise discover.unknown("compiler", name, names())
    made = discover.load(_PACKAGE, name).Compiler(options)
    assert isinstance(made, BaseCompiler)
    return made


class Nodes:
    """The nodes of the user's main graph, found by what a compiler calls them.

    Quantizers, constants and shape arithmetic (results of type int32, int64 or bool) are left out.

    Args:
        model: the model that was compiled; external data need not be loaded.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        graph, shapes = model.graph, _shape_tensors(model)
        skipped = quantizer_nodes(graph)
        self.all = [
            node
            for i, node in enumerate(graph.node)
            if i not in skipped and node.op_type != "Constant" and not shapes.issuperset(node.output)
        ]
        self._found: dict[str, onnx.NodeProto] = {}
        for node in self.all:
            for output in node.output:
                self._found.setdefault(output, node)
        for node in self.all:
            if node.name:
                self._found[node.name] = node
        self._kinds: dict[int, tuple[Kind, str]] = {}

    def find(self, name: str) -> onnx.NodeProto | None:
        """The node called `name`, or the one that makes the tensor of that name."""
        return self._found.get(name)

    def seen(self, node: onnx.NodeProto, kind: Kind, detail: str) -> None:
        """Note how `node` runs; integer wins over float where several kernels carry its name."""
        known = self._kinds.get(id(node))
        if known is None or (known[0] == "float" and kind != "float"):
            self._kinds[id(node)] = (kind, detail)

    def results(self) -> tuple[NodeResult, ...]:
        """All nodes; one without a counterpart was absorbed, which for a heavy operator counts as float."""
        found = []
        for node in self.all:
            lost: tuple[Kind, str] = ("moved", ABSORBED)
            if node.op_type in HEAVY:
                lost = ("float", "no counterpart in the compiled model")
            kind, detail = self._kinds.get(id(node), lost)
            if kind == "integer" and node.op_type in MOVES:
                kind = "moved"
            elif kind == "moved" and node.op_type not in MOVES:
                detail = ABSORBED
            found.append(NodeResult(node.name or node.output[0], node.op_type, kind, detail))
        return tuple(found)


def _shape_tensors(model: onnx.ModelProto) -> set[str]:
    """Tensors that hold shapes, indices or conditions, as far as types can be inferred."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:  # an operator that onnx does not know: its nodes are listed, whatever they are
        graph = model.graph
    kinds = (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL)
    return {v.name for v in (*graph.value_info, *graph.output) if v.type.tensor_type.elem_type in kinds}


def quantizer_nodes(graph: onnx.GraphProto) -> set[int]:
    """Positions of QuantizeLinear, DequantizeLinear, and the Clip on the codes between them."""
    makers = {output: node.op_type for node in graph.node for output in node.output}
    return {
        i
        for i, node in enumerate(graph.node)
        if node.op_type in (QUANTIZE, DEQUANTIZE) or (node.op_type == "Clip" and makers.get(node.input[0]) == QUANTIZE)
    }


def split_names(text: str, known: Nodes) -> Iterator[onnx.NodeProto]:
    """Nodes of a comma separated list whose names may hold commas themselves, and suffixes behind a slash."""
    parts = text.split(",")
    start = 0
    while start < len(parts):
        for stop in range(len(parts), start, -1):
            name = ",".join(parts[start:stop])
            node = known.find(name)
            if node is not None:
                yield node
                start = stop
                break
        else:
            name = parts[start]
            while "/" in name and known.find(name) is None:
                name = name.rpartition("/")[0]
            node = known.find(name) if name else None
            if node is not None:
                yield node
            start += 1
