"""Nodes that run into a limit of the target's compiler, known before anything is calibrated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.backends import conditions
from onnxqat.backends.limits import SAID, Limit
from onnxqat.backends.schema import Backend
from onnxqat.errors import ModelError
from onnxqat.graph import qdq, query
from onnxqat.placement import planner
from onnxqat.placement.table_overrides import NodeSelection
from onnxqat.types import QuantPlan, Remark

_SHOWN = 3


def met(model: ir.Model, table: Backend, is_quantized: Callable[[ir.Node], bool]) -> Iterator[tuple[ir.Node, Limit]]:
    """Nodes that compute data, with the first limit that each meets: those of the main graph, and each If in branches.

    Args:
        model: it is only read.
        table: backend table.
        is_quantized: whether a node stands between pairs.
    """
    data = dataflow.data_nodes(model.graph) if table.limits else ()
    for node in dataflow.in_order(model.graph) if table.limits else ():
        if node.domain or node not in data or (node.graph is not model.graph and node.op_type != "If"):
            continue
        for limit in table.limits:
            fits = limit.form == "any" or (limit.form == "quantized") == is_quantized(node)
            if node.op_type not in limit.ops or not fits or any(conditions.unmet(node, limit.when)):
                continue
            if _reads(node, limit.producers) and _has_form(node, limit):
                yield node, limit
                break


def _reads(node: ir.Node, producers: tuple[str, ...]) -> bool:
    made = (value.producer() for value in node.inputs if value is not None)
    return not producers or any(n is not None and not n.domain and n.op_type in producers for n in made)


def _has_form(node: ir.Node, limit: Limit) -> bool:
    """Check the numbers of axes and the weight of `node`; axes that are not known are none."""
    if limit.rank and query.rank(node.inputs[0]) != limit.rank:
        return False
    if limit.unlike_ranks and not _returns_unlike_ranks(node):
        return False
    return not limit.computed or (len(node.inputs) > 1 and query.constant_tensor(node.inputs[1]) is None)


def _returns_unlike_ranks(node: ir.Node) -> bool:
    returned = zip(*(branch.outputs for branch in dataflow.branches(node)), strict=False)
    ranks = ({query.rank(value) for value in values} - {None} for values in returned)
    return any(len(each) > 1 for each in ranks)


def planned(plan: QuantPlan) -> Callable[[ir.Node], bool]:
    """Tell of a node whether `plan` puts it between pairs, or the file has it between pairs that are kept."""
    left = {name for name, _ in plan.float_nodes}
    tensors = {edge.tensor for edge in plan.edges} | set(plan.bare)

    def is_quantized(node: ir.Node) -> bool:
        if _is_between_kept(node):
            return True
        values = (*node.inputs, *node.outputs)
        return query.label(node) not in left and any(v is not None and v.name in tensors for v in values)

    return is_quantized


def _is_between_kept(node: ir.Node) -> bool:
    reads = any(qdq.is_dequantize(query.producer(value)) for value in node.inputs)
    return reads and any(qdq.is_quantize(user) for value in node.outputs for user in value.consumers())


def stopped(model: ir.Model, table: Backend, plan: QuantPlan) -> frozenset[str]:
    """Names of the nodes that the compiler stops at where `plan` is carried out."""
    return frozenset(query.label(node) for node, limit in met(model, table, planned(plan)) if limit.stops)


def check(model: ir.Model, table: Backend, chosen: NodeSelection) -> list[Remark]:
    """Raise an error for nodes that the compiler stops at, and return remarks on those that it leaves to the CPU.

    Args:
        model: prepared float model.
        table: backend table, user overrides applied.
        chosen: nodes that the user took out.

    Raises:
        ModelError: ``target-refuses``.
    """
    if not table.limits:
        return []
    found = list(met(model, table, planned(planner.plan(model, table, chosen))))
    stops = [(node, limit) for node, limit in found if limit.stops]
    if stops:
        node, limit = stops[0]
        others = f"; so it is with {len(stops) - 1} more nodes" if stops[1:] else ""
        raise ModelError(
            "target-refuses",
            f"node {query.label(node)!r}: {sentence(node, limit, table)}{others}",
            hint="replace the operator, cut it off with `onnxqat cut`, or take the row out of `limits` in a table of your own",
        )
    return [
        Remark(sentence(node, limit, table), (query.label(node),), "plan") for node, limit in found[:_SHOWN]
    ] + _rest(found[_SHOWN:], table)


def _rest(found: list[tuple[ir.Node, Limit]], table: Backend) -> list[Remark]:
    nodes = tuple(query.label(node) for node, _ in found)
    return [Remark(f"{table.backend} leaves more nodes to the CPU", nodes, "plan")] if nodes else []


def sentence(node: ir.Node, limit: Limit, table: Backend) -> str:
    """Say what the compiler does about `node`, and why."""
    form = {"any": "", "float": " in float", "quantized": " between pairs"}[limit.form]
    conditioned = "".join(f" {conditions.spelled(key, value)}" for key, value in limit.when.items())
    conditioned += f" over {limit.rank} axes" if limit.rank else ""
    conditioned += " with a computed weight" if limit.computed else ""
    conditioned += " whose branches return different numbers of axes" if limit.unlike_ranks else ""
    behind = f" behind {' or '.join(limit.producers)}" if limit.producers else ""
    return (
        f"the compiler of {table.backend} {SAID[limit.outcome]}: {node.op_type}{behind}{form}{conditioned}: {limit.why}"
    )
