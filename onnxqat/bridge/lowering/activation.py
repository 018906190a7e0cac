"""Activation functions."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch
from torch.nn import functional

from onnxqat.bridge.functional.sdpa import log_softmax_in_steps, softmax_in_steps, softmax_with_blind_rows
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.integer_functions.functions import selu as selu_function


def softmax_2d(x: torch.Tensor, axis: int, log: bool) -> torch.Tensor:
    """Softmax over everything from `axis` on (Softmax and LogSoftmax before version 13)."""
    function = torch.log_softmax if log else torch.softmax
    return function(x.flatten(axis), -1).reshape(x.shape)


def sloped_relu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """PRelu with a slope that broadcasts to `x`."""
    return torch.where(x < 0, x * slope, x)


def leaky_relu_of(x: torch.Tensor, alpha: float) -> torch.Tensor:
    """LeakyRelu; torch multiplies 0 by the slope too, which is NaN for an infinite one and 0 in onnxruntime."""
    return functional.leaky_relu(x, alpha) if math.isfinite(alpha) else torch.where(x >= 0, x, x * alpha)


def elu_of(x: torch.Tensor, alpha: float) -> torch.Tensor:
    """Elu; torch multiplies 0 by `alpha` too, which is NaN for an infinite one and 0 in onnxruntime."""
    return functional.elu(x, alpha) if math.isfinite(alpha) else torch.where(x >= 0, x, alpha * torch.expm1(x))


def thresholded_relu_of(x: torch.Tensor, alpha: float) -> torch.Tensor:
    """`x` where it is above `alpha`, else 0."""
    return torch.where(x > alpha, x, torch.zeros_like(x))


def shrink_of(x: torch.Tensor, bias: float, limit: float) -> torch.Tensor:
    """Soft threshold."""
    zero = torch.zeros_like(x)
    return torch.where(x < -limit, x + bias, torch.where(x > limit, x - bias, zero)).to(x.dtype)


def one_hot_maximum(x: torch.Tensor, axis: int) -> torch.Tensor:
    """1 at the first maximum along `axis`, 0 elsewhere."""
    return torch.zeros_like(x).scatter(axis, x.argmax(axis, keepdim=True), 1.0)


def clamp_in_order(x: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
    """Clamp to bounds that are tensors or numbers; where they cross, the upper one wins."""
    if low is not None:
        x = torch.maximum(x, torch.as_tensor(low, dtype=x.dtype, device=x.device))
    if high is not None:
        x = torch.minimum(x, torch.as_tensor(high, dtype=x.dtype, device=x.device))
    return x


def relu(n: NodeView) -> Lowered:
    """Relu 6 to 14."""
    return n.call(torch.relu, n.tensor(0))


def clip(n: NodeView) -> Lowered:
    """Clip 6 to 13: bounds as attributes before 11, as optional inputs since."""
    if n.opset < 11:
        low, high = n.attr("min"), n.attr("max")
    else:
        bounds = [_bound(n, index) for index in (1, 2)]
        if any(b is None and n.has(i) for i, b in ((1, bounds[0]), (2, bounds[1]))):
            return n.call(clamp_in_order, n.tensor(0), n.optional(1), n.optional(2))
        low, high = bounds
    if low is None and high is None:
        return n.tensor(0)
    return n.call(torch.clamp, n.tensor(0), low, high)


def _bound(n: NodeView, index: int) -> float | int | None:
    found = n.static(index)
    if found is None or found.size != 1:
        return None
    value: float | int = found.reshape(()).item()
    return value


def leaky_relu(n: NodeView) -> Lowered:
    """LeakyRelu 6 to 16."""
    return n.call(leaky_relu_of, n.tensor(0), n.attr("alpha", 0.01))


def channel_relu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """PRelu with one slope, or one a channel."""
    return sloped_relu(x, slope.reshape([-1] + [1] * (x.dim() - 2)))


def p_relu(n: NodeView) -> Lowered:
    """PRelu 1 to 16; the slope broadcasts to the input since 7, before it is one value or one a channel."""
    if n.dtype(0) is ir.DataType.UINT64:
        return n.value(0)  # nothing is negative
    return n.call(sloped_relu if n.opset >= 7 else channel_relu, n.tensor(0), n.tensor(1))


def elu(n: NodeView) -> Lowered:
    """Elu 6 to 22."""
    return n.call(elu_of, n.tensor(0), n.attr("alpha", 1.0))


def scaled_elu(x: torch.Tensor, alpha: float, gamma: float) -> torch.Tensor:
    """Selu with any constants."""
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(torch.clamp(x, max=0)))


def selu(n: NodeView) -> Lowered:
    """Selu 6 to 22."""
    alpha, gamma = n.attr("alpha", selu_function.ALPHA), n.attr("gamma", selu_function.GAMMA)
    # torch's own has the constants in float64.
    if abs(alpha - 1.6732632) < 1e-6 and abs(gamma - 1.0507010) < 1e-6 and n.dtype(0) is not ir.DataType.DOUBLE:
        return n.call(functional.selu, n.tensor(0))
    return n.call(scaled_elu, n.tensor(0), alpha, gamma)


def celu(n: NodeView) -> Lowered:
    """Celu 12 to 28."""
    return n.call(functional.celu, n.tensor(0), n.attr("alpha", 1.0))


def thresholded_relu(n: NodeView) -> Lowered:
    """ThresholdedRelu 10 to 22."""
    return n.call(thresholded_relu_of, n.tensor(0), n.attr("alpha", 1.0))


def shrink(n: NodeView) -> Lowered:
    """Shrink 9."""
    return n.call(shrink_of, n.tensor(0), n.attr("bias", 0.0), n.attr("lambd", 0.5))


def sigmoid(n: NodeView) -> Lowered:
    """Sigmoid 6 to 13."""
    return n.call(torch.sigmoid, n.tensor(0))


def linear_clamp(x: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    """HardSigmoid with any slope."""
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


def hard_sigmoid(n: NodeView) -> Lowered:
    """HardSigmoid 6 to 22."""
    return n.call(linear_clamp, n.tensor(0), n.attr("alpha", 0.2), n.attr("beta", 0.5))


def hard_swish(n: NodeView) -> Lowered:
    """HardSwish 14 to 22."""
    return n.call(functional.hardswish, n.tensor(0))


def scaled_swish(x: torch.Tensor, alpha: float) -> torch.Tensor:
    """``x * sigmoid(alpha * x)``."""
    return x * torch.sigmoid(alpha * x)


def swish(n: NodeView) -> Lowered:
    """Swish 24."""
    alpha = n.attr("alpha", 1.0)
    return n.call(functional.silu, n.tensor(0)) if alpha == 1.0 else n.call(scaled_swish, n.tensor(0), alpha)


def gate_swish(gate: torch.Tensor, x: torch.Tensor, alpha: float) -> torch.Tensor:
    """``gate * sigmoid(alpha * gate) * x``."""
    return (functional.silu(gate) if alpha == 1.0 else scaled_swish(gate, alpha)) * x


def swi_glu(n: NodeView) -> Lowered:
    """SwiGLU 28."""
    return n.call(gate_swish, n.tensor(0), n.tensor(1), n.attr("alpha", 1.0))


def one_hot_maximum_2d(x: torch.Tensor, axis: int) -> torch.Tensor:
    """:func:`one_hot_maximum` over all axes from `axis` on."""
    return one_hot_maximum(x.flatten(axis), -1).reshape(x.shape)


def tanh(n: NodeView) -> Lowered:
    """Tanh 6 to 13."""
    return n.call(torch.tanh, n.tensor(0))


def mish(n: NodeView) -> Lowered:
    """Mish 18 to 22."""
    return n.call(functional.mish, n.tensor(0))


def softplus(n: NodeView) -> Lowered:
    """Softplus 1 to 22."""
    return n.call(functional.softplus, n.tensor(0))


def softsign(n: NodeView) -> Lowered:
    """Softsign 1 to 22."""
    return n.call(functional.softsign, n.tensor(0))


def gelu(n: NodeView) -> Lowered:
    """Gelu 20, exact or tanh."""
    return n.call(functional.gelu, n.tensor(0), approximate=n.attr("approximate", "none"))


def com_microsoft_gelu(n: NodeView) -> Lowered:
    """com.microsoft Gelu 1, exact."""
    return n.call(functional.gelu, n.tensor(0))


def softmax(n: NodeView) -> Lowered:
    """Softmax 1 to 13: before 13 over all axes from `axis` (default 1) on, since along one axis (default -1).

    Since 13 the definition is a sequence of operators, so that float16 rounds after each of them.
    """
    return _softmax(n, torch.softmax, log=False)


def log_softmax(n: NodeView) -> Lowered:
    """LogSoftmax 1 to 13, with the axes of :func:`softmax`."""
    return _softmax(n, torch.log_softmax, log=True)


def _is_guarded(value: ir.Value) -> bool:
    """Check whether a Where reads the result, as exporters write behind a softmax with rows that may be all masked."""
    users = value.consumers()
    casts = [u.outputs[0] for u in users if u.op_type in ("Cast", "CastLike", "Identity")]
    return any(u.op_type == "Where" for u in users) or any(_is_guarded(v) for v in casts)


def _softmax(n: NodeView, function: Any, *, log: bool) -> Lowered:
    if n.opset >= 13:
        if n.dtype(0) is ir.DataType.FLOAT16:
            function = log_softmax_in_steps if log else softmax_in_steps
        elif not log and _is_guarded(n.node.outputs[0]):
            function = softmax_with_blind_rows
        return n.call(function, n.tensor(0), n.axis(-1))
    axis, rank = n.axis(1), n.rank(0)
    if rank is not None and axis % max(rank, 1) == rank - 1:
        return n.call(function, n.tensor(0), -1)
    return n.call(softmax_2d, n.tensor(0), axis, log)


def hardmax(n: NodeView) -> Lowered:
    """Hardmax 1 to 13, with the axes of :func:`softmax`."""
    if n.opset >= 13:
        return n.call(one_hot_maximum, n.tensor(0), n.axis(-1))
    return n.call(one_hot_maximum_2d, n.tensor(0), n.axis(1))
