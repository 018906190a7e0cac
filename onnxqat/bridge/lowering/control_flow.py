"""Operators with subgraphs.

A condition that is known at import leaves one branch, lowered in place. Otherwise each subgraph is a module of its
own: its arguments are the operator's, then the outer tensors that it reads. Weights stay in the outermost module.

Under torch.export and torch.compile an `If` on data becomes ``torch.cond`` where both branches give tensors; elsewhere
the condition is read back and Python takes the branch. The number of an iteration is a Python number, so that a loop
of known length unrolls and its body may index with it. A loop that ends on data cannot be exported.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from onnxqat.bridge.importing.builder import Builder, Lowered, NodeView
from onnxqat.bridge.importing.values import TORCH_DTYPES, Dims
from onnxqat.graph import query


def run_branch(condition: Any, then_branch: Any, then_arguments: Any, else_branch: Any, else_arguments: Any) -> Any:
    """The outputs of one of two modules, whatever their types."""
    return then_branch(*then_arguments) if bool(condition) else else_branch(*else_arguments)


def choose_branch(condition: Any, then_branch: Any, then_arguments: Any, else_branch: Any, else_arguments: Any) -> Any:
    """The outputs of one of two modules that give tensors; both are in the graph when it is exported or compiled."""
    if not isinstance(condition, torch.Tensor) or not torch.compiler.is_compiling():
        return run_branch(condition, then_branch, then_arguments, else_branch, else_arguments)
    count = len(then_arguments)

    # torch.cond takes one list of operands and does not allow a result to be one of them.
    def on_true(*operands: Any) -> tuple[torch.Tensor, ...]:
        return tuple(result.clone() for result in then_branch(*operands[:count]))

    def on_false(*operands: Any) -> tuple[torch.Tensor, ...]:
        return tuple(result.clone() for result in else_branch(*operands[count:]))

    return torch.cond(condition.reshape(()), on_true, on_false, (*then_arguments, *else_arguments))


BRANCHING = (run_branch, choose_branch)
"""Functions that run each body at most once."""


def run_loop(
    body: Any, limit: int | None, condition: Any, carried: Any, captured: Any, empty: Any, device: Any
) -> tuple[torch.Tensor, ...]:
    """Loop: carried values, then each scan output stacked.

    Args:
        body: module (iteration, condition, *carried, *captured) -> (condition, *carried, *scans).
        limit: largest number of iterations, None for no limit.
        condition: what starts the loop, a tensor or a bool; None where the body always goes on.
        carried: loop-carried values.
        captured: outer tensors that the body reads.
        empty: shape and type of each scan output, for a loop that does not run; None where they are unknown at
            import: then those of an iteration that is run for this alone.
        device: where the condition lives.
    """
    state = list(carried)
    scans: list[list[torch.Tensor]] = [[] for _ in empty]
    going: Any = True if condition is None else condition
    iteration = 0
    while (limit is None or iteration < limit) and bool(going):
        flag = going if isinstance(going, torch.Tensor) else torch.full((), bool(going), device=device)
        results = body(iteration, flag, *state, *captured)
        going = True if condition is None else results[0]
        state = list(results[1 : 1 + len(state)])
        for scan, value in zip(scans, results[1 + len(state) :], strict=True):
            scan.append(value)
        iteration += 1
    if not iteration and None in empty:
        flag = torch.full((), True, device=device)
        empty = _of_one_iteration(body, (0, flag, *state, *captured), 1 + len(state), empty)
    return (*state, *(_stacked(scan, kind, 0, device) for scan, kind in zip(scans, empty, strict=True)))


def _stacked(values: list[torch.Tensor], kind: Any, axis: int, device: Any) -> torch.Tensor:
    if values:
        return torch.stack(values, axis)
    if kind is None:  # as in onnxruntime
        return torch.zeros(0, device=device)
    shape, dtype = kind
    return torch.zeros([0, *shape], dtype=dtype, device=device).movedim(0, axis)


def _of_one_iteration(body: Any, arguments: tuple[Any, ...], first: int, empty: Any) -> list[Any]:
    """`empty` with what was unknown, from the results of `body` from `first` on; still None where it cannot run."""
    try:
        if torch.compiler.is_compiling():
            results = body(*arguments)  # nothing reads the values, so they are not in the compiled graph
        else:  # a copy, whose quantizers may watch what is no data
            with torch.no_grad(), torch.random.fork_rng(devices=()):
                results = copy.deepcopy(body)(*arguments)
    except Exception as error:  # such as an index that only a loop that runs has elements for
        logging.getLogger(__name__).debug("no shape of an empty scan output: %s", error)
        return list(empty)
    found = [(list(r.shape), r.dtype) if isinstance(r, torch.Tensor) else None for r in results[first:]]
    return [stated or computed for stated, computed in zip(empty, found, strict=True)]


def run_scan(
    body: Any,
    states: Any,
    inputs: Any,
    captured: Any,
    input_axes: list[int],
    input_directions: list[int],
    output_axes: list[int],
    output_directions: list[int],
    empty: Any,
) -> tuple[torch.Tensor, ...]:
    """Scan: final states, then each scan output stacked along its axis; `empty` as in :func:`run_loop`."""
    state = list(states)
    if None in empty and not inputs[0].shape[input_axes[0]]:
        one = [x.new_zeros(x.movedim(axis, 0).shape[1:]) for x, axis in zip(inputs, input_axes, strict=True)]
        empty = _of_one_iteration(body, (*state, *one, *captured), len(state), empty)
    sliced = [
        list(x.flip(axis).unbind(axis) if backwards else x.unbind(axis))
        for x, axis, backwards in zip(inputs, input_axes, input_directions, strict=True)
    ]
    scans: list[list[torch.Tensor]] = [[] for _ in output_axes]
    for step in zip(*sliced, strict=True):
        results = body(*state, *step, *captured)
        state = list(results[: len(state)])
        for scan, value in zip(scans, results[len(state) :], strict=True):
            scan.append(value)
    stacked = [
        _stacked(scan[::-1] if backwards else scan, kind, axis, inputs[0].device)
        for scan, axis, backwards, kind in zip(scans, output_axes, output_directions, empty, strict=True)
    ]
    return (*state, *stacked)


def run_batched_scan(
    body: Any, lengths: torch.Tensor | None, states: Any, inputs: Any, captured: Any, directions: list[int], empty: Any
) -> tuple[torch.Tensor, ...]:
    """Scan 8: :func:`run_scan` for each sample of axis 0, over axis 1; scan outputs are 0 behind a sample's end."""
    batch, longest = inputs[0].shape[0], inputs[0].shape[1]
    ends = [longest] * batch if lengths is None else [int(e) for e in lengths.tolist()]
    samples = []
    for index in range(batch):
        results = run_scan(
            body,
            [state[index] for state in states],
            [x[index, : ends[index]] for x in inputs],
            captured,
            [0] * len(inputs),
            directions,
            [0] * len(empty),
            [0] * len(empty),
            empty,
        )
        scans = [
            torch.cat([scan, scan.new_zeros(longest - ends[index], *scan.shape[1:])]) for scan in results[len(states) :]
        ]
        samples.append((*results[: len(states)], *scans))
    return tuple(torch.stack(values) for values in zip(*samples, strict=True))


