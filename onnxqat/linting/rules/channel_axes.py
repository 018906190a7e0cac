"""Scales per channel along an axis that integer kernels sum over, so that they cannot be factored out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxqat.graph import qdq, query
from onnxqat.graph.layers import LAYERS
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting import fix
from onnxqat.linting.context import LintContext, is_integer, output_axis
from onnxqat.linting.rule import Found, Rule
from onnxqat.ops import operators as ops
from onnxqat.passes.fold_weight_transpose import FoldWeightTranspose


def _wrong_axis(file: LintContext) -> Iterator[Found]:
    for node in file.layers(*LAYERS):
        quantizer = file.reading(node, 1)
        if quantizer is None or not is_integer(quantizer) or quantizer.qparams.axis is None:
            continue
        wanted = output_axis(node, node.inputs[1])
        if wanted is not None and quantizer.qparams.axis != wanted and quantizer.qparams.scale.size > 1:
            text = f"one scale for each index of axis {quantizer.qparams.axis}; the output channels are axis {wanted}"
            yield Found(text, node, quantizer.tensor)


def _activation(file: LintContext) -> Iterator[Found]:
    for quantizer in file.quantizers:
        if quantizer.role == "activation" and is_integer(quantizer) and quantizer.qparams.scale.size > 1:
            yield Found(f"{quantizer.qparams.scale.size} scales on an activation", quantizer.nodes[0], quantizer.tensor)


def _behind_node(file: LintContext) -> Iterator[Found]:
    for node in file.layers(*LAYERS):
        value = query.input_at(node, 1)
        mover = query.producer(value)
        if mover is None or not (ops.is_passthrough(mover) or mover.op_type == "Cast") or qdq.is_dequantize(mover):
            continue
        quantizer = _weight_through(file, mover)
        if quantizer is not None:
            yield Found(
                f"{query.label(mover)} ({mover.op_type}) stands between the weight's pair and the layer",
                node,
                quantizer.tensor,
            )


def _weight_through(file: LintContext, mover: ir.Node | None) -> Quantizer | None:
    while mover is not None and mover.inputs:
        found = file.making(mover.inputs[0])
        if found is not None:
            return found if found.role == "weight" else None
        source = mover.inputs[0]
        mover = query.producer(source)
        if mover is not None and not ops.is_passthrough(mover):
            return None
    return None


def _fold_transpose(file: LintContext, found: Sequence[Found]) -> None:
    """A Transpose goes into the stored weight; what else stands there stays."""
    fix.apply(FoldWeightTranspose(), file.model)


RULES = (
    Rule(
        code="weight-axis",
        severity="warning",
        defect="the scales of a weight do not belong to its output channels",
        reason="they cannot be taken out of the sum: onnxruntime, OpenVINO, QNN and TensorRT run the layer in float",
        remedy="axis 0 for Conv, 1 for ConvTranspose, the output channels of Gemm by transB, the last axis for MatMul",
        source="onnxruntime, OpenVINO, QNN and TensorRT run with axis 1 on Conv: those layers in float; RKNN: an error",
        check=_wrong_axis,
    ),
    Rule(
        code="activation-per-channel",
        severity="warning",
        defect="an activation has one scale a channel",
        reason="no integer kernel multiplies such a tensor: QNN refuses the file, TensorRT runs the layer in float",
        remedy="one scale for the whole tensor; equalize channels instead",
        source="QNN run with such a file: session error; NVIDIA/Model-Optimizer#10",
        check=_activation,
    ),
    Rule(
        code="weight-behind-node",
        severity="warning",
        defect="an operator stands between the DequantizeLinear of a weight and its layer",
        reason="compilers look for the weight right behind DequantizeLinear: `Could not fuse 2nd input (kernel weights)`",
        remedy="transpose or reshape the stored weight, move the axis of its scales with it",
        source="NVIDIA/TensorRT#2131; microsoft/onnxruntime#12800",
        check=_behind_node,
        fix=_fold_transpose,
    ),
)
