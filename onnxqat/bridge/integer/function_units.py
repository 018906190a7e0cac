"""Integer functions of a file in torch: the float operator, and the unit that computes the file's codes."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from onnxqat.arithmetic import Grid
from onnxqat.arithmetic._arrays import Array
from onnxqat.bridge.integer.unit import Formula
from onnxqat.bridge.lowering.activation import scaled_elu
from onnxqat.errors import CheckError
from onnxqat.integer_functions.definition import Call, CodeGrid, IntegerFunction
from onnxqat.integer_functions.functions import resize, selu

Operation = Callable[..., Tensor]


def _softmax(x: Tensor, call: Call) -> Tensor:
    return torch.softmax(x, call.axes[0])


def _masked_softmax(x: Tensor, call: Call, mask: Tensor) -> Tensor:
    kept = mask != 0
    scores = x.masked_fill(~kept, torch.finfo(x.dtype).min)
    return torch.softmax(scores, call.axes[0]) * kept  # a row that keeps nothing has no shares


def _log_softmax(x: Tensor, call: Call) -> Tensor:
    return torch.log_softmax(x, call.axes[0])


def _mean(x: Tensor, call: Call) -> Tensor:
    return x.mean(call.axes, keepdim=call.keeps_axes)


def _sum(x: Tensor, call: Call) -> Tensor:
    return x.sum(call.axes, keepdim=call.keeps_axes)


def _running_sum(x: Tensor, call: Call) -> Tensor:
    (axis,) = call.axes
    given = x.flip(axis) if call.attributes.get("reverse") else x
    total = given.cumsum(axis) - given if call.attributes.get("exclusive") else given.cumsum(axis)
    return total.flip(axis) if call.attributes.get("reverse") else total


def _norm(x: Tensor, call: Call) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, 2, call.axes, keepdim=call.keeps_axes)
    return norm


def _largest(x: Tensor, call: Call, *others: Tensor) -> Tensor:
    return functools.reduce(torch.maximum, others, x)


def _smallest(x: Tensor, call: Call, *others: Tensor) -> Tensor:
    return functools.reduce(torch.minimum, others, x)


def _gelu(x: Tensor, call: Call) -> Tensor:
    return functional.gelu(x, approximate="tanh" if call.attributes.get("approximate") == "tanh" else "none")


def _elu(x: Tensor, call: Call) -> Tensor:
    return functional.elu(x, call.number("alpha", 1.0))


def _celu(x: Tensor, call: Call) -> Tensor:
    return functional.celu(x, call.number("alpha", 1.0))


def _selu(x: Tensor, call: Call) -> Tensor:
    return scaled_elu(x, call.number("alpha", selu.ALPHA), call.number("gamma", selu.GAMMA))


def _hard_sigmoid(x: Tensor, call: Call) -> Tensor:
    return (x * call.number("alpha", 0.2) + call.number("beta", 0.5)).clamp(0.0, 1.0)


def _normalize(x: Tensor, call: Call, gamma: Tensor, beta: Tensor) -> Tensor:
    shape = [x.shape[axis] for axis in call.axes]
    return functional.layer_norm(x, shape, gamma.expand(shape), beta.expand(shape), call.number("epsilon", 1e-5))


def _normalize_instance(x: Tensor, call: Call, gamma: Tensor, beta: Tensor) -> Tensor:
    centered = x - x.mean(call.axes, keepdim=True)
    power = centered.square().mean(call.axes, keepdim=True)
    shape = (-1, *(1 for _ in call.axes))
    return centered * torch.rsqrt(power + call.number("epsilon", 1e-5)) * gamma.reshape(shape) + beta.reshape(shape)


def _normalize_groups(x: Tensor, call: Call, gamma: Tensor, beta: Tensor) -> Tensor:
    return functional.group_norm(x, int(call.number("num_groups", 1)), gamma, beta, call.number("epsilon", 1e-5))


def _normalize_power(x: Tensor, call: Call, gamma: Tensor) -> Tensor:
    power = x.square().mean(call.axes, keepdim=True)
    return x * torch.rsqrt(power + call.number("epsilon", 1e-5)) * gamma


def _quotient(x: Tensor, call: Call, divisor: Tensor) -> Tensor:
    return _where(divisor != 0, lambda d: x / d, divisor, (x / divisor).nan_to_num(0.0, math.inf, -math.inf))


def _reciprocal(x: Tensor, call: Call) -> Tensor:
    return _quotient(torch.ones_like(x), call, x)


def _log(x: Tensor, call: Call) -> Tensor:
    return _where(x > 0, torch.log, x, torch.full_like(x, -math.inf))


def _sqrt(x: Tensor, call: Call) -> Tensor:
    return _where(x > 0, torch.sqrt, x, torch.zeros_like(x))


def _where(defined: Tensor, function: Callable[[Tensor], Tensor], x: Tensor, otherwise: Tensor) -> Tensor:
    """`function` where it is `defined`, and a constant elsewhere: codes at a pole are an end of the grid, with slope 0.

    The infinite slope of the float operator there would be NaN as soon as it meets a factor of 0.
    """
    return torch.where(defined, function(torch.where(defined, x, 1.0)), otherwise.detach())


def _leaky_relu(x: Tensor, call: Call) -> Tensor:
    return functional.leaky_relu(x, call.number("alpha", 0.01))


def _prelu(x: Tensor, call: Call, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _weighted_sum(x: Tensor, call: Call, *rest: Tensor) -> Tensor:
    count = (len(rest) + 1) // 2
    operands, weights, bias = (x, *rest[: count - 1]), rest[count - 1 : -1], rest[-1]
    total = bias
    for operand, weight in zip(operands, weights, strict=True):
        total = total + operand * weight
    return total


def _resized(x: Tensor, call: Call) -> Tensor:
    for axis, along in zip((-2, -1), resize.samples(call), strict=True):
        first, second = (x.index_select(axis, torch.from_numpy(n).to(x.device)) for n in (along.first, along.second))
        share = torch.from_numpy(along.share).to(x).reshape(-1, *(1 for _ in range(-1 - axis)))
        x = first * (1 - share) + second * share
    return x


def _of_elements(function: Callable[[Tensor], Tensor]) -> Operation:
    return lambda x, call: function(x)


OPERATIONS: dict[str, Operation] = {
    "Celu": _celu,
    "CumSum": _running_sum,
    "Div": _quotient,
    "Elu": _elu,
    "Gelu": _gelu,
    "GlobalAveragePool": _mean,
    "GroupNormalization": _normalize_groups,
    "HardSigmoid": _hard_sigmoid,
    "InstanceNormalization": _normalize_instance,
    "LayerNormalization": _normalize,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _log_softmax,
    "MaskedSoftmax": _masked_softmax,
    "Max": _largest,
    "MaxWithConstant": _largest,
    "Min": _smallest,
    "MinWithConstant": _smallest,
    "PRelu": _prelu,
    "RMSNormalization": _normalize_power,
    "ReduceL2": _norm,
    "ReduceMean": _mean,
    "ReduceSum": _sum,
    "Resize": _resized,
    "Selu": _selu,
    "Softmax": _softmax,
    "WeightedSum": _weighted_sum,
    "Abs": _of_elements(torch.abs),
    "Cos": _of_elements(torch.cos),
    "Erf": _of_elements(torch.erf),
    "Exp": _of_elements(torch.exp),
    "HardSwish": _of_elements(functional.hardswish),
    "Log": _log,
    "Mish": _of_elements(functional.mish),
    "Reciprocal": _reciprocal,
    "Sigmoid": _of_elements(torch.sigmoid),
    "Sin": _of_elements(torch.sin),
    "Softplus": _of_elements(functional.softplus),
    "Sqrt": _sqrt,
    "Swish": _of_elements(functional.silu),
    "Tanh": _of_elements(torch.tanh),
}
"""The float operator of each function, which gives the gradient."""


class FloatTwin(nn.Module):
    """The float operator of an integer function; :class:`FunctionUnit` takes its place between quantizers.

    Args:
        function: of the file.
        call: what the file asks of it.
    """

    def __init__(self, function: IntegerFunction, call: Call) -> None:
        super().__init__()
        self.function, self.call = function, call

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        """Compute the operator on dequantized values: those of `x` and further operands, and weights behind them."""
        return OPERATIONS[self.function.operator](x, self.call, *rest)


class FunctionUnit(Formula):
    """A function of codes with the bits of the file, and the gradient of the float operator."""

    operation: FloatTwin

    @property
    def kernel_name(self) -> str:
        """See the base class."""
        return self.operation.function.operator

    def values(self, grids: tuple[Grid, ...], output: Grid | None, *args: Any) -> Array:
        """See the base class."""
        assert output is not None
        twin = self.operation
        function = twin.function
        operands, weights = args[: function.operands], args[function.operands :]
        held = dict(zip(function.weights, map(_doubles, weights), strict=True))
        diverged = not all(np.isfinite(weight).all() for weight in held.values())
        if diverged:  # there are no codes of NaN: the result is NaN below, so that the module does not look alive
            held = {name: np.nan_to_num(weight, posinf=0.0, neginf=0.0) for name, weight in held.items()}
        call = dataclasses.replace(twin.call, parameters=held)
        of_operands = [_code_grid(grid, function.x) for grid in grids]
        try:
            constants: dict[str, Any] = function.constants_of(of_operands, _code_grid(output, function.y), call)
        except ValueError as reason:  # the file's fit: training moved them
            hint = "lower the learning rate, or make the file without this integer function"
            raise CheckError("accumulator-overflow", f"{self.tensor}: {function.name}: {reason}", hint=hint) from None
        if isinstance(operands[0], Tensor):
            device = operands[0].device
            constants = {name: torch.from_numpy(value).to(device) for name, value in constants.items()}
        codes = tuple(map(_codes, operands, grids))
        found = function.compute(codes if function.takes_tuple else codes[0], constants, call)
        exact = found.to(torch.float32) if isinstance(found, Tensor) else found.astype(np.float32)
        result = output.saturated(exact) * output.scale
        return result * math.nan if diverged else result


def _codes(x: Array, grid: Grid) -> Array:
    """Return the codes of `x`, int64: a tensor on a grid has none outside of it, and NaN has the code of zero."""
    codes = (x / grid.scale).round() + grid.zero_point
    if isinstance(codes, Tensor):
        return codes.nan_to_num(float(grid.zero_point)).clip(grid.low, grid.high).to(torch.int64)
    return np.nan_to_num(codes, nan=float(grid.zero_point)).clip(grid.low, grid.high).astype(np.int64)


def _doubles(weight: Array) -> np.ndarray:
    held = weight.detach().cpu().numpy() if isinstance(weight, Tensor) else weight
    return np.asarray(held, np.float64)


def _code_grid(grid: Grid, storage: str) -> CodeGrid:
    return CodeGrid(float(grid.scale), int(grid.zero_point), storage)
