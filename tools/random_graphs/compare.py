"""One model in the bridge and in onnxruntime, and what to think of a difference.

Types and shapes are compared exactly, integers and booleans too. Floats may differ by ``STEPS`` units of their type's
precision, relative to the value and, as sums cancel, to the largest value of the tensor. NaN and infinities must be
where onnxruntime has them.

A random graph amplifies last bits: Floor, Cast, ArgMax and Sin of large values turn a different rounding into another
number. A difference is no mismatch where every node, as a model of its own and fed with onnxruntime's values, gives
what onnxruntime makes of that model (or moves as much itself, see below), and one of these holds:

``unrounded``: the bridge gives what onnxruntime gives node by node. Within a graph, onnxruntime's CPU kernels leave
float16 values in float32 between nodes, against the types that ONNX states for them.

``amplified``: onnxruntime itself moves the output that differs at least a tenth as much when the last bits of the
graph's float inputs, constants and inner values are changed.

``standard``: the output follows from a node where onnxruntime departs from ONNX's reference implementation and the
bridge does not (:mod:`tools.random_graphs.standard` has the words of the standard).

``open for NaN``: an operator that orders or weighs numbers gets NaN (:data:`OPEN_FOR_NAN`); such a node is not compared
alone either.

Where single nodes are compared, what onnxruntime computes by polynomials is compared in units of 1 (:data:`POLYNOMIAL`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import onnx
import onnx.shape_inference
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxqat.bridge.importing import values
from onnxqat.bridge.importing.importer import OnnxModule, to_torch
from onnxqat.errors import UnsupportedError
from tools.random_graphs import standard

STEPS = 64  # units of precision
PRECISION = {np.dtype(np.float16): 2.0**-10, np.dtype(np.float32): 2.0**-23, np.dtype(np.float64): 2.0**-36}
# float64 is compared less strictly than it could be: onnxruntime computes some operators in float32 inside.
ROUNDS = 6

# What the largest of numbers and NaN is, and NaN with weight 0 in an interpolation, ONNX leaves open; onnxruntime's answer
# depends on the kernel and the place.
OPEN_FOR_NAN = frozenset(
    {
        "Unique",
        "TopK",
        "ReduceMax",
        "Clip",
        "MaxRoiPool",
        "Resize",
        "Relu",
        "ReduceMin",
        "ArgMax",
        "ArgMin",
        "MaxPool",
        "Hardmax",
        "GlobalMaxPool",
        "Max",
        "Min",
    }
)

# onnxruntime computes these by polynomials that are good to this many units of 1, not of the value.
POLYNOMIAL = frozenset(
    {"RNN", "HardSwish", "Gelu", "GRU", "Sigmoid", "Softplus", "Erf", "Mish", "Tanh", "Swish", "LSTM"}
)
UNITS = 8

Feeds = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came out: ``equal``, ``unrounded``, ``open for NaN``, ``amplified``, ``standard``,
    ``refused``, ``invalid`` (onnxruntime refuses it) or ``mismatch``."""

    kind: str
    detail: str = ""


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """What the graph says: no optimization, one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def results(model: onnx.ModelProto, feeds: Feeds) -> list[np.ndarray]:
    """onnxruntime's outputs; scalars as arrays, sequences as they are."""
    return [f if isinstance(f, list) else np.asarray(f) for f in session(model).run(None, feeds)]


def difference(found: np.ndarray, wanted: np.ndarray) -> str:
    """Empty where the two are alike, else what differs."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return f"{found.dtype}{found.shape} instead of {wanted.dtype}{wanted.shape}"
    if wanted.dtype.kind not in "fc":
        return "" if np.array_equal(found, wanted) else f"{int((found != wanted).sum())} of {wanted.size} values"
    if not np.array_equal(np.isnan(found), np.isnan(wanted)):
        return f"NaN at {int(np.isnan(found).sum())} places instead of {int(np.isnan(wanted).sum())}"
    gap = distance(found, wanted)
    return "" if gap <= STEPS else f"{gap:.3g} steps of {wanted.dtype}"


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference in units of precision; infinite where one is infinite and the other is not."""
    alike = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    if alike.all():
        return 0.0
    f, w = found[~alike].astype(np.float64), wanted[~alike].astype(np.float64)
    if not (np.isfinite(f).all() and np.isfinite(w).all()):
        return float("inf")
    finite = np.abs(wanted[np.isfinite(wanted)].astype(np.float64))
    floor = max(float(np.finfo(wanted.dtype).tiny), 0.1 * float(finite.max(initial=0.0)))
    return float((np.abs(f - w) / np.maximum(np.abs(w), floor)).max()) / PRECISION[wanted.dtype]


def run(module: OnnxModule, feeds: Feeds) -> list[np.ndarray]:
    """Outputs of an imported module."""
    given = [values.tensor(feeds[name], values.element_type(feeds[name].dtype)) for name in module.input_names]
    with torch.no_grad():
        result = module(*given)
    return [r.detach().numpy() for r in (result if isinstance(result, tuple) else (result,))]


