"""How a random node of each operator is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from tools.random_graphs import layers
from tools.random_graphs.generate import KINDS, Growing
from tools.random_graphs.layers import axis_of, ints

FLOATS = (np.float32, np.float16, np.float64)
INTEGERS = (np.int64, np.int32, np.int8, np.uint8)
SIGNED = (*FLOATS, np.int64, np.int32, np.int8)
NUMBERS = (*FLOATS, *INTEGERS)
ALL = (*NUMBERS, np.bool_)
Maker = Callable[[Growing], bool]

UNARY = dict.fromkeys(
    [
        "Sigmoid",
        "Tanh",
        "Softplus",
        "Softsign",
        "Exp",
        "Log",
        "Sqrt",
        "Sin",
        "Cos",
        "Tan",
        "Asin",
        "Acos",
        "Atan",
        "Sinh",
        "Cosh",
        "Asinh",
        "Acosh",
        "Atanh",
        "Erf",
        "Ceil",
        "Floor",
        "Round",
        "Reciprocal",
        "HardSwish",
        "Mish",
        "Elu",
        "Selu",
        "Celu",
        "LeakyRelu",
        "ThresholdedRelu",
        "Shrink",
        "HardSigmoid",
        "IsNaN",
        "IsInf",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "MeanVarianceNormalization",
    ],
    FLOATS,
) | {"Relu": SIGNED, "Neg": SIGNED, "Abs": NUMBERS, "Sign": NUMBERS, "Not": (np.bool_,), "Identity": ALL}
# onnxruntime computes these in float32 in part.
UNARY |= dict.fromkeys(["HardSwish", "Shrink"], (np.float32, np.float16))
BINARY = {
    **dict.fromkeys(["Add", "Sub", "Mul", "Max", "Min"], NUMBERS),
    "Div": FLOATS,
    "Pow": (np.float32, np.float64),
    **dict.fromkeys(["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"], NUMBERS),
    **dict.fromkeys(["And", "Or", "Xor"], (np.bool_,)),
    "PRelu": (np.float32,),
    "BitwiseAnd": INTEGERS,
    "BitwiseOr": INTEGERS,
    "BitwiseXor": INTEGERS,
}
REDUCTIONS = [
    "ReduceMax",
    "ReduceMin",
    "ReduceMean",
    "ReduceSum",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
]
IMAGES = {"GlobalAveragePool": (3, 4, 5), "GlobalMaxPool": (3, 4, 5), "MeanVarianceNormalization": (4,)}
POWERS = {"Celu": "alpha", "Elu": "alpha", "LeakyRelu": "alpha", "ThresholdedRelu": "alpha", "HardSigmoid": "alpha"}


def _unary(name: str) -> Maker:
    def make(g: Growing) -> bool:
        attributes = {}
        if name in POWERS and g.chance(0.5):
            attributes[POWERS[name]] = float(np.float32(g.random.uniform(0.1, 2.0)))
        ranks = IMAGES.get(name, (0, 1, 2, 3, 4, 5))
        return g.grow(name, [g.find(UNARY[name], ranks)], **attributes)

    return make


def _like(g: Growing, name: str, dtypes: tuple[type, ...] | None = None) -> str:
    """A value whose shape broadcasts with that of `name`."""
    shape = g.arrays[name].shape
    kinds = (g.arrays[name].dtype.type,) if dtypes is None else dtypes
    fits = [n for n, a in g.arrays.items() if a.dtype.type in kinds and _broadcasts(a.shape, shape)]
    if fits and g.chance(0.6):
        return str(g.pick(fits))
    cut = shape[int(g.random.integers(0, len(shape) + 1)) :]
    return g.add(g.values(tuple(1 if g.chance(0.25) else size for size in cut), g.pick(kinds)))  # type: ignore[arg-type]


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(a[::-1], b[::-1], strict=False))


def _binary(name: str) -> Maker:
    def make(g: Growing) -> bool:
        a = g.find(BINARY[name])
        pair = [a, _like(g, a)]
        return g.grow(name, pair[::-1] if name != "PRelu" and g.chance(0.5) else pair)

    return make


def _reduce(name: str) -> Maker:
    def make(g: Growing) -> bool:
        # ONNX leaves open how a logarithm becomes an integer.
        x = g.find((np.float32, np.float64) if "Log" in name else (np.float32, np.float64, np.int32, np.int64))
        rank = g.arrays[x].ndim
        axes = sorted({axis_of(g, x) % rank for _ in range(int(g.random.integers(1, 3)))}) if rank else []
        axes = [a - rank if g.chance(0.3) else a for a in axes]
        keep = int(g.random.integers(0, 2))
        if not axes or g.chance(0.2):
            return g.grow(name, [x], keepdims=keep)
        if g.opset >= 18 or name == "ReduceSum":
            return g.grow(name, [x, ints(g, axes)], keepdims=keep)
        return g.grow(name, [x], axes=axes, keepdims=keep)

    return make


def _along(name: str, dtypes: tuple[type, ...], **ranges: int) -> Maker:
    """An operator with an axis and attributes of 0 and up to a limit."""

    def make(g: Growing) -> bool:
        x = g.find(dtypes, (1, 2, 3, 4, 5))
        chosen = {k: int(g.random.integers(0, limit)) for k, limit in ranges.items()}
        return g.grow(name, [x], axis=axis_of(g, x), **chosen)

    return make


def _sum(g: Growing) -> bool:
    x = g.find(FLOATS)
    return g.grow(str(g.pick(["Sum", "Mean", "Max", "Min"])), [x, _like(g, x), _like(g, x)])


def _mod(g: Growing) -> bool:
    a = g.find((*INTEGERS, np.float32))
    dtype = g.arrays[a].dtype
    divisor = g.random.integers(1, 6, g.arrays[a].shape).astype(dtype)
    name = "Mod" if dtype.kind == "f" or g.chance(0.5) else "Div"
    extra = {"fmod": 1 if dtype.kind == "f" else int(g.chance(0.5))} if name == "Mod" else {}
    return g.grow(name, [a, g.add(divisor)], **extra)


def _cast(g: Growing) -> bool:
    target = helper.np_dtype_to_tensor_dtype(np.dtype(g.pick(KINDS)))  # type: ignore[arg-type]
    return g.grow("Cast", [g.find(ALL)], to=int(target))


def _clip(g: Growing) -> bool:
    x = g.find(NUMBERS)
    dtype = g.arrays[x].dtype
    low, high = (g.add(np.asarray(v, dtype)) if g.chance(0.7) else "" for v in (1, 4))
    return g.grow("Clip", [x, low, high] if high else [x, low] if low else [x])


def _where(g: Growing) -> bool:
    x = g.find(ALL)
    return g.grow("Where", [_like(g, x, (np.bool_,)), x, _like(g, x)])


def _concat(g: Growing) -> bool:
    x = g.find(ALL, (1, 2, 3, 4))
    a, axis = g.arrays[x], axis_of(g, x)
    shape = list(a.shape)
    shape[axis] = int(g.random.integers(0 if g.chance(0.1) else 1, 4))
    return g.grow("Concat", [x, g.add(g.values(tuple(shape), a.dtype.type)), x], axis=axis)


def _transpose(g: Growing) -> bool:
    x = g.find(ALL)
    order = [int(i) for i in g.random.permutation(g.arrays[x].ndim)]
    return g.grow("Transpose", [x], perm=order if order and g.chance(0.8) else None)


def _factors(g: Growing, size: int) -> list[int]:
    made = []
    while size > 1 and len(made) < 4:
        divisor = int(g.pick([d for d in range(2, size + 1) if size % d == 0]))  # type: ignore[call-overload]
        made.append(divisor)
        size //= divisor
    return [*made, *([size] if size != 1 or not made else [])]


def _reshape(g: Growing) -> bool:
    x = g.find(ALL)
    size = g.arrays[x].size
    if size == 0:
        return False
    target = _factors(g, size)
    if g.chance(0.5):
        target[int(g.random.integers(len(target)))] = -1
    return g.grow("Reshape", [x, ints(g, target)])


def _reshape_by_shape(g: Growing) -> bool:
    """Reshape to sizes computed from a shape, as exporters write it."""
    x = g.find(ALL, (2, 3, 4))
    if not g.arrays[x].size or not g.grow("Shape", [x]):
        return False
    shape = g.nodes[-1].output[0]
    if not g.grow("Gather", [shape, g.add(np.asarray(0 if g.chance(0.5) else [0], np.int64), constant=True)]):
        return False
    first = g.nodes[-1].output[0]
    if not g.arrays[first].ndim:
        if not g.grow("Unsqueeze", [first, ints(g, [0])]):
            return False
        first = g.nodes[-1].output[0]
    if not g.grow("Concat", [first, ints(g, [-1])], axis=0):
        return False
    return g.grow("Reshape", [x, g.nodes[-1].output[0]])


def _squeeze(g: Growing) -> bool:
    x = g.find(ALL)
    ones = [i for i, d in enumerate(g.arrays[x].shape) if d == 1]
    return g.grow("Squeeze", [x, ints(g, ones[:1])]) if ones and g.chance(0.7) else g.grow("Squeeze", [x])


def _unsqueeze(g: Growing) -> bool:
    x = g.find(ALL, (0, 1, 2, 3, 4))
    rank = g.arrays[x].ndim
    return g.grow("Unsqueeze", [x, ints(g, [int(g.random.integers(-rank - 1, rank + 1))])])


def _expand(g: Growing) -> bool:
    x = g.find(ALL)
    wanted = [int(g.random.integers(1, 4)) if d == 1 else d if g.chance(0.7) else 1 for d in g.arrays[x].shape]
    return g.grow("Expand", [x, ints(g, [2] * int(g.chance(0.3)) + wanted)])


def _tile(g: Growing) -> bool:
    x = g.find(ALL, (1, 2, 3, 4))
    return g.grow("Tile", [x, ints(g, g.random.integers(1, 3, g.arrays[x].ndim))])


def _slice(g: Growing) -> bool:
    x = g.find(ALL, (1, 2, 3, 4, 5))
    axis = axis_of(g, x)
    size = g.arrays[x].shape[axis]
    start, end = (int(v) for v in g.random.integers(-size - 2, size + 3, 2))
    step = int(g.random.choice([1, 1, 2, -1, -2]))
    if g.chance(0.3):
        end = 2**31 if step > 0 else -(2**31)
    return g.grow("Slice", [x, *(ints(g, [v]) for v in (start, end, axis, step))])


def _split(g: Growing) -> bool:
    x = g.find(ALL, (1, 2, 3, 4))
    axis = axis_of(g, x)
    size = g.arrays[x].shape[axis]
    if size < 2:
        return False
    first = int(g.random.integers(0 if g.chance(0.2) else 1, size))
    return g.grow("Split", [x, ints(g, [first, size - first])], outputs=2, axis=axis)


def _gather(g: Growing) -> bool:
    x = g.find(ALL, (1, 2, 3, 4))
    axis = axis_of(g, x)
    size = g.arrays[x].shape[axis]
    if not size:
        return False
    indices = g.random.integers(-size, size, g.shape(int(g.random.integers(0, 3))))
    dtype = np.int64 if g.chance(0.7) else np.int32
    if g.chance(0.5):
        return g.grow("Gather", [x, g.add(indices.astype(dtype))], axis=axis)
    each = g.random.integers(-size, size, g.arrays[x].shape).astype(dtype)
    return g.grow("GatherElements", [x, g.add(each)], axis=axis)


def _gather_nd(g: Growing) -> bool:
    x = g.find(ALL, (2, 3, 4))
    shape = g.arrays[x].shape
    depth = int(g.random.integers(1, len(shape) + 1))
    if not all(shape[:depth]):
        return False
    points = np.stack([g.random.integers(-s, s, 3) for s in shape[:depth]], -1)
    if g.chance(0.5):
        return g.grow("GatherND", [x, g.add(points)])
    unique = np.unique(points % np.asarray(shape[:depth]), axis=0)
    updates = g.values((len(unique), *shape[depth:]), g.arrays[x].dtype.type)
    return g.grow("ScatterND", [x, g.add(unique), g.add(updates)])


def _scatter(g: Growing) -> bool:
    x = g.find((np.float32, np.int64), (1, 2, 3))
    axis, shape = axis_of(g, x), g.arrays[x].shape
    if not shape[axis]:
        return False
    order = g.random.permuted(np.broadcast_to(np.arange(shape[axis]), (*np.delete(shape, axis), shape[axis])), axis=-1)
    indices = np.moveaxis(order, -1, axis)
    updates = g.values(shape, g.arrays[x].dtype.type)
    reduction = g.pick(["none", "add", "mul", "max", "min"] if g.opset >= 18 else ["none"])
    options = {} if reduction == "none" else {"reduction": reduction}
    return g.grow("ScatterElements", [x, g.add(np.ascontiguousarray(indices)), g.add(updates)], axis=axis, **options)


def _pad(g: Growing) -> bool:
    x = g.find((*FLOATS, np.int64), (1, 2, 3, 4))
    a = g.arrays[x]
    mode = str(g.pick(["constant", "reflect", "edge"]))
    low = -1 if mode == "constant" and g.chance(0.2) else 0
    limit = 3 if mode != "reflect" else max(1, min(a.shape))
    pads = ints(g, g.random.integers(low, limit, 2 * a.ndim))
    value = [g.add(np.asarray(2, a.dtype))] if mode == "constant" and g.chance(0.5) else []
    return g.grow("Pad", [x, pads, *value], mode=mode)


def _matmul(g: Growing) -> bool:
    a = g.find((np.float32, np.float64), (1, 2, 3, 4))
    array = g.arrays[a]
    batch = array.shape[:-2] if g.chance(0.5) else ()
    shape = (array.shape[-1],) if g.chance(0.15) else (*batch, array.shape[-1], int(g.random.integers(1, 5)))
    return g.grow("MatMul", [a, g.add(g.values(shape, array.dtype.type))])


def _gemm(g: Growing) -> bool:
    a = g.find((np.float32,), (2,))
    array = g.arrays[a]
    trans_a, trans_b = int(g.chance(0.5)), int(g.chance(0.5))
    rows, inner = array.shape[::-1] if trans_a else array.shape
    columns = int(g.random.integers(1, 5))
    b = g.add(g.values((columns, inner) if trans_b else (inner, columns), np.float32))
    c = [g.add(g.values(g.pick([(columns,), (rows, 1), (1,), ()]), np.float32))] if g.chance(0.6) else []  # type: ignore[arg-type]
    return g.grow("Gemm", [a, b, *c], transA=trans_a, transB=trans_b, alpha=g.pick([1.0, 0.5]), beta=g.pick([1.0, 2.0]))


def _resize(g: Growing) -> bool:
    x = g.find((np.float32,), (3, 4))
    shape = g.arrays[x].shape
    mode = str(g.pick(["nearest", "linear", "cubic"] if len(shape) == 4 else ["nearest", "linear"]))
    where = str(g.pick(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]))
    options: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        options["nearest_mode"] = g.pick(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    wanted = [*shape[:2], *(int(g.random.integers(1, 9)) for _ in shape[2:])]
    if g.chance(0.5):
        return g.grow("Resize", [x, "", "", ints(g, wanted)], **options)
    scales = np.asarray([1, 1, *([g.pick([0.5, 1.5, 2.0])] * (len(shape) - 2))], np.float32)
    return g.grow("Resize", [x, "", g.add(scales, constant=True)], **options)


def _top_k(g: Growing) -> bool:
    x = g.find((np.float32, np.int64), (1, 2, 3, 4))
    axis = axis_of(g, x)
    k = ints(g, [int(g.random.integers(0, g.arrays[x].shape[axis] + 1))])
    return g.grow("TopK", [x, k], outputs=2, axis=axis, largest=int(g.chance(0.5)))


def _one_hot(g: Growing) -> bool:
    indices = g.find((np.int64, np.int32), (0, 1, 2))
    values = g.add(np.asarray([0, 1], np.float32))
    return g.grow("OneHot", [indices, ints(g, 5), values], axis=-1)


def _depth(g: Growing) -> bool:
    batch, channels, height, width = g.shape(4)
    if g.chance(0.5):
        x = g.add(g.values((batch, channels, 2 * height, 2 * width), np.float32))
        return g.grow("SpaceToDepth", [x], blocksize=2)
    x = g.add(g.values((batch, 4 * channels, height, width), np.float32))
    return g.grow("DepthToSpace", [x], blocksize=2, mode=g.pick(["DCR", "CRD"]))


def _quantize(g: Growing) -> bool:
    x = g.find((np.float32,))
    dtype = g.pick([np.int8, np.uint8])
    scale, zero = g.add(np.asarray(0.05, np.float32)), g.add(np.asarray(3, dtype))  # type: ignore[arg-type]
    return g.grow("QuantizeLinear", [x, scale, zero]) and g.grow(
        "DequantizeLinear", [g.nodes[-1].output[0], scale, zero]
    )


def _integer_product(g: Growing) -> bool:
    a = g.find((np.uint8,), (2, 3))
    b = g.add(g.values((g.arrays[a].shape[-1], 3), np.uint8))
    return g.grow("MatMulInteger", [a, b, g.add(np.asarray(2, np.uint8))])


def _cumulate(g: Growing) -> bool:
    x = g.find((np.float32, np.float64, np.int64), (1, 2, 3))
    axis = g.add(np.asarray(axis_of(g, x), np.int64), constant=True)
    return g.grow("CumSum", [x, axis], exclusive=int(g.chance(0.5)), reverse=int(g.chance(0.5)))


def _triangle(g: Growing) -> bool:
    x = g.find((np.float32, np.int64), (2, 3, 4))
    return g.grow("Trilu", [x, ints(g, int(g.random.integers(-2, 3)))], upper=int(g.chance(0.5)))


def _shape(g: Growing) -> bool:
    x = g.find(ALL)
    return g.grow(str(g.pick(["Shape", "Size"])), [x])


def _by_data(g: Growing) -> bool:
    """Operators whose result's size depends on values."""
    x = g.find((np.bool_, np.float32, np.int64), (1, 2, 3))
    if g.chance(0.5):
        return g.grow("NonZero", [x])
    axis = axis_of(g, x)
    condition = g.add(g.values((g.arrays[x].shape[axis],), np.bool_))
    return g.grow("Compress", [x, condition], axis=axis)