_CAPTURED: dict[Any, dict[int, int]] = {
    run_branch: {1: 2, 3: 4},
    choose_branch: {1: 2, 3: 4},
    run_loop: {0: 4},
    run_scan: {0: 3},
    run_batched_scan: {0: 4},
}
"""Places of the bodies among the arguments of each function, and those of the outer tensors that they read."""


def bodies_of(node: fx.Node) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
    """Yield the bodies that `node` runs, each with the outer tensors that are its last arguments."""
    for body, captured in _CAPTURED.get(node.target, {}).items():
        yield cast("fx.Node", node.args[body]), list(cast("list[fx.Node]", node.args[captured]))


def if_(n: NodeView) -> Lowered:
    """If 1 to 25."""
    known = n.static(0)
    if known is not None:
        graph = n.subgraph("then_branch" if bool(known.reshape(())) else "else_branch")
        n.lower(n.builder, graph)
        return tuple(n.builder.lookup(v) for v in graph.outputs)
    condition = n.value(0)
    arguments: list[Any] = [condition.array.item() if isinstance(condition, Dims) else n.tensor(0)]
    tensors = True
    for name in ("then_branch", "else_branch"):
        scope = n.scope(name)
        graph = n.subgraph(name)
        n.lower(scope, graph)
        arguments += _finish(n, scope, [scope.tensor(scope.lookup(v)) for v in graph.outputs])
        tensors &= all(isinstance(v.type, ir.TensorType) for v in graph.outputs)
    results = n.call(choose_branch if tensors else run_branch, *arguments)
    return _outputs(n, results)