def judge(model: onnx.ModelProto, feeds: Feeds) -> Verdict:
    """Compare the model's outputs."""
    try:
        wanted = results(model, feeds)
    except Exception as error:
        return Verdict("invalid", str(error).strip().splitlines()[0][:200])
    try:
        module = to_torch(model)
    except UnsupportedError as error:
        return Verdict("refused", str(error)[:300])
    except Exception as error:
        return Verdict("mismatch", f"import: {type(error).__name__}: {str(error)[:300]}")
    try:
        found = run(module, feeds)
    except Exception as error:
        return Verdict("mismatch", f"run: {type(error).__name__}: {str(error)[:300]}")
    names = [output.name for output in model.graph.output]
    wrong = {n: difference(f, w) for n, f, w in zip(names, found, wanted, strict=True) if difference(f, w)}
    if not wrong:
        return Verdict("equal")
    detail = "; ".join(f"{name}: {what}" for name, what in wrong.items())
    arrays, nodes, departures = by_node(model, feeds)
    if nodes:
        return Verdict("mismatch", f"{detail}; alone: {nodes[0]}")
    departed = _behind(model, departures)
    moved: dict[str, float] = {}
    kinds = []
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    for name, f, w in zip(names, found, wanted, strict=True):
        if name not in wrong:
            continue
        if name in departed:
            kinds.append("standard")
            detail += f"; {departed[name]}"
            continue
        if not difference(f, arrays[name]):
            kinds.append("unrounded")
            continue
        if makers.get(name) in POLYNOMIAL and _size(f, arrays[name]) <= UNITS * PRECISION[w.dtype]:
            kinds.append("amplified")
            continue
        if any(n.op_type in OPEN_FOR_NAN and _has_nan(arrays[i] for i in n.input if i) for n in model.graph.node):
            kinds.append("open for NaN")
            continue
        moved = moved or movement(model, feeds, wanted, arrays)
        gap = min(_size(f, w), _size(f, arrays[name]))
        if f.shape != w.shape or f.dtype != w.dtype or gap > 10 * moved[name]:
            return Verdict("mismatch", f"{detail}; every node alone is right; {name} moves by {moved[name]:.3g} only")
        kinds.append("amplified")
    return Verdict(max(kinds, key=["unrounded", "open for NaN", "amplified", "standard"].index), detail)


def _behind(model: onnx.ModelProto, departures: dict[str, str]) -> dict[str, str]:
    """`departures`, a case for each value, with all values that follow from those."""
    found = dict(departures)
    for node in model.graph.node:
        case = next((found[n] for n in [*node.input, *_outer(node)] if n in found), None)
        if case is not None:
            found |= {name: found.get(name, case) for name in node.output}
    return found


def _size(found: np.ndarray, wanted: np.ndarray) -> float:
    """A measure of a difference that also tells numbers of changed NaN, infinities and integers apart."""
    if found.shape != wanted.shape:
        return float("inf")
    if wanted.dtype.kind != "f":
        return float((found != wanted).sum())
    if not np.array_equal(np.isfinite(found), np.isfinite(wanted)):
        return float("inf")
    finite = np.isfinite(wanted)
    return float(np.abs(found[finite].astype(np.float64) - wanted[finite].astype(np.float64)).max(initial=0.0))


def movement(model: onnx.ModelProto, feeds: Feeds, wanted: list[np.ndarray], inner: Feeds) -> dict[str, float]:
    """How far each output goes when the last bits of float inputs, constants and `inner` values change."""
    names = [output.name for output in model.graph.output]
    moved = dict.fromkeys(names, 0.0)
    for seed in range(ROUNDS):
        random = np.random.default_rng(seed)
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        for tensor in changed.graph.initializer:
            if tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
                tensor.CopyFrom(numpy_helper.from_array(_nudged(numpy_helper.to_array(tensor), random), tensor.name))
        if seed % 2:
            _nudge_values(changed, random, inner)
        given = {n: _nudged(a, random) if a.dtype.kind == "f" else a for n, a in feeds.items()}
        try:
            found = results(changed, given)
        except Exception:
            continue
        for name, f, w in zip(names, found, wanted, strict=True):
            moved[name] = max(moved[name], _size(f, w))
    return moved


def _nudged(array: np.ndarray, random: np.random.Generator) -> np.ndarray:
    steps = random.integers(-2, 3, array.shape) * np.finfo(array.dtype).eps
    return np.asarray(array * (1 + steps), array.dtype)


