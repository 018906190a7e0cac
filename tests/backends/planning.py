"""Plans of small graphs given as ONNX text."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxqat.backends import schema
from onnxqat.insertion.insert import prepare
from onnxqat.placement import planner, table_overrides
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import Decision, Edge, QuantPlan, Shared, TensorSpec

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'


def proto(text: str) -> onnx.ModelProto:
    """The model of `text`; its header may be left out."""
    model = onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER + text)
    onnx.checker.check_model(model)
    return model


def graph(text: str) -> ir.Graph:
    """The graph of `text`, nothing inferred or rewritten."""
    return ir.from_proto(proto(text)).graph


def table_file(folder: Path, text: str) -> str:
    """Path of a YAML table with `text`."""
    path = folder / "table.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def plan(
    source: str | onnx.ModelProto,
    backend: str = "onnxruntime-cpu",
    *,
    mixed_range: Mapping[str, str] | None = None,
    **overrides: object,
) -> QuantPlan:
    """The plan for a model, prepared as insert-qdq prepares it."""
    chosen = Overrides(**overrides)  # type: ignore[arg-type]
    table = table_overrides.apply(chosen, schema.load(backend))
    model = ir.from_proto(proto(source) if isinstance(source, str) else source)
    return planner.plan(model, table, prepare(model, table, chosen, []), mixed_range=mixed_range)


def edges(found: QuantPlan) -> dict[str, list[Edge]]:
    """Edges by tensor."""
    result: dict[str, list[Edge]] = {}
    for edge in found.edges:
        result.setdefault(edge.tensor, []).append(edge)
    return result


def decision(found: QuantPlan, tensor: str) -> Decision:
    """The only decision for `tensor`."""
    (edge,) = edges(found)[tensor]
    return edge.decision


def spec(found: QuantPlan, tensor: str) -> TensorSpec:
    """The spec of `tensor`, of its group's root where it is tied."""
    first = edges(found)[tensor][0].decision
    if isinstance(first, Shared):
        first = next(e.decision for e in edges(found)[first.root] if isinstance(e.decision, TensorSpec))
    assert isinstance(first, TensorSpec)
    return first


def root(found: QuantPlan, tensor: str) -> str:
    """Root of the group of `tensor`; itself where it shares with no other."""
    tied = [e.decision.root for e in edges(found)[tensor] if isinstance(e.decision, Shared)]
    return tied[0] if tied else tensor


def reasons(found: QuantPlan) -> dict[str, str]:
    """Why nodes stay in float."""
    return dict(found.float_nodes)


@functools.cache
def weight(*shape: int) -> str:
    """Literal values of a constant of that shape: -0.5, -0.4, ... 0.5, again and again."""
    size = functools.reduce(lambda a, b: a * b, shape, 1)
    return "{" + ", ".join(str((i % 11 - 5) / 10) for i in range(size)) + "}"
