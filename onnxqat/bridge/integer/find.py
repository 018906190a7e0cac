"""Find operators between quantizers in the graph of a module, and put units in their place."""

from __future__ import annotations

import copy
import dataclasses
import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from onnxqat.arithmetic import Arithmetic, create
from onnxqat.bridge import module as modules
from onnxqat.bridge.integer import conversion, layers, pointwise, pools, softmax
from onnxqat.bridge.integer.function_units import FloatTwin, FunctionUnit
from onnxqat.bridge.integer.unit import LIMITS, Step, Unit
from onnxqat.bridge.lowering import shape
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize

MOVES = (
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
    shape.pad_any,
)
"""Functions whose results are elements of their first argument, or 0."""

_KINDS: dict[Any, tuple[type[Unit], int]] = {
    **dict.fromkeys(layers.CONVOLUTIONS, (layers.Convolution, 2)),
    **dict.fromkeys(layers.PRODUCTS, (layers.Matrix, 2)),
    operator.add: (pointwise.Sum, 2),
    operator.mul: (pointwise.Product, 2),
    torch.mean: (pools.GlobalAverage, 1),
    **dict.fromkeys(pools.POOLS, (pools.Average, 1)),
    torch.softmax: (softmax.Softmax, 1),
    torch.sigmoid: (pointwise.Sigmoid, 0),
    torch.tanh: (pointwise.Tanh, 0),
}
"""Unit of each function and how many of its arguments have to lie on grids; of 0, its first one may."""

_FLOAT_RESULT = (*layers.PRODUCTS, torch.sigmoid, torch.tanh)
"""Functions whose kernels may give float."""


@dataclasses.dataclass
class _Match:
    """Nodes and quantizers that one unit replaces."""

    operation: fx.Node
    function: Any
    kind: type[Unit]
    sources: list[FakeQuantize]
    activations: list[Step]
    last: fx.Node
    quantizer: FakeQuantize | None


