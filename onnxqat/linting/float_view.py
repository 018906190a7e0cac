"""The model without its quantizers, for what is a matter of the float graph: where data flows, what a table wants."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxqat.backends.schema import Backend
from onnxqat.graph import build, qdq, query, shapes, walk
from onnxqat.insertion.prepare import prepare
from onnxqat.passes import _base
from onnxqat.passes.convert_to_float32 import OTHERS
from onnxqat.passes.store_batchnorm import StoreBatchnorm
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.passes.unique_names import UniqueNames
from onnxqat.placement.table_overrides import Overrides


@dataclasses.dataclass(frozen=True, eq=False)
class FloatView:
    """A copy of a model without quantizers.

    Attributes:
        model: the copy; every node has a name of its own.
        originals: for the name of a node of the copy, the node of the file, where it has one.
        left_float: for the name of a node, why placement left it in float, where the file says so.
        backend: the table that the file was made for, where it says so.
        exact: whether the file says that it was made with ``--exact``.
    """

    model: ir.Model
    originals: dict[str, ir.Node]
    left_float: dict[str, str]
    backend: str
    exact: bool
    _copies: dict[int, ir.Node] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for node in walk.nodes(self.model):
            original = self.originals.get(str(node.name))
            if original is not None:
                self._copies[id(original)] = node

    def node(self, original: ir.Node) -> ir.Node | None:
        """The copy of a node of the file."""
        return self._copies.get(id(original))


def plain_view(model: ir.Model, table: Backend | None = None) -> FloatView:
    """A copy of `model` without quantizers.

    Args:
        model: it is only read.
        table: where `model` is a float model: prepare the copy as placement for this table would.

    Raises:
        QatError: the quantizers cannot be taken out, or the model cannot be prepared.
    """
    copy = model.clone()
    backend = copy.metadata_props.get("onnxqat.backend", "")
    exact = copy.metadata_props.get("onnxqat.exact") == "yes"
    _base.rewrite(copy, [UniqueNames()])
    pairs = zip(walk.nodes(model), walk.nodes(copy), strict=True)
    originals = {str(ours.name): theirs for theirs, ours in pairs}
    if qdq.is_quantized(copy):
        _base.rewrite(copy, [StripQdq(), StoreBatchnorm("float")])
        _end_before_casts(copy.graph)
        shapes.infer(copy)
    elif table is not None:
        prepare(copy, table, Overrides(), [])
    else:
        shapes.infer(copy)
    reasons = {str(n.name): n.metadata_props.get(build.LEFT_FLOAT, "") for n in walk.nodes(copy)}
    return FloatView(copy, originals, {name: reason for name, reason in reasons.items() if reason}, backend, exact)


def _end_before_casts(graph: ir.Graph) -> None:
    """Let outputs of other float types than float32 leave the graph in front of their Casts, as placement saw them."""
    for index, value in enumerate(graph.outputs):
        cast = value.producer()
        if cast is None or cast.op_type != "Cast" or cast.domain or value.dtype not in OTHERS or query.reads(value):
            continue
        source = cast.inputs[0]
        if source is None or source.dtype is not ir.DataType.FLOAT or source.producer() is None:
            continue
        graph.outputs[index] = source
        if not value.is_graph_output():
            graph.remove(cast, safe=True)
