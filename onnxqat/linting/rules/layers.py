"""Layers of which only a part is quantized, and what quantized layers cannot carry."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxqat.graph import batchnorm, build, folded_batchnorm, qdq, query
from onnxqat.graph.layers import LAYERS
from onnxqat.linting.context import LintContext
from onnxqat.linting.rule import Found, Rule, Severity

JOINING = ("Add", "Mul", "Sub", "Concat")
WEIGHT_ONLY_BITS = 4


def _half(file: LintContext) -> Iterator[Found]:
    for node in file.layers(*LAYERS):
        sides = [file.reading(node, index) for index in (0, 1)]
        if (sides[0] is None) == (sides[1] is None):
            continue
        if sides[0] is None and qdq.is_dequantize(query.producer(node.inputs[0])):
            continue  # integers that the caller gives, or that an integer operator makes
        which = (
            "weight"
            if node.op_type != "MatMul" or query.constant_tensor(node.inputs[1]) is not None
            else "second input"
        )
        present, absent = ("activation", which) if sides[1] is None else (which, "activation")
        yield Found(f"the {present} is quantized, the {absent} is not", node, severity=_meant(node, sides[1]))


def _meant(node: ir.Node, weight: object) -> Severity | None:
    """A layer that placement left in float, or low bits for weights alone, is no accident."""
    if build.LEFT_FLOAT in node.metadata_props:
        return "note"
    qparams = getattr(weight, "qparams", None)
    low = qparams is not None and (
        qparams.block_size or qparams.qtype.is_float or qparams.qtype.bits <= WEIGHT_ONLY_BITS
    )
    return "note" if low else None


def _branch(file: LintContext) -> Iterator[Found]:
    for node in file.layers(*JOINING):
        sides = [file.reading(node, index) for index, value in enumerate(node.inputs) if value is not None]
        floats = [
            v for v in node.inputs if v is not None and file.making(v) is None and v.dtype in (None, ir.DataType.FLOAT)
        ]
        if any(sides) and floats and any(file.on(v) for v in node.outputs):
            names = ", ".join(repr(v.name) for v in floats[:3])
            yield Found(f"{names} carries no pair, the other inputs and the output do", node)


def _gemm(file: LintContext) -> Iterator[Found]:
    for node in file.layers("Gemm"):
        scalars = [float(query.attribute(node, name, 1.0)) for name in ("alpha", "beta")]
        if (
            (scalars[0] != 1 or (scalars[1] != 1 and len(node.inputs) > 2))
            and file.reading(node, 0)
            and file.reading(node, 1)
        ):
            yield Found(f"alpha is {scalars[0]:g}, beta {scalars[1]:g}", node)


def _batchnorm(file: LintContext) -> Iterator[Found]:
    for node in file.layers("BatchNormalization"):
        source = node.inputs[0]
        pair = file.making(source)
        origin = source if pair is None else pair.input
        maker = query.producer(origin)
        if maker is not None and maker.op_type in LAYERS and file.reading(maker, 1) is not None:
            kept = ", kept for training" if batchnorm.is_kept(node) else ""
            yield Found(f"it follows {query.label(maker)}{kept}", node)
    for node in file.layers(*LAYERS):
        if folded_batchnorm.is_computed(node):
            yield Found("its weight and bias are computed from one, kept for training", node)


def _random(file: LintContext) -> Iterator[Found]:
    if file.is_quantized and file.model.metadata_props.get("onnxqat.calibration") == "random":
        yield Found("the file says that its ranges were calibrated on random numbers")


def _noninteger(file: LintContext) -> Iterator[Found]:
    """Float8 and blocks are no integers: named once, so that nobody wonders."""
    kinds = {q.qparams.qtype.storage for q in file.quantizers if q.qparams.qtype.is_float}
    if kinds:
        yield Found(f"quantizers of type {', '.join(sorted(kinds))}")


RULES = (
    Rule(
        code="half-quantized",
        severity="warning",
        defect="a layer's activation is quantized and its weight is not, or the other way round",
        reason="the layer runs in float; onnxruntime and QNN quantize a float weight by themselves, on a grid of their choice",
        remedy="quantize both, or neither",
        source="weights alone run: no integer node anywhere; activations alone: onnxruntime quantizes weights itself, off by 0.06",
        check=_half,
    ),
    Rule(
        code="branch-float",
        severity="note",
        defect="a branch of Add, Mul or Concat carries no pair, the others do",
        reason="the node, and on some devices the convolution in front of it, runs in float",
        remedy="quantize the branch too, if the target has an integer kernel for the operator",
        source="residual without a pair run: onnxruntime 8 of 10 in integers, RKNN ConvAdd in float16; NVIDIA/TensorRT#3270",
        check=_branch,
        table_decides=True,
    ),
    Rule(
        code="gemm-scalars",
        severity="warning",
        defect="a quantized Gemm has alpha or beta other than 1",
        reason="onnxruntime's optimized and unoptimized sessions give different results",
        remedy="fold alpha into the weight and beta into the bias, then quantize",
        source="microsoft/onnxruntime#28130",
        check=_gemm,
    ),
    Rule(
        code="batchnorm-unfolded",
        severity="note",
        defect="a BatchNormalization stands behind a quantized layer, or the graph folds it into one",
        reason="it runs in float and keeps the layer from being fused with its activation; compilers want constant weights",
        remedy="fold it into the layer and quantize the folded weights; insert-qdq does, and handoff with one that was kept",
        source="onnxruntime and QNN run: BatchNormalization in float; qualcomm/aimet#2930",
        check=_batchnorm,
    ),
    Rule(
        code="calibration-random",
        severity="warning",
        defect="the ranges come from random numbers",
        reason="they mean nothing: accuracy is lost for sure",
        remedy="run insert-qdq with --calibration",
        source="metadata of the file, onnxqat.calibration",
        check=_random,
    ),
    Rule(
        code="float-grid",
        severity="note",
        defect="quantizers have float8 or float4 grids",
        reason="few devices compute on them; the others run the layer in float, or refuse the file",
        remedy="make sure that the target takes them",
        source="TensorRT-RTX compiles float8; onnxruntime 1.32 stops in clip_quantizelinear.cc",
        check=_noninteger,
        table_decides=True,
    ),
)
