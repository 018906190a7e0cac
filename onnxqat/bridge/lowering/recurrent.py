"""RNN, LSTM and GRU (ONNX versions 7 to 22), both layouts and all directions.

The usual layer runs as torch's fused kernel, everything else step by step: sequence lengths, clipping, peepholes,
coupled gates, ``linear_before_reset=0``, other activations. The steps are Python's, so that such a layer exports for
one sequence length.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.nn import functional

from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.lowering.activation import elu_of, leaky_relu_of
from onnxqat.bridge.lowering.indexing import reversed_sequences


def _affine(x: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return alpha * x + beta


def _thresholded_relu(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return torch.where(x >= alpha, x, torch.zeros_like(x))


def _scaled_tanh(x: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return alpha * torch.tanh(beta * x)


def _hard_sigmoid(x: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return (alpha * x + beta).clamp(0, 1)


# Function, default of alpha, default of beta: None where the function does not take it, NaN where ONNX states none.
ACTIVATIONS: dict[str, tuple[Any, float | None, float | None]] = {
    "relu": (torch.relu, None, None),
    "tanh": (torch.tanh, None, None),
    "sigmoid": (torch.sigmoid, None, None),
    "softsign": (functional.softsign, None, None),
    "softplus": (functional.softplus, None, None),
    "affine": (_affine, math.nan, math.nan),
    "leakyrelu": (leaky_relu_of, 0.01, None),
    "thresholdedrelu": (_thresholded_relu, 1.0, None),
    "scaledtanh": (_scaled_tanh, math.nan, math.nan),
    "hardsigmoid": (_hard_sigmoid, 0.2, 0.5),
    "elu": (elu_of, 1.0, None),
}
Activation: TypeAlias = "tuple[str, tuple[float, ...]]"  # name and parameters
USUAL = {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
# Where torch's gates are in ONNX's order: LSTM i o f c -> i f c o, GRU z r h -> r z h.
TORCH_ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}


def in_torch_order(kind: str, weight: torch.Tensor) -> torch.Tensor:
    """Gate blocks along the first axis in torch's order."""
    blocks = weight.chunk(GATES[kind], 0)
    return torch.cat([blocks[i] for i in TORCH_ORDER[kind]], 0)


def fused(
    kind: str,
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    bias: torch.Tensor | None,
    h: torch.Tensor | None,
    c: torch.Tensor | None,
    direction: str,
    activation: str,
) -> tuple[torch.Tensor, ...]:
    """One layer through torch's kernel; time first, Y of shape (time, direction, batch, hidden).

    In float32 under autocast on a CPU: there torch's LSTM asks oneDNN for a kernel that most CPUs lack.
    """
    if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        bias, h, c = (None if each is None else each.float() for each in (bias, h, c))
        with torch.autocast("cpu", enabled=False):
            return fused(kind, x.float(), w.float(), r.float(), bias, h, c, direction, activation)
    directions, hidden = w.shape[0], r.shape[2]
    flat: list[torch.Tensor] = []
    for d in range(directions):
        flat += [in_torch_order(kind, w[d]), in_torch_order(kind, r[d])]
        if bias is not None:
            flat += [in_torch_order(kind, half) for half in bias[d].chunk(2, 0)]
    if direction == "reverse":
        x = x.flip(0)
    state = x.new_zeros(directions, x.shape[1], hidden) if h is None else h
    options = (flat, bias is not None, 1, 0.0, False, directions == 2, False)
    if kind == "LSTM":
        y, *last = torch.lstm(x, (state, torch.zeros_like(state) if c is None else c), *options)
    else:
        recurrent = {"GRU": torch.gru, "RNN": torch.rnn_relu if activation == "relu" else torch.rnn_tanh}[kind]
        y, *last = recurrent(x, state, *options)
    if direction == "reverse":
        y = y.flip(0)
    return (y.reshape(y.shape[0], y.shape[1], directions, hidden).transpose(1, 2), *last)


