"""Groups of nodes that torch has one function for.

Exporters write some functions out (Gelu as Erf, Add, Mul; GroupNorm as InstanceNormalization between Reshapes; Linear as
MatMul, Add), which costs a pass over memory for each step. A group becomes one call where that has the same meaning and
nothing looks inside: every inner result has one user, so that no quantizer, output or subgraph reads it. Constants
that such a call makes superfluous (the square root of 2, a scale of ones) leave the module, and inner tensors leave
``tensor_nodes``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.nn import functional

from onnxqat.bridge.functional import shape_math
from onnxqat.bridge.lowering import normalization

if TYPE_CHECKING:
    from onnxqat.bridge.importing.builder import Builder

_CLOSE = 1e-6  # relative: a constant that was written as float32


def fuse(builder: Builder) -> None:
    """Fuse what can be fused in the finished graph of `builder`."""
    graph = _Graph(builder)
    # From the end, so that the last step of a group is met before steps that look like a smaller group.
    for node in reversed(list(builder.graph.nodes)):
        if node.op == "call_function" and node in graph:
            next((True for rule in _RULES.get(node.target, ()) if rule(graph, node)), False)
    for node in reversed(list(builder.graph.nodes)):
        if (node.op == "call_method" and node.target == "size") or _calls(node, getattr, *vars(shape_math).values()):
            graph.drop(node)


class _Graph:
    """A builder's graph with the queries and edits that the rules need."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._erased: set[fx.Node] = set()
        self._tensors: dict[str, list[str]] = {}
        for tensor, name in builder.tensor_nodes.items():
            self._tensors.setdefault(name, []).append(tensor)

    def __contains__(self, node: fx.Node) -> bool:
        return node not in self._erased

    def constant(self, value: Any) -> torch.Tensor | None:
        """The tensor of a constant of this scope."""
        if not isinstance(value, fx.Node) or value.op != "get_attr":
            return None
        found = self.builder.store.tensor(str(value.target))
        return found.detach() if isinstance(found, torch.Tensor) else None

    def number(self, value: Any) -> float | None:
        """The value of a constant with one element."""
        if isinstance(value, (int, float)):
            return float(value)
        tensor = self.constant(value)
        return float(tensor) if tensor is not None and tensor.numel() == 1 else None

    def matrix(self, value: Any) -> tuple[int, ...] | None:
        """The shape of a constant of two dimensions and a float type, quantized or not."""
        shape, tensor = self.shape(value), self.constant(value.args[0] if _is_module(value) else value)
        fits = shape is not None and len(shape) == 2 and tensor is not None and tensor.is_floating_point()
        return shape if fits else None

    def shape(self, value: Any) -> tuple[int, ...] | None:
        """The shape of a constant or of a quantized constant."""
        tensor = self.constant(value)
        if tensor is not None:
            return tuple(tensor.shape)
        return self.shape(value.args[0]) if _is_module(value) else None

    def filled(self, value: Any, number: float) -> bool:
        """Check whether every element of a constant is `number`."""
        tensor = self.constant(value)
        return tensor is not None and bool((tensor == number).all())

    def become(self, node: fx.Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """`node` calls `target` instead; what nobody reads any more goes."""
        before = node.all_input_nodes
        node.target, node.args, node.kwargs = target, args, kwargs
        for source in before:
            self.drop(source)

    def before(self, node: fx.Node, function: Callable[..., Any], *args: Any) -> fx.Node:
        """A call in front of `node`."""
        with self.builder.graph.inserting_before(node):
            return self.builder.graph.call_function(function, args)

    def drop(self, node: fx.Node) -> None:
        """Erase `node` where nobody reads it, and what only it read."""
        if node.users or node.op not in ("call_function", "call_method", "get_attr") or node in self._erased:
            return
        sources = node.all_input_nodes
        self.builder.graph.erase_node(node)
        self._erased.add(node)
        for tensor in self._tensors.get(node.name, ()):
            del self.builder.tensor_nodes[tensor]
        if node.op == "get_attr":
            self.builder.store.drop(str(node.target))
        for source in sources:
            self.drop(source)


def _is_module(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.op == "call_module" and len(value.args) == 1


def _calls(value: Any, *targets: Callable[..., Any]) -> bool:
    return isinstance(value, fx.Node) and value.op == "call_function" and value.target in targets


def _is_single_use_call(value: Any, *targets: Callable[..., Any]) -> bool:
    """Check whether `value` is a call of one of `targets` with a single user."""
    return _calls(value, *targets) and len(value.users) == 1


def _close(value: float | None, wanted: float) -> bool:
    return value is not None and math.isclose(value, wanted, rel_tol=_CLOSE)


def masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention with a mask of which inference does not know whether it widens the scores.

    torch's function takes no mask that does.
    """
    scores = (*q.shape[:-1], k.shape[-2])
    pairs = zip(reversed(mask.shape), reversed(scores), strict=False)
    if mask.dim() <= len(scores) and all(m == 1 or m == n for m, n in pairs):
        return functional.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    return torch.softmax(q @ k.transpose(-2, -1) * scale + mask, -1) @ v


def _silu(graph: _Graph, node: Any) -> bool:
    """``x * sigmoid(x)``."""
    for x, gate in (node.args, node.args[::-1]):
        if _is_single_use_call(gate, torch.sigmoid) and gate.args[0] is x:
            graph.become(node, functional.silu, x)
            return True
    return False


def _gelu(graph: _Graph, node: Any) -> bool:
    """``0.5 * x * (1 + erf(x / sqrt(2)))``, the factors in any order."""
    factors = _factors(node)
    halves = [f for f in factors if _close(graph.number(f), 0.5)]
    gates = [f for f in factors if _is_single_use_call(f, operator.add)]
    if len(factors) != 3 or len(halves) != 1 or len(gates) != 1:
        return False
    x = next(f for f in factors if f is not halves[0] and f is not gates[0])
    for one, erf in (gates[0].args, gates[0].args[::-1]):
        if _close(graph.number(one), 1.0) and _is_single_use_call(erf, torch.erf):
            scaled = erf.args[0]
            divided = _is_single_use_call(scaled, operator.truediv) and _close(
                graph.number(scaled.args[1]), math.sqrt(2)
            )
            times = _is_single_use_call(scaled, operator.mul) and any(
                _close(graph.number(a), math.sqrt(0.5)) for a in scaled.args
            )
            if (divided and scaled.args[0] is x) or (times and x in scaled.args):
                graph.become(node, functional.gelu, x)
                return True
    return False


def _factors(node: Any) -> list[Any]:
    """List the factors of a product of products."""
    found: list[Any] = []
    for argument in node.args:
        found += _factors(argument) if _is_single_use_call(argument, operator.mul) else [argument]
    return found


def _linear(graph: _Graph, node: Any) -> bool:
    """``x @ w + b`` with a matrix and a vector of the model."""
    for product, bias in (node.args, node.args[::-1]):
        if not _is_single_use_call(product, torch.matmul):
            continue
        x, weight = product.args
        matrix = graph.matrix(weight)
        if matrix is not None and graph.shape(bias) == matrix[1:]:
            # torch.addmm's epilogue adds the bias, where the sum would be another pass over memory.
            graph.become(node, functional.linear, x, graph.before(node, torch.t, weight), bias)
            return True
    return False


def _group_norm(graph: _Graph, node: Any) -> bool:
    """InstanceNormalization of ``(n, groups, -1)`` with neither scale nor bias, back in shape, scaled per channel."""
    for scaled, bias in (node.args, node.args[::-1]):
        if not _is_single_use_call(scaled, operator.mul):
            continue
        for back, scale in (scaled.args, scaled.args[::-1]):
            found = _grouped(graph, node, back)
            if found is None:
                continue
            x, groups, epsilon = found
            shape = graph.builder.known_shape(x)
            channels = shape[1] if shape is not None and isinstance(shape[1], int) else None
            column = (channels, *(1,) * (len(shape or ()) - 2))
            if channels and all(graph.shape(v) in (column, (1, *column)) for v in (scale, bias)):
                vectors = [graph.before(node, torch.ravel, v) for v in (scale, bias)]
                graph.become(node, torch.group_norm, x, groups, *vectors, epsilon)
                return True
    return False


def _grouped(graph: _Graph, node: Any, back: Any) -> tuple[fx.Node, int, float] | None:
    """The input, number of groups and epsilon of a normalization over groups that has the shape of `node`."""
    if not _is_single_use_call(back, torch.reshape) or not _is_single_use_call(
        back.args[0], normalization.normalize_instances
    ):
        return None
    into, ones, zeros, epsilon = back.args[0].args
    if not _is_single_use_call(into, torch.reshape) or not graph.filled(ones, 1.0) or not graph.filled(zeros, 0.0):
        return None
    x, sizes = into.args
    known = graph.builder.known_shape(x)
    if known is None or None in known or known != graph.builder.known_shape(node):
        return None
    return (x, sizes[1], epsilon) if len(sizes) == 3 and isinstance(sizes[1], int) and sizes[2] == -1 else None


def _attention(graph: _Graph, node: Any) -> bool:
    """``softmax(q @ k^T + mask) @ v``, q and k scaled or not.

    A row of the mask that is minus infinity throughout gives NaN here and 0 there, so a mask has to be finite.
    """
    weights, v = node.args
    if not _is_single_use_call(weights, torch.softmax) or weights.args[1:] != (-1,):
        return False
    scores, mask = weights.args[0], None
    if _is_single_use_call(scores, operator.add):
        scores, mask = next(
            ((a, b) for a, b in (scores.args, scores.args[::-1]) if _is_single_use_call(a, torch.matmul)), (None, None)
        )
    whole, values = graph.builder.known_shape(weights), graph.builder.known_shape(v)
    if (
        not _is_single_use_call(scores, torch.matmul)
        or whole is None
        or values is None
        or len(whole) != 4
        or len(values) != 4
    ):
        return False
    if mask is not None and not _finite(graph, mask):
        return False
    fits = mask is None or (None not in whole and graph.builder.known_shape(scores) == whole)
    (q, first), (k, second) = (_unscaled(graph, value) for value in scores.args)
    if _is_single_use_call(k, torch.reshape):
        _transposed(graph, k)
    seen_through = _is_single_use_call(k, torch.transpose) and k.args[1:] == (-2, -1)
    keys = k.args[0] if seen_through else graph.before(node, torch.transpose, k, -2, -1)
    scale = first * second if _are_constants(first, second) else graph.before(node, shape_math.multiply, first, second)
    if fits:
        graph.become(node, functional.scaled_dot_product_attention, q, keys, v, mask, 0.0, False, scale=scale)
    else:
        graph.become(node, masked_attention, q, keys, v, mask, scale)
    return True


def _are_constants(*numbers: Any) -> bool:
    return not any(isinstance(number, fx.Node) for number in numbers)


def _unscaled(graph: _Graph, value: Any) -> tuple[Any, Any]:
    """A tensor and the number that it is multiplied with, a node where that is computed from a shape."""
    if _is_single_use_call(value, operator.mul):
        for tensor, factor in (value.args, value.args[::-1]):
            if _calls(factor, shape_math.to_tensor) and len(factor.args[0]) == 1:
                return tensor, factor.args[0][0]
            number = graph.number(factor)
            if number is not None:
                return tensor, number
    if _is_single_use_call(value, operator.truediv) and graph.number(value.args[1]):
        return value.args[0], 1.0 / (graph.number(value.args[1]) or 1.0)
    return value, 1.0


def _finite(graph: _Graph, mask: Any) -> bool:
    """Check whether a mask has no infinities: a finite constant, or a product with one, as ``(1 - mask) * -10000``."""
    constants = [graph.constant(v) for v in (mask.args if _calls(mask, operator.mul) else (mask,))]
    return any(c is not None and bool(c.isfinite().all()) for c in constants)


def _transposed(graph: _Graph, node: Any) -> bool:
    """Swapping the last two axes by way of three axes."""
    swapped = node.args[0]
    if not _is_single_use_call(swapped, torch.permute) or list(swapped.args[1]) != [0, 2, 1]:
        return False
    joined = swapped.args[0]
    if not _is_single_use_call(joined, torch.reshape):
        return False
    x, whole = joined.args[0], graph.builder.known_shape(node)
    before = graph.builder.known_shape(x)
    if before is None or whole is None or None in before or len(before) < 3 or len(joined.args[1]) != 3:
        return False
    if list(joined.args[1][1:]) != list(before[-2:]) or whole != (*before[:-2], before[-1], before[-2]):
        return False
    graph.become(node, torch.transpose, x, -2, -1)
    return True


def _selected(graph: _Graph, node: Any) -> bool:
    """A slice of length one without its axis."""
    part = node.args[0]
    if node.args[1:] != (0,) or not _is_single_use_call(part, operator.getitem) or not isinstance(part.args[1], tuple):
        return False
    x, index = part.args
    shape = graph.builder.known_shape(x)
    if len(index) != 1 or not isinstance(index[0], slice) or shape is None or not isinstance(shape[0], int):
        return False
    start, stop, step = index[0].start or 0, index[0].stop, index[0].step or 1
    if not all(isinstance(i, int) for i in (start, stop, step)) or stop != start + 1 or not 0 <= start < shape[0]:
        return False
    graph.become(node, torch.select, x, 0, start)
    return True


_RULES: dict[Any, tuple[Callable[[_Graph, Any], bool], ...]] = {
    operator.mul: (_silu, _gelu),
    operator.add: (_group_norm, _linear),
    torch.matmul: (_attention,),
    torch.reshape: (_transposed,),
    torch.squeeze: (_selected,),
}
