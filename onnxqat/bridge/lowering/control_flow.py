"""Operators with subgraphs.

A condition that is known at import leaves one branch, lowered in place. Otherwise each subgraph is a module of its
own: its arguments are the operator's, then the outer tensors that it reads. Weights stay in the outermost module.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from onnxqat.bridge.builder import Builder, Lowered, NodeView
from onnxqat.graph import query


def run_branch(
    condition: torch.Tensor, then_branch: Any, then_arguments: Any, else_branch: Any, else_arguments: Any
) -> Any:
    """The outputs of one of two modules."""
    return then_branch(*then_arguments) if bool(condition) else else_branch(*else_arguments)


def run_loop(
    body: Any, limit: int | None, condition: Any, carried: Any, captured: Any, empty: Any, device: Any
) -> tuple[torch.Tensor, ...]:
    """Loop: carried values, then each scan output stacked.

    Args:
        body: module (iteration, condition, *carried, *captured) -> (condition, *carried, *scans).
        limit: largest number of iterations, None for no limit.
        condition: tensor that starts the loop, None where the body always goes on.
        carried: loop-carried values.
        captured: outer tensors that the body reads.
        empty: shape and type of each scan output, for a loop that does not run; None where unknown.
        device: where the iteration number lives.
    """
    state, scans = list(carried), [list[torch.Tensor]() for _ in empty]
    going: Any = True if condition is None else condition
    iteration = 0
    while (limit is None or iteration < limit) and bool(going):
        number = torch.tensor(iteration, dtype=torch.int64, device=device)
        flag = torch.tensor(True, device=device) if condition is None else torch.as_tensor(going, device=device)
        results = body(number, flag, *state, *captured)
        going = True if condition is None else results[0]
        state = list(results[1 : 1 + len(state)])
        for scan, value in zip(scans, results[1 + len(state) :], strict=True):
            scan.append(value)
        iteration += 1
    return (*state, *(_stacked(scan, kind, device) for scan, kind in zip(scans, empty, strict=True)))


def _stacked(values: list[torch.Tensor], kind: Any, device: Any) -> torch.Tensor:
    if values:
        return torch.stack(values)
    if kind is None:
        raise ValueError("a loop that does not run has a scan output of unknown shape")
    shape, dtype = kind
    return torch.zeros([0, *shape], dtype=dtype, device=device)


def run_scan(
    body: Any,
    states: Any,
    inputs: Any,
    captured: Any,
    input_axes: list[int],
    input_directions: list[int],
    output_axes: list[int],
    output_directions: list[int],
) -> tuple[torch.Tensor, ...]:
    """Scan: final states, then each scan output stacked along its axis."""
    state = list(states)
    sliced = [
        list(x.flip(axis).unbind(axis) if backwards else x.unbind(axis))
        for x, axis, backwards in zip(inputs, input_axes, input_directions, strict=True)
    ]
    scans = [list[torch.Tensor]() for _ in output_axes]
    for step in zip(*sliced, strict=True):
        results = body(*state, *step, *captured)
        state = list(results[: len(state)])
        for scan, value in zip(scans, results[len(state) :], strict=True):
            scan.append(value)
    stacked = [
        torch.stack(scan[::-1] if backwards else scan, axis)
        for scan, axis, backwards in zip(scans, output_axes, output_directions, strict=True)
    ]
    return (*state, *stacked)


def if_(n: NodeView) -> Lowered:
    """If 1 to 25."""
    known = n.static(0)
    if known is not None:
        graph = n.subgraph("then_branch" if bool(known.reshape(())) else "else_branch")
        n.lower(n.builder, graph)
        return tuple(n.builder.lookup(v) for v in graph.outputs)
    arguments: list[Any] = [n.tensor(0)]
    for name in ("then_branch", "else_branch"):
        scope = n.scope(name)
        graph = n.subgraph(name)
        n.lower(scope, graph)
        arguments += _finish(n, scope, name, [scope.lookup(v) for v in graph.outputs])
    results = n.call(run_branch, *arguments)
    return tuple(n.item(results, i) if n.wants(i) else None for i in range(len(n.node.outputs)))


def _finish(n: NodeView, scope: Builder, name: str, results: list[Any]) -> list[Any]:
    """Close a subgraph's module; returns the node of the module and its captured arguments."""
    module = n.close_scope(scope, [scope.tensor(v) for v in results])
    return [module, list(scope.captured)]


def loop(n: NodeView) -> Lowered:
    """Loop 1 to 25; the number of iterations and the condition may be computed at run time."""
    graph = n.subgraph("body")
    scope = n.scope("body")
    carried = [n.tensor(i) for i in range(2, n.count)]
    for value in graph.inputs:
        scope.define(value, scope.placeholder(str(value.name or "")))
    n.lower(scope, graph)
    outputs = [scope.lookup(v) for v in graph.outputs]
    endless = _is_true(n, 1) and _goes_on(graph)
    limit = n.scalar(0) if n.has(0) else None
    condition = None if endless else (n.tensor(1) if n.has(1) else True)
    module, captured = _finish(n, scope, "body", outputs)
    empty = [_empty_like(v) for v in graph.outputs[1 + len(carried) :]]
    results = n.call(run_loop, module, limit, condition, carried, captured, empty, n.device())
    return tuple(n.item(results, i) if n.wants(i) else None for i in range(len(n.node.outputs)))


def _is_true(n: NodeView, index: int) -> bool:
    known = n.static(index)
    return not n.has(index) or (known is not None and bool(known.reshape(())))


def _goes_on(graph: ir.Graph) -> bool:
    """Whether the body's condition is constantly true, or its own input handed through."""
    value = graph.outputs[0]
    producer = value.producer()
    while producer is not None and producer.op_type == "Identity" and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    known = query.constant_array(value)
    return value is graph.inputs[1] or (known is not None and bool(known.reshape(())))


def _empty_like(value: ir.Value) -> Any:
    from onnxqat.bridge.values import TORCH_DTYPES

    if value.shape is None or value.dtype not in TORCH_DTYPES:
        return None
    return [d if isinstance(d, int) else 0 for d in value.shape], TORCH_DTYPES[value.dtype]


def scan(n: NodeView) -> Lowered:
    """Scan 9 to 25."""
    graph, scope = n.subgraph("body"), n.scope("body")
    scanned = int(n.attr("num_scan_inputs"))
    states = [n.tensor(i) for i in range(n.count - scanned)]
    inputs = [n.tensor(i) for i in range(n.count - scanned, n.count)]
    produced = len(graph.outputs) - len(states)
    for value in graph.inputs:
        scope.define(value, scope.placeholder(str(value.name or "")))
    n.lower(scope, graph)
    module, captured = _finish(n, scope, "body", [scope.lookup(v) for v in graph.outputs])
    results: fx.Node = n.call(
        run_scan,
        module,
        states,
        inputs,
        captured,
        n.attr("scan_input_axes") or [0] * scanned,
        n.attr("scan_input_directions") or [0] * scanned,
        n.attr("scan_output_axes") or [0] * produced,
        n.attr("scan_output_directions") or [0] * produced,
    )
    return tuple(n.item(results, i) if n.wants(i) else None for i in range(len(n.node.outputs)))
