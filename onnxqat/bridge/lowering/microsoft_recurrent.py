"""com.microsoft DynamicQuantizeLSTM: an LSTM whose matrix products are integer, as onnxruntime computes it.

The whole input is quantized once per direction, the hidden state of all sequences anew in each step, both to uint8
over their own range. With more than one thread, onnxruntime gives each thread some of the sequences and each such group
a range of its own; with one thread, and here, they share one.
"""

from __future__ import annotations

import torch

from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.lowering.integer import limits
from onnxqat.bridge.lowering.quantization import quantize_dynamically
from onnxqat.bridge.lowering.recurrent import USUAL, Activation, Steps, layer_activations


def quantized_product(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor
) -> torch.Tensor:
    """``x @ weight`` with `x` quantized over its own range; float64 holds the sums of codes exactly."""
    codes, x_scale, x_zero = quantize_dynamically(x)
    wide = torch.float64
    sums = (codes.to(wide) - x_zero.to(wide)) @ (weight.to(wide) - zero_point.to(wide))
    return sums.to(torch.float32) * (x_scale * scale)


def one_direction(
    steps: Steps,
    x: torch.Tensor,
    w: list[torch.Tensor],
    r: list[torch.Tensor],
    bias: torch.Tensor | None,
    h: torch.Tensor,
    c: torch.Tensor,
    peephole: list[torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Y, last hidden and last cell state; `w` and `r` are codes (in, 4 * hidden), scale and zero point."""
    length, batch, size = x.shape
    projected = quantized_product(x.reshape(-1, size), *w).reshape(length, batch, -1)
    both = None if bias is None else torch.add(*bias.chunk(2, 0))
    outputs = []
    for t in range(length):
        gates = projected[t] + quantized_product(h, *r)
        h, c = steps.lstm(gates if both is None else gates + both, c, peephole)
        outputs.append(h)
    return torch.stack(outputs), h, c


def quantized_lstm(
    x: torch.Tensor,
    w: list[torch.Tensor],
    r: list[torch.Tensor],
    bias: torch.Tensor | None,
    h: torch.Tensor | None,
    c: torch.Tensor | None,
    peepholes: torch.Tensor | None,
    direction: str,
    activations: list[Activation],
    clip: float | None,
    coupled: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One layer, time first; the parameters have one row for each direction."""
    hidden, count = r[0].shape[1], len(USUAL["LSTM"])
    found = []
    for d in range(w[0].shape[0]):
        backwards = direction == "reverse" or d == 1
        zero = x.new_zeros(x.shape[1], hidden)
        y, last_h, last_c = one_direction(
            Steps("LSTM", activations[d * count : (d + 1) * count], clip, coupled),
            x.flip(0) if backwards else x,
            [part[d] for part in w],
            [part[d] for part in r],
            None if bias is None else bias[d],
            zero if h is None else h[d],
            zero if c is None else c[d],
            None if peepholes is None else list(peepholes[d].chunk(3, 0)),
        )
        found.append((y.flip(0) if backwards else y, last_h, last_c))
    ys, hs, cs = zip(*found, strict=True)
    return torch.stack(ys, 1), torch.stack(hs), torch.stack(cs)


def com_microsoft_dynamic_quantize_lstm(n: NodeView) -> Lowered:
    """DynamicQuantizeLSTM 1, without sequence lengths."""
    if n.has(4):
        raise n.refuse("sequence lengths, as the range of a step would depend on them")
    limits(n, n.dtype(1)), limits(n, n.dtype(2))
    w, r = ([n.tensor(i), n.buffer(j), n.buffer(j + 1)] for i, j in ((1, 8), (2, 10)))
    direction = n.attr("direction", "forward")
    usual = USUAL["LSTM"] * (2 if direction == "bidirectional" else 1)
    both = n.call(
        quantized_lstm,
        n.tensor(0),
        w,
        r,
        *(n.optional(i) for i in (3, 5, 6, 7)),
        direction,
        layer_activations(n, usual),
        n.attr("clip"),
        bool(n.attr("input_forget", 0)),
    )
    return tuple(n.item(both, i) if n.wants(i) else None for i in range(len(n.node.outputs)))
