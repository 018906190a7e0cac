"""How a random convolution, pooling, normalization, recurrent layer, product or control flow node is made."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tools.random_graphs.generate import Growing


def ints(g: Growing, numbers: Any) -> str:
    return g.add(np.asarray(numbers, np.int64), constant=True)


def axis_of(g: Growing, name: str) -> int:
    rank = g.arrays[name].ndim
    return int(g.random.integers(-rank, rank)) if rank else 0


def _window(g: Growing, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Attributes of a window, which is not larger than the image: onnxruntime computes something then, torch refuses."""
    kernel = [int(g.random.integers(1, max(1, min(3, size)) + 1)) for size in sizes]
    made: dict[str, Any] = {"kernel_shape": kernel, "strides": [int(s) for s in g.random.integers(1, 3, len(sizes))]}
    if g.chance(0.3):
        made["auto_pad"] = g.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif g.chance(0.5):
        made["pads"] = [int(g.random.integers(0, k)) for k in kernel * 2]
    return made


def conv_(g: Growing) -> bool:
    x = g.find((np.float32,), (3, 4, 5))
    channels, spatial = g.arrays[x].shape[1], g.arrays[x].ndim - 2
    if not channels:
        return False
    options = _window(g, g.arrays[x].shape[2:])
    group = int(g.pick([1, channels]))  # type: ignore[call-overload]
    transposed = g.chance(0.3)
    out = int(g.random.integers(1, 4))
    head = (channels, out) if transposed else (out * group, channels // group)
    w = g.add(g.values((*head, *options["kernel_shape"]), np.float32))
    bias = [g.add(g.values((out * group,), np.float32))] if g.chance(0.5) else []
    roomy = all(2 * k - 1 <= size for k, size in zip(options["kernel_shape"], g.arrays[x].shape[2:], strict=True))
    if "auto_pad" not in options and roomy and g.chance(0.3):
        options["dilations"] = [2] * spatial
    return g.grow("ConvTranspose" if transposed else "Conv", [x, w, *bias], group=group, **options)


def pool_(g: Growing) -> bool:
    x = g.find((np.float32,), (3, 4, 5))
    name = str(g.pick(["MaxPool", "AveragePool", "LpPool"]))
    options = _window(g, g.arrays[x].shape[2:])
    if name != "LpPool" and "auto_pad" not in options:
        options["ceil_mode"] = int(g.chance(0.4))
    if name == "AveragePool":
        options["count_include_pad"] = int(g.chance(0.5))
    return g.grow(name, [x], **options)


def normalization_(g: Growing) -> bool:
    x = g.find((np.float32,), (2, 3, 4))
    shape = g.arrays[x].shape
    if int(np.prod(shape[2:])) < 2 or not g.arrays[x].size:
        # onnxruntime 1.32 crashes without elements; with one, x - mean is the rounding of both sides, times 1 / sqrt(epsilon).
        return False
    name = str(g.pick(["BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN", "LpNormalization"]))
    if name == "LRN":
        return g.grow(name, [x], size=int(g.random.integers(1, 5)))
    if name == "LpNormalization":
        return g.grow(name, [x], axis=axis_of(g, x), p=int(g.random.integers(1, 3)))
    if name == "LayerNormalization":
        if g.opset < 17:
            return False
        axis = axis_of(g, x)
        return g.grow(name, [x, *(g.add(g.values(shape[axis:], np.float32)) for _ in range(2))], axis=axis)
    parameters = [g.add(g.values(shape[1:2], np.float32), constant=True) for _ in range(2)]
    if name == "InstanceNormalization":
        return g.grow(name, [x, *parameters])
    variance = np.asarray(g.random.uniform(0.5, 2, shape[1:2]), np.float32)
    mean = g.values(shape[1:2], np.float32)
    return g.grow(name, [x, *parameters, g.add(mean, constant=True), g.add(variance, constant=True)])


def recurrent_(g: Growing) -> bool:
    x = g.find((np.float32,), (3,))
    name, gates = g.pick([("RNN", 1), ("GRU", 3), ("LSTM", 4)])  # type: ignore[misc]
    if not g.arrays[x].size:
        return False  # torch has no sequences of length 0
    size, hidden = g.arrays[x].shape[2], 3
    both = g.chance(0.3)
    shapes = [(1 + both, gates * hidden, size), (1 + both, gates * hidden, hidden), (1 + both, 2 * gates * hidden)]
    parameters = [g.add(g.values(shape, np.float32), constant=True) for shape in shapes]
    direction = "bidirectional" if both else g.pick(["forward", "reverse"])
    return g.grow(name, [x, *parameters], outputs=2, hidden_size=hidden, direction=direction)


def if_(g: Growing) -> bool:
    x = g.find((np.float32,))
    condition = g.add(np.asarray(g.chance(0.5)), constant=False)
    branches = {}
    for key, op_type in (("then_branch", g.pick(["Neg", "Relu"])), ("else_branch", g.pick(["Abs", "Exp"]))):
        name = g.name()
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        branches[key] = helper.make_graph([helper.make_node(op_type, [x], [name])], key, [], [output])
    return g.grow("If", [condition], **branches)


def loop_(g: Growing) -> bool:
    x = g.find((np.float32,))
    shape = [None] * g.arrays[x].ndim
    i, c, state, c_out, added, scanned = (g.name() for _ in range(6))
    nodes = [
        helper.make_node("Identity", [c], [c_out]),
        helper.make_node("Add", [state, x], [added]),
        helper.make_node("Neg", [added], [scanned]),
    ]
    infos = [
        helper.make_tensor_value_info(i, TensorProto.INT64, []),
        helper.make_tensor_value_info(c, TensorProto.BOOL, []),
        helper.make_tensor_value_info(state, TensorProto.FLOAT, shape),
    ]
    outs = [
        helper.make_tensor_value_info(c_out, TensorProto.BOOL, []),
        *(helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in (added, scanned)),
    ]
    body = helper.make_graph(nodes, "body", infos, outs)
    count = g.add(np.asarray(int(g.random.integers(0, 4)), np.int64))
    return g.grow("Loop", [count, "", x], outputs=2, body=body)
