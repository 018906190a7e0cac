"""The nodes of the user's graph, and how the compiler says that it runs each of them."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterable, Iterator, Mapping

import onnx
import onnx.shape_inference

from onnxqat.counts import counted
from onnxqat.deployment.base_compiler import ABSORBED, HEAVY, MOVES, Kind, NodeResult
from onnxqat.graph import inference
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE
from onnxqat.types import Remark

_TYPE = onnx.TensorProto
_INTEGERS = (_TYPE.INT32, _TYPE.INT64, _TYPE.UINT32, _TYPE.UINT64, _TYPE.BOOL)
_CODES = (_TYPE.INT8, _TYPE.UINT8, _TYPE.INT16, _TYPE.UINT16)


class Nodes:
    """The nodes of the user's main graph, found by what a compiler calls them.

    Quantizers, constants and arithmetic of integers, such as that of shapes and of integer functions, are left out, and
    so is If, which computes nothing but what its branches do (:meth:`inside`).

    Args:
        model: the model that was compiled; external data need not be loaded.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._integers = _integer_tensors(model)
        self._open(model.graph)

    def _open(self, graph: onnx.GraphProto) -> None:
        skipped = {*quantizer_nodes(graph), *(i for i, n in enumerate(graph.node) if n.op_type in ("Constant", "If"))}
        self.all = [
            node for i, node in enumerate(graph.node) if i not in skipped and not self._integers.issuperset(node.output)
        ]
        self._makers = {output: node for node in graph.node for output in node.output}
        self._found: dict[str, onnx.NodeProto] = {}
        for node in self.all:
            for output in node.output:
                self._found.setdefault(output, node)
        for node in self.all:
            if node.name:
                self._found[node.name] = node
        self._kinds: dict[int, tuple[Kind, str, str]] = {}

    def inside(self, body: onnx.GraphProto) -> Nodes:
        """The nodes of the body of an If, Loop or Scan of the same model."""
        made = copy.copy(self)
        made._open(body)  # noqa: SLF001
        return made

    def find(self, name: str) -> onnx.NodeProto | None:
        """The node called `name`, or the one that makes the tensor of that name."""
        return self._found.get(name)

    def seen(self, node: onnx.NodeProto, kind: Kind, detail: str, why: str = "") -> None:
        """Note how `node` runs; integer wins over float where several kernels carry its name, rejected over both."""
        known = self._kinds.get(id(node))
        if known is None or kind == "rejected" or (known[0] == "float" and kind != "float"):
            self._kinds[id(node)] = (kind, detail, why if kind in ("float", "rejected") else "")

    def folded(self, *, through_quantizers: bool) -> None:
        """Give each node that the compiler does not list the kind of the first producer of its inputs that is listed.

        Args:
            through_quantizers: whether Q/DQ between the two are no obstacle.
        """
        for node in self.all:
            if id(node) in self._kinds:
                continue
            for name in node.input:
                maker = self._makers.get(name)
                while through_quantizers and maker is not None and maker.op_type in (QUANTIZE, DEQUANTIZE, "Clip"):
                    if id(maker) in self._kinds:
                        break
                    maker = self._makers.get(maker.input[0])
                known = self._kinds.get(id(maker)) if maker is not None else None
                if known is not None:
                    kind, detail, why = known
                    self._kinds[id(node)] = (
                        "moved" if kind == "integer" and node.op_type in MOVES else kind,
                        detail,
                        why,
                    )
                    break

    def results(self) -> tuple[NodeResult, ...]:
        """All nodes; one without a counterpart was absorbed, which counts as float for what computes.

        A Concat that is not listed costs nothing: what makes its inputs writes to their places in its output.
        """
        found = []
        for node in self.all:
            lost: tuple[Kind, str, str] = ("moved", ABSORBED, "")
            if node.op_type in HEAVY and node.op_type != "Concat":
                lost = ("float", "no counterpart in the compiled model", "")
            kind, detail, why = self._kinds.get(id(node), lost)
            if kind == "integer" and node.op_type in MOVES:
                kind = "moved"
            elif kind == "moved" and node.op_type not in MOVES:
                detail = ABSORBED
            found.append(NodeResult(node.name or node.output[0], node.op_type, kind, detail, why))
        return tuple(found)


def _integer_tensors(model: onnx.ModelProto) -> set[str]:
    """Tensors of numbers that are integers by themselves, or conditions, as far as types can be inferred.

    Tensors of 8 and 16 bits are the codes of quantizers, whose nodes are listed: all but those that a Cast makes of
    longer integers, as at the end of an integer function.
    """
    try:
        graph = inference.infer_shapes(model).graph
    except Exception:  # an operator that onnx does not know: its nodes are listed, whatever they are
        graph = model.graph
    graphs = [graph, *(body for _, body in inner_graphs(graph))]
    typed = [v for each in graphs for v in (*each.value_info, *each.output)]
    found = {v.name for v in typed if v.type.tensor_type.elem_type in _INTEGERS}
    codes = {v.name for v in typed if v.type.tensor_type.elem_type in _CODES}
    nodes = (node for each in graphs for node in each.node)
    casts = (node for node in nodes if node.op_type == "Cast" and found.issuperset(node.input))
    return found | {node.output[0] for node in casts if node.output[0] in codes}


def bodies(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    """The bodies that `node` itself holds, by the name of the attribute."""
    return {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}


def inner_graphs(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, onnx.GraphProto]]:
    """Yield the bodies in `graph`, at any depth, each with the node that holds it."""
    for node in graph.node:
        for body in bodies(node).values():
            yield node, body
            yield from inner_graphs(body)


def unlisted(listed: Iterable[NodeResult], model: onnx.ModelProto, compiler: str) -> Iterator[Remark]:
    """Yield a remark on bodies of which `compiler` does not say how it runs their nodes, `listed` being all that it says."""
    known, nodes = {node.name for node in listed}, Nodes(model)
    for holder, body in inner_graphs(model.graph):
        inner = [n for n in nodes.inside(body).all if (n.name or n.output[0]) not in known]
        if inner:
            name = holder.name or holder.output[0]
            text = f"{compiler} does not say how it runs {counted(len(inner), 'node')} in {body.name!r} of {name}"
            yield Remark(text, tuple(n.name or n.output[0] for n in inner), "handoff")


def quantizer_nodes(graph: onnx.GraphProto) -> set[int]:
    """Positions of QuantizeLinear, DequantizeLinear, and the Clip on the codes between them."""
    makers = {output: node for node in graph.node for output in node.output}
    return {
        i for i, node in enumerate(graph.node) if node.op_type in (QUANTIZE, DEQUANTIZE) or codes_clip(node, makers)
    }


def codes_clip(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto]) -> bool:
    """Check whether `node` is a Clip on the codes of a QuantizeLinear."""
    maker = makers.get(node.input[0]) if node.op_type == "Clip" and node.input else None
    return maker is not None and maker.op_type == QUANTIZE


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


def above(
    outputs: Iterable[str], makers: Mapping[str, onnx.NodeProto], made: Container[str]
) -> Iterator[onnx.NodeProto]:
    """Nodes of the original graph that a compiled node stands for: up from its outputs, not beyond what others make.

    Args:
        outputs: tensors that the compiled node makes.
        makers: nodes of the original graph by each tensor that they make.
        made: tensors that any compiled node makes.
    """
    pending = [o for o in outputs if o in makers]
    seen = set(pending)
    while pending:
        maker = makers[pending.pop()]
        yield maker
        for name in maker.input:
            if name in makers and name not in made and name not in seen:
                seen.add(name)
                pending.append(name)