def _finish(n: NodeView, scope: Builder, results: list[fx.Node]) -> list[Any]:
    """Close a subgraph's module; returns the node of the module and its captured arguments."""
    module = n.close_scope(scope, results)
    return [module, list(scope.captured)]


def _outputs(n: NodeView, results: fx.Node) -> Lowered:
    return tuple(n.item(results, i) if n.wants(i) else None for i in range(len(n.node.outputs)))


def loop(n: NodeView) -> Lowered:
    """Loop 1 to 25; the number of iterations and the condition may be computed at run time."""
    graph = n.subgraph("body")
    scope = n.scope("body")
    carried = [n.tensor(i) for i in range(2, n.count)]
    iteration, *others = graph.inputs
    scope.define(iteration, _as_number(scope.placeholder(str(iteration.name or ""))))
    for value in others:
        scope.define(value, scope.placeholder(str(value.name or "")))
    n.lower(scope, graph)
    outputs = [scope.lookup(v) for v in graph.outputs]
    endless = _is_true(n, 1) and _goes_on(graph)
    limit = n.scalar(0) if n.has(0) else None
    condition: Any = None
    if not endless:
        condition = n.tensor(1) if n.has(1) else True
    module, captured = _finish(n, scope, [scope.tensor(v) for v in outputs])
    empty = [_empty_like(v) for v in graph.outputs[1 + len(carried) :]]
    return _outputs(n, n.call(run_loop, module, limit, condition, carried, captured, empty, n.device()))


def _as_number(node: fx.Node) -> Dims:
    array = np.empty((), dtype=object)
    array[()] = node
    return Dims(array, ir.DataType.INT64)


def _is_true(n: NodeView, index: int) -> bool:
    known = n.static(index)
    return not n.has(index) or (known is not None and bool(known.reshape(())))


def _goes_on(graph: ir.Graph) -> bool:
    """Check whether the body's condition is constantly true, or its own input handed through."""
    value = graph.outputs[0]
    producer = value.producer()
    while producer is not None and producer.op_type == "Identity" and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    known = query.constant_array(value)
    return value is graph.inputs[1] or (known is not None and bool(known.reshape(())))


def _empty_like(value: ir.Value) -> Any:
    if value.shape is None or value.dtype not in TORCH_DTYPES:
        return None
    return [d if isinstance(d, int) else 0 for d in value.shape], TORCH_DTYPES[value.dtype]


def scan(n: NodeView) -> Lowered:
    """Scan 8 to 25; version 8 has a batch axis in front and optional lengths."""
    graph, scope = n.subgraph("body"), n.scope("body")
    first = 1 if n.opset < 9 else 0
    scanned = int(n.attr("num_scan_inputs"))
    states = [n.tensor(i) for i in range(first, n.count - scanned)]
    inputs = [n.tensor(i) for i in range(n.count - scanned, n.count)]
    produced = len(graph.outputs) - len(states)
    for value in graph.inputs:
        scope.define(value, scope.placeholder(str(value.name or "")))
    n.lower(scope, graph)
    module, captured = _finish(n, scope, [scope.tensor(scope.lookup(v)) for v in graph.outputs])
    empty = [_empty_like(v) for v in graph.outputs[len(states) :]]
    if first:
        directions = n.attr("directions") or [0] * scanned
        lengths = n.optional(0)
        return _outputs(n, n.call(run_batched_scan, module, lengths, states, inputs, captured, directions, empty))
    results = n.call(
        run_scan,
        module,
        states,
        inputs,
        captured,
        n.attr("scan_input_axes") or [0] * scanned,
        n.attr("scan_input_directions") or [0] * scanned,
        n.attr("scan_output_axes") or [0] * produced,
        n.attr("scan_output_directions") or [0] * produced,
        empty,
    )
    return _outputs(n, results)