class Steps:
    """The arithmetic of one direction, step by step."""

    def __init__(self, kind: str, activations: list[Activation], clip: float | None, coupled: bool) -> None:
        self.kind = kind
        self.activations = activations
        self.clip = clip
        self.coupled = coupled  # LSTM: input_forget; GRU: linear_before_reset

    def activate(self, index: int, x: torch.Tensor, *, clipped: bool = True) -> torch.Tensor:
        """Activation `index` of the clipped value."""
        name, parameters = self.activations[index]
        bounded = x if self.clip is None or not clipped else x.clamp(-self.clip, self.clip)
        result: torch.Tensor = ACTIVATIONS[name][0](bounded, *parameters)
        return result

    def lstm(
        self, gates: torch.Tensor, c: torch.Tensor, peephole: list[torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """New hidden and cell state."""
        i, o, f, g = gates.chunk(4, -1)
        if peephole is not None:
            i, f = i + peephole[0] * c, f + peephole[2] * c
        i = self.activate(0, i)
        f = 1 - i if self.coupled else self.activate(0, f)
        c = f * c + i * self.activate(1, g)
        if peephole is not None:
            o = o + peephole[1] * c
        return self.activate(0, o) * self.activate(2, c, clipped=False), c

    def gru(self, x: torch.Tensor, h: torch.Tensor, r: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """New hidden state."""
        hidden = h.shape[-1]
        both = x[:, : 2 * hidden] + h @ r[: 2 * hidden].t() + bias[: 2 * hidden]
        z, reset = self.activate(0, both).chunk(2, -1)
        rest, rest_bias = r[2 * hidden :].t(), bias[2 * hidden :]
        inner = reset * (h @ rest + rest_bias) if self.coupled else (reset * h) @ rest + rest_bias
        return (1 - z) * self.activate(1, x[:, 2 * hidden :] + inner) + z * h


def one_direction(
    steps: Steps,
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    bias: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    peephole: list[torch.Tensor] | None,
    lengths: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Y, last hidden and last cell state; what lies behind a sequence's end is 0 in Y and does not change the states."""
    input_bias, state_bias = bias.chunk(2, 0)
    projected = x @ w.t() + input_bias
    outputs = []
    for t in range(x.shape[0]):
        new_c = c
        if steps.kind == "LSTM":
            new_h, new_c = steps.lstm(projected[t] + h @ r.t() + state_bias, c, peephole)
        elif steps.kind == "GRU":
            new_h = steps.gru(projected[t], h, r, state_bias)
        else:
            new_h = steps.activate(0, projected[t] + h @ r.t() + state_bias)
        if lengths is None:
            h, c = new_h, new_c
            outputs.append(h)
            continue
        active = (lengths > t).unsqueeze(-1)
        h, c = torch.where(active, new_h, h), torch.where(active, new_c, c)
        outputs.append(torch.where(active, new_h, torch.zeros_like(new_h)))
    return torch.stack(outputs), h, c


def stepwise(
    kind: str,
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    bias: torch.Tensor | None,
    lengths: torch.Tensor | None,
    h: torch.Tensor | None,
    c: torch.Tensor | None,
    peepholes: torch.Tensor | None,
    direction: str,
    activations: list[Activation],
    clip: float | None,
    coupled: bool,
) -> tuple[torch.Tensor, ...]:
    """One layer in any form; time first."""
    directions, hidden, count = w.shape[0], r.shape[2], len(USUAL[kind])
    ys, hs, cs = [], [], []
    for d in range(directions):
        backwards = direction == "reverse" or d == 1
        steps = Steps(kind, activations[d * count : (d + 1) * count], clip, coupled)
        zero = x.new_zeros(x.shape[1], hidden)
        bias_d = x.new_zeros(2 * w.shape[1]) if bias is None else bias[d]
        peephole = None if peepholes is None else list(peepholes[d].chunk(3, 0))
        source = _backwards(x, lengths) if backwards else x
        y, last_h, last_c = one_direction(
            steps,
            source,
            w[d],
            r[d],
            bias_d,
            zero if h is None else h[d],
            zero if c is None else c[d],
            peephole,
            lengths,
        )
        ys.append(_backwards(y, lengths) if backwards else y)
        hs.append(last_h)
        cs.append(last_c)
    states = (torch.stack(hs), torch.stack(cs)) if kind == "LSTM" else (torch.stack(hs),)
    return (torch.stack(ys, 1), *states)


def _backwards(x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    return x.flip(0) if lengths is None else reversed_sequences(x, lengths, 1, 0)


def rnn(n: NodeView) -> Lowered:
    """RNN 7 to 22."""
    return _layer(n, "RNN", coupled=False)


def gru(n: NodeView) -> Lowered:
    """GRU 7 to 22."""
    return _layer(n, "GRU", coupled=bool(n.attr("linear_before_reset", 0)))


def lstm(n: NodeView) -> Lowered:
    """LSTM 7 to 22."""
    return _layer(n, "LSTM", coupled=bool(n.attr("input_forget", 0)))


def _layer(n: NodeView, kind: str, *, coupled: bool) -> Lowered:
    direction, clip, by_batch = n.attr("direction", "forward"), n.attr("clip"), bool(n.attr("layout", 0))
    usual = USUAL[kind] * (2 if direction == "bidirectional" else 1)
    activations = layer_activations(n, usual)
    names = [name for name, _ in activations]
    x, w, r, bias, lengths = n.tensor(0), n.tensor(1), n.tensor(2), n.optional(3), n.optional(4)
    h, c = n.optional(5), n.optional(6) if kind == "LSTM" else None
    peepholes = n.optional(7) if kind == "LSTM" else None
    if by_batch:
        x = n.call(torch.transpose, x, 0, 1)
        h = None if h is None else n.call(torch.transpose, h, 0, 1)
        c = None if c is None else n.call(torch.transpose, c, 0, 1)
    gates_fit = coupled if kind == "GRU" else not coupled
    fits = names == usual or (kind == "RNN" and set(names) == {"relu"})
    plain = fits and gates_fit and clip is None and lengths is None and peepholes is None
    if plain:
        both = n.call(fused, kind, x, w, r, bias, h, c, direction, names[0])
    else:
        both = n.call(stepwise, kind, x, w, r, bias, lengths, h, c, peepholes, direction, activations, clip, coupled)
    return tuple(_output(n, both, index, by_batch) for index in range(len(n.node.outputs)))


def layer_activations(n: NodeView, usual: list[str]) -> list[Activation]:
    """The functions with their parameters, which those that take one consume in order, as in onnxruntime."""
    names = [str(a).lower() for a in n.attr("activations") or usual]
    unknown = [a for a in names if a not in ACTIVATIONS]
    if unknown or len(names) != len(usual):
        raise n.refuse(f"activations {', '.join(unknown or names)}")
    given = [list(n.attr("activation_alpha") or []), list(n.attr("activation_beta") or [])]
    found: list[Activation] = []
    for name in names:
        defaults = ACTIVATIONS[name][1:]
        taken = [
            float(values.pop(0)) if values else default
            for values, default in zip(given, defaults, strict=True)
            if default is not None
        ]
        if any(math.isnan(value) for value in taken):
            raise n.refuse(f"activation {name} without activation_alpha and activation_beta")
        found.append((name, tuple(taken)))
    return found


def _output(n: NodeView, both: fx.Node, index: int, by_batch: bool) -> fx.Node | None:
    if not n.wants(index):
        return None
    found = n.item(both, index)
    if not by_batch:
        return found
    return n.call(torch.permute, found, [2, 0, 1, 3]) if index == 0 else n.call(torch.transpose, found, 0, 1)