def _einsum(g: Growing) -> bool:
    x = g.find((np.float32,), (2,))
    y = g.add(g.values((g.arrays[x].shape[1], 3), np.float32))
    return g.grow("Einsum", [x, y], equation=g.pick(["ij,jk->ik", "ij,jk->ki", "ij,jk->j", "ij,jk"]))


SHAPED: tuple[Any, ...] = (
    _sum,
    _mod,
    _cast,
    _clip,
    _where,
    _concat,
    _transpose,
    _reshape,
    _reshape_by_shape,
    _squeeze,
    _unsqueeze,
    _expand,
    _tile,
    _slice,
    _split,
    _gather,
    _gather_nd,
    _scatter,
    _pad,
    _matmul,
    _gemm,
    layers.conv_,
    layers.pool_,
    layers.normalization_,
    _resize,
    _top_k,
    _one_hot,
    _depth,
    _quantize,
    _integer_product,
    _cumulate,
    _triangle,
    _shape,
    _by_data,
    _einsum,
    layers.recurrent_,
    layers.if_,
    layers.loop_,
)
MAKERS: dict[str, Maker] = {
    **{name: _unary(name) for name in UNARY},
    **{name: _binary(name) for name in BINARY},
    **{name: _reduce(name) for name in REDUCTIONS},
    **{name: _along(name, FLOATS) for name in ("Softmax", "LogSoftmax", "Hardmax")},
    "ArgMax": _along("ArgMax", (np.float32, np.int32), keepdims=2, select_last_index=2),
    "ArgMin": _along("ArgMin", (np.float32, np.int32), keepdims=2, select_last_index=2),
    "Flatten": _along("Flatten", ALL),
    **{made.__name__: made for made in SHAPED},
}
# Half of the nodes come from those that change shapes or hold parameters, half from the long list of all.
RICH = [made.__name__ for made in SHAPED]


def grow(g: Growing) -> bool:
    """Try to append a random node."""
    name = str(g.pick(RICH if g.chance(0.5) else list(MAKERS)))
    return MAKERS[name](g)