def _nudge_values(model: onnx.ModelProto, random: np.random.Generator, inner: Feeds) -> None:
    """Multiply every float result of a node by nearly 1, each element of `inner` ones by a factor of its own."""
    kinds = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(model).graph.value_info}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    renamed: dict[str, str] = {}
    for node in nodes:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        model.graph.node.append(node)
        for name in node.output:
            kind = kinds.get(name)
            if kind not in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
                continue
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
            shape = inner[name].shape if name in inner else ()
            steps = random.integers(-2, 3, shape) * (64 if node.op_type in POLYNOMIAL else 1)
            factor = np.asarray(1 + steps * np.finfo(dtype).eps, dtype)
            model.graph.initializer.append(numpy_helper.from_array(factor, f"{name}/factor"))
            model.graph.node.append(helper.make_node("Mul", [name, f"{name}/factor"], [f"{name}/nudged"]))
            renamed[name] = f"{name}/nudged"


def by_node(model: onnx.ModelProto, feeds: Feeds) -> tuple[Feeds, list[str], dict[str, str]]:
    """Node by node: every value as onnxruntime computes it, the nodes at which the bridge differs from that, and the
    values for which onnxruntime departs from the standard, each with the case.
    """
    arrays = feeds | {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    wrong, departures = [], dict[str, str]()
    for node in model.graph.node:
        alone, given = _alone(model, node, arrays)
        names = [output.name for output in alone.graph.output]
        wanted = results(alone, given)
        arrays |= dict(zip(names, wanted, strict=True))
        what = _node_differs(alone, given, wanted)
        if not what:
            continue
        found = run(to_torch(alone), given)
        case = standard.departure(alone, given, arrays, found)
        if case:
            departures |= dict.fromkeys(names, case)
        elif not _moves(alone, given, wanted, found):
            wrong.append(f"{node.op_type} {what}")
    return arrays, wrong, departures


def _moves(alone: onnx.ModelProto, given: Feeds, wanted: list[np.ndarray], found: list[np.ndarray]) -> bool:
    """Whether a node turns last bits of its inputs into differences as large as the bridge's, as InstanceNormalization
    does where the variance is small.
    """
    moved = movement(alone, given, wanted, {})
    names = [output.name for output in alone.graph.output]
    return all(
        f.shape == w.shape and f.dtype == w.dtype and _size(f, w) <= 10 * moved[name]
        for name, f, w in zip(names, found, wanted, strict=True)
    )


def _node_differs(alone: onnx.ModelProto, given: Feeds, wanted: list[np.ndarray]) -> str:
    node = alone.graph.node[0]
    if any(isinstance(array, list) for array in [*given.values(), *wanted]):
        return ""
    try:
        module = to_torch(alone)
    except UnsupportedError:
        return ""  # a form that needs what the whole graph knows
    for f, w in zip(run(module, given), wanted, strict=True):
        what = difference(f, w)
        if what and node.op_type in POLYNOMIAL and _size(f, w) <= UNITS * PRECISION[w.dtype]:
            continue
        if what and not (node.op_type in OPEN_FOR_NAN and _has_nan(given.values())):
            return what
    return ""


def _alone(model: onnx.ModelProto, node: onnx.NodeProto, arrays: Feeds) -> tuple[onnx.ModelProto, Feeds]:
    """A model of one node, and its inputs; what a Constant made is a constant."""
    fixed = {tensor.name for tensor in model.graph.initializer}
    fixed |= {name for other in model.graph.node if other.op_type == "Constant" for name in other.output}
    node = _without_empty_sizes(node, arrays)
    used = [n for n in dict.fromkeys([*node.input, *_outer(node)]) if n and n in arrays]
    graph = helper.make_graph(
        [node],
        "node",
        [_info(n, arrays[n]) for n in used if n not in fixed],
        [onnx.ValueInfoProto(name=n) for n in node.output if n],
        [numpy_helper.from_array(arrays[n], n) for n in used if n in fixed],
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    given = {n: arrays[n] for n in used if n not in fixed}
    for output, array in zip(alone.graph.output, results(alone, given), strict=True):
        output.CopyFrom(_info(output.name, array))
    return alone, given


def _without_empty_sizes(node: onnx.NodeProto, arrays: Feeds) -> onnx.NodeProto:
    """Older exporters give Resize empty vectors for what is omitted, which inference takes from nodes only."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    if node.op_type == "Resize":
        made.input[:] = [n if n and arrays[n].size else "" for n in node.input]
    return made


def _has_nan(arrays: Iterable[np.ndarray]) -> bool:
    return any(a.dtype.kind == "f" and bool(np.isnan(a).any()) for a in arrays)


def _outer(node: onnx.NodeProto) -> list[str]:
    graphs = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    inner = [n for graph in graphs for n in graph.node]
    return [name for n in inner for name in [*n.input, *_outer(n)]]


def _info(name: str, array: np.ndarray | list[np.ndarray]) -> onnx.ValueInfoProto:
    if isinstance(array, list):
        kind = helper.np_dtype_to_tensor_dtype(array[0].dtype) if array else TensorProto.FLOAT
        return helper.make_tensor_sequence_value_info(name, kind, None)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)
