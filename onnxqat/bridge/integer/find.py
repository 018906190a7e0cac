"""Find operators between quantizers in the graph of a module, and put units in their place."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from onnxqat.arithmetic import Arithmetic
from onnxqat.bridge import module as modules
from onnxqat.bridge.fake_quantize import FakeQuantize
from onnxqat.bridge.integer import layers, pointwise
from onnxqat.bridge.integer.unit import Step, Unit
from onnxqat.bridge.module import OnnxModule

_MOVES = (
    torch.reshape,
    torch.permute,
    torch.flatten,
    torch.max_pool1d,
    torch.max_pool2d,
    torch.max_pool3d,
    operator.getitem,
    functional.pad,
    torch.split,
    torch.functional.split,
    torch.squeeze,
    torch.unsqueeze,
)
"""Functions whose results are elements of their first argument, or 0."""

_LIMITS = (torch.relu, functional.relu, torch.clamp)
"""Functions that the ends of a grid repeat, so that kernels leave them to the requantization."""

_KINDS: dict[Any, tuple[type[Unit], int]] = {
    **dict.fromkeys(layers.CONVOLUTIONS, (layers.Convolution, 2)),
    **dict.fromkeys(layers.PRODUCTS, (layers.Matrix, 2)),
    operator.add: (pointwise.Sum, 2),
    operator.mul: (pointwise.Product, 2),
    torch.mean: (pointwise.GlobalAverage, 1),
    functional.avg_pool2d: (pointwise.Average, 1),
    torch.sigmoid: (pointwise.Sigmoid, 0),
}
"""Unit of each function and how many of its arguments have to lie on grids; of 0, its first one may."""

_FLOAT_RESULT = (*layers.PRODUCTS, torch.sigmoid)
"""Functions whose kernels may give float."""


@dataclasses.dataclass
class _Match:
    """What one unit takes the place of."""

    operation: fx.Node
    sources: list[FakeQuantize]
    activations: list[Step]
    last: fx.Node
    quantizer: FakeQuantize | None


def compute_in_integers(module: OnnxModule, arithmetic: Arithmetic) -> OnnxModule:
    """A view of `module` that computes on codes as the kernels of a target do; `module` stays what it is.

    Parameters, buffers and quantizers are those of `module`.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    held = dict(module._modules)  # noqa: SLF001 - so that units are not registered with `module` too
    names = {name: name for name in module.tensor_nodes.values()}
    for count, match in enumerate(_matches(module, graph)):
        path = f"integer_{count}_{match.operation.name}"
        held[path] = _unit(match, arithmetic)
        names[match.last.name] = _replace(graph, match, path).name
    left = {node.name for node in graph.nodes}
    tensors = {tensor: names[name] for tensor, name in module.tensor_nodes.items() if names[name] in left}
    made = modules.make(module, graph, {"_modules": held, "tensor_nodes": tensors})
    made.train(module.training)
    return made


def _unit(match: _Match, arithmetic: Arithmetic) -> Unit:
    kind, _ = _KINDS[match.operation.target]
    function: Any = match.operation.target
    return kind(function, match.sources, match.activations, match.quantizer, arithmetic)


def _replace(graph: fx.Graph, match: _Match, path: str) -> fx.Node:
    args: list[Any] = list(match.operation.args)
    if issubclass(_KINDS[match.operation.target][0], layers.Layer) and len(match.sources) > 2:
        args[2] = args[2].args[0]  # the bias in front of its quantizer
    with graph.inserting_before(match.last):
        call = graph.create_node("call_module", path, tuple(args))
    call.meta.update(match.last.meta)
    match.last.replace_all_uses_with(call)
    node: Any = match.last
    while True:
        before = node.args[0]
        graph.erase_node(node)
        if node is match.operation:
            return call
        node = before


def _matches(module: OnnxModule, graph: fx.Graph) -> list[_Match]:
    grids: dict[fx.Node, FakeQuantize] = {}
    found = []
    for node in graph.nodes:
        quantizer = _quantizer(module, node)
        if quantizer is not None:
            grids[node] = quantizer
        elif node.op == "call_function" and node.target in _MOVES and node.args and node.args[0] in grids:
            grids[node] = grids[node.args[0]]
        match = _match(module, node, grids)
        if match is not None:
            found.append(match)
    return found


def _quantizer(module: OnnxModule, node: fx.Node) -> FakeQuantize | None:
    if node.op != "call_module":
        return None
    found = module.get_submodule(str(node.target))
    return found if isinstance(found, FakeQuantize) else None


def _match(module: OnnxModule, node: fx.Node, grids: dict[fx.Node, FakeQuantize]) -> _Match | None:
    """The unit whose operation is `node`."""
    if node.op != "call_function" or node.target not in _KINDS or node.kwargs:
        return None
    needed = _KINDS[node.target][1]
    arguments = node.args[: max(needed, 1)]
    sources = [grids[a] for a in arguments if isinstance(a, fx.Node) and a in grids]
    if len(sources) < needed:
        return None
    bias = _bias(module, node)
    sources += [] if bias is None else [bias]
    if not all(map(_fits, sources)) or not _is_known(node, bias):
        return None
    activations, last = list[Step](), node
    while len(last.users) == 1:
        user = next(iter(last.users))
        quantizer = _quantizer(module, user)
        if quantizer is not None:
            return _Match(node, sources, activations, user, quantizer) if _fits(quantizer) else None
        if user.op != "call_function" or user.target not in _LIMITS or user.kwargs:
            break
        function: Any = user.target
        activations.append((function, tuple(user.args[1:])))
        last = user
    return _Match(node, sources, [], node, None) if sources and node.target in _FLOAT_RESULT else None


def _bias(module: OnnxModule, node: fx.Node) -> FakeQuantize | None:
    """The quantizer of the bias of a layer."""
    given = node.args[2] if issubclass(_KINDS[node.target][0], layers.Layer) and len(node.args) > 2 else None
    return _quantizer(module, given) if isinstance(given, fx.Node) else None


def _is_known(node: fx.Node, bias: FakeQuantize | None) -> bool:
    """Whether the kernel for the arguments of `node` is known: a bias on the accumulator's grid, no padding in a pool."""
    kind, _ = _KINDS[node.target]
    if issubclass(kind, layers.Layer):
        return bias is not None or len(node.args) < 3 or node.args[2] is None
    if kind is pointwise.Average:
        padding, up, *_ = (*node.args[3:], 0, False, None)
        return not up and not any(padding if isinstance(padding, (list, tuple)) else [padding])
    return True


def _fits(q: FakeQuantize) -> bool:
    """Whether kernels know the grid: integers, not in blocks."""
    return not q.qtype.is_float and q.block_size is None and q.precision == "float32"