def compute_in_integers(module: OnnxModule, arithmetic: Arithmetic | None) -> OnnxModule:
    """A view of `module` that computes on codes as the kernels of a target do; `module` stays what it is.

    Parameters, buffers and quantizers are those of `module`. With None for `arithmetic`, integer functions alone compute on
    codes: what they compute stands in the file, whatever the target is. Bodies of If, Loop and Scan compute on codes too,
    between the quantizers that stand in the body: no runtime joins an operator in a body with a pair outside of it.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    held = dict(module._modules)  # noqa: SLF001 - so that units are not registered with `module` too
    for path, body in module.bodies().items():
        _put(held, path, compute_in_integers(body, arithmetic))
    names = {name: name for name in module.tensor_nodes.values()}
    made_for = arithmetic or create("onnxruntime")  # functions do not ask it
    for count, match in enumerate(_matches(module, graph, arithmetic)):
        path = f"integer_{count}_{match.operation.name}"
        held[path] = match.kind(match.function, match.sources, match.activations, match.quantizer, made_for)
        names[match.last.name] = _replace(graph, match, path).name
    left = {node.name for node in graph.nodes}
    tensors = {tensor: names[name] for tensor, name in module.tensor_nodes.items() if names[name] in left}
    made = modules.make(module, graph, {"_modules": held, "tensor_nodes": tensors})
    made.train(module.training)
    return made


def _put(held: dict[str, nn.Module | None], path: str, added: nn.Module) -> None:
    """Put `added` at dotted `path` below `held`, on copies of the modules on the way, which belong to another module too."""
    first, _, rest = path.partition(".")
    if not rest:
        held[first] = added
        return
    folder = held[first] = copy.copy(held[first])
    assert folder is not None
    folder._modules = dict(folder._modules)  # noqa: SLF001
    _put(folder._modules, rest, added)  # noqa: SLF001


def _replace(graph: fx.Graph, match: _Match, path: str) -> fx.Node:
    args: list[Any] = list(match.operation.args)
    bias: fx.Node | None = None
    if issubclass(match.kind, layers.Layer) and len(match.sources) > 2:
        bias = args[2]
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
            break
        node = before
    if bias is not None and not bias.users:
        graph.erase_node(bias)
    return call


def _matches(module: OnnxModule, graph: fx.Graph, arithmetic: Arithmetic | None) -> list[_Match]:
    grids: dict[fx.Node, FakeQuantize] = {}
    found = []
    for node in graph.nodes:
        quantizer = _quantizer(module, node)
        if quantizer is not None:
            grids[node] = quantizer
        elif _moves(node) and node.args[0] in grids:
            grids[node] = grids[node.args[0]]
        match = _function(module, node, grids)
        if match is None and arithmetic is not None:
            match = _match(module, node, grids, arithmetic) or _conversion(module, node, grids, arithmetic)
        if match is not None:
            found.append(match)
    return found


def _moves(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target not in MOVES or not node.args:
        return False
    if node.target is shape.pad_any:
        return node.args[2] != "constant"
    return node.target is not functional.pad or (len(node.args) == 2 and not node.kwargs)  # with zeros


def _quantizer(module: OnnxModule, node: fx.Node) -> FakeQuantize | None:
    if node.op != "call_module":
        return None
    found = module.get_submodule(str(node.target))
    return found if isinstance(found, FakeQuantize) else None


def _function(module: OnnxModule, node: fx.Node, grids: dict[fx.Node, FakeQuantize]) -> _Match | None:
    """The unit of an integer function."""
    held = module.get_submodule(str(node.target)) if node.op == "call_module" else None
    users = list(node.users)
    quantizer = _quantizer(module, users[0]) if len(users) == 1 else None
    if not isinstance(held, FloatTwin) or quantizer is None:
        return None
    operands = node.args[: held.function.operands]
    sources = [grids[source] for source in operands if isinstance(source, fx.Node) and source in grids]
    if len(sources) < held.function.operands or not all(map(_is_output_grid, (*sources, quantizer))):
        return None
    return _Match(node, held, FunctionUnit, sources, [], users[0], quantizer)


def _match(
    module: OnnxModule, node: fx.Node, grids: dict[fx.Node, FakeQuantize], arithmetic: Arithmetic
) -> _Match | None:
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
    if not all(map(_is_supported_grid, sources)) or not _is_known(node, sources, bias, arithmetic):
        return None
    found: tuple[Any, type[Unit]] = (node.target, _KINDS[node.target][0])
    activations, last = list[Step](), node
    while len(last.users) == 1:
        user = next(iter(last.users))
        quantizer = _quantizer(module, user)
        if quantizer is not None:
            return _Match(node, *found, sources, activations, user, quantizer) if _is_output_grid(quantizer) else None
        if user.op != "call_function" or user.target not in LIMITS or user.kwargs or len(user.all_input_nodes) > 1:
            break
        function: Any = user.target
        activations.append((function, tuple(user.args[1:])))
        last = user
    return _Match(node, *found, sources, [], node, None) if sources and node.target in _FLOAT_RESULT else None


def _conversion(
    module: OnnxModule, node: fx.Node, grids: dict[fx.Node, FakeQuantize], arithmetic: Arithmetic
) -> _Match | None:
    """The unit of a quantizer that reads other grids, behind Relu, Clip and data movement, or where branches are joined."""
    quantizer = _quantizer(module, node)
    if quantizer is None or "conversion" not in arithmetic.has or not _is_output_grid(quantizer):
        return None
    chain: list[fx.Node] = []
    source = node.args[0]
    while isinstance(source, fx.Node) and source not in grids and source.op == "call_function" and not source.kwargs:
        if len(source.users) > 1 or not source.args:
            return None
        chain.insert(0, source)
        if conversion.is_join(source):
            break
        if source.target not in LIMITS and not _moves(source):
            return None
        source = source.args[0]
    first = chain[0] if chain else node
    function: Any = first.target if chain else conversion.unchanged
    read = [first.args[place] for place in conversion.JOINS.get(function, (0,))]
    tensors = [a for given in read for a in (given if isinstance(given, (list, tuple)) else (given,))]
    sources = [grids[a] for a in tensors if isinstance(a, fx.Node) and a in grids]
    if not sources or len(sources) < len(tensors) or not all(map(_is_output_grid, sources)):
        return None
    if all(q.role != "activation" or _same_grid(q, quantizer) for q in sources):
        return None
    behind: list[Any] = [(each.target, tuple(each.args[1:])) for each in chain[1:]]
    return _Match(first, function, conversion.Requantization, sources, behind, node, quantizer)


def _same_grid(a: FakeQuantize, b: FakeQuantize) -> bool:
    """Check whether two quantizers have the same grid now: a conversion between them changes no code."""
    with torch.no_grad():
        of_a, of_b = ((q.effective_scale(), q.effective_zero_point(), q.quant_min, q.quant_max) for q in (a, b))
        return bool(of_a[0] == of_b[0]) and bool(of_a[1] == of_b[1]) and of_a[2:] == of_b[2:]


def _bias(module: OnnxModule, node: fx.Node) -> FakeQuantize | None:
    """The quantizer of the bias of a layer."""
    given = node.args[2] if issubclass(_KINDS[node.target][0], layers.Layer) and len(node.args) > 2 else None
    return _quantizer(module, given) if isinstance(given, fx.Node) else None


def _is_known(node: fx.Node, sources: list[FakeQuantize], bias: FakeQuantize | None, arithmetic: Arithmetic) -> bool:
    """Check whether `arithmetic` has a kernel for the arguments of `node`."""
    kind, _ = _KINDS[node.target]
    if issubclass(kind, layers.Layer):  # its bias lies on the accumulator's grid
        return sources[0].axis is None and (bias is not None or len(node.args) < 3 or node.args[2] is None)
    if any(q.axis is not None for q in sources):
        return False
    if kind is softmax.Softmax:
        return "softmax" in arithmetic.has and sources[0].quant_max - sources[0].quant_min < pointwise.CODES
    return kind is not pools.Average or pools.is_known(node.target, node.args[1:], arithmetic)


def _is_supported_grid(q: FakeQuantize) -> bool:
    """Check whether kernels support the grid of `q`: integers, not in blocks."""
    return q.scheme.is_integer and q.precision == "float32"


def _is_output_grid(q: FakeQuantize) -> bool:
    """Check whether kernels can write on the grid of `q`, which has to be per tensor."""
    return _is_supported_grid(q) and q.axis is None
