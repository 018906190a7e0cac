"""Biases: int32 on the grid of their node's accumulator, or float."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import build, edit, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.context import LintContext, is_integer
from onnxqat.linting.rule import Found, Rule
from onnxqat.passes._forms import dequantized
from onnxqat.types import QParams

LARGEST = 2**31 - 1
BIASED = ("Conv", "ConvTranspose", "Gemm")


def _biased(file: LintContext) -> Iterator[tuple[ir.Node, Quantizer | None, Quantizer | None, Quantizer | None]]:
    """Nodes with a bias, and the quantizers of activation, weight and bias."""
    for node in file.layers(*BIASED):
        if query.input_at(node, 2) is not None:
            yield node, *(file.reading(node, index) for index in range(3))  # type: ignore[misc]


def _grid(activation: Quantizer | None, weight: Quantizer | None, size: int) -> QParams | None:
    """The accumulator's grid for a bias of `size` values; None where there is no integer accumulator."""
    if activation is None or weight is None or not is_integer(activation) or not is_integer(weight):
        return None
    if activation.qparams.scale.ndim or weight.qparams.scale.size not in (1, size):
        return None
    with np.errstate(under="ignore"):
        scale = activation.qparams.scale * weight.qparams.scale
    return qdq.accumulator(activation.qparams, weight.qparams, size) if (scale > 0).all() else None


def _size(node: ir.Node) -> int:
    shape = query.static_shape(node.inputs[2])
    return int(np.prod(shape)) if shape is not None else 0


def _is_on(bias: QParams, grid: QParams) -> bool:
    sizes = np.broadcast_shapes(bias.scale.shape, grid.scale.shape)
    return bool(np.allclose(np.broadcast_to(bias.scale, sizes), grid.scale, rtol=1e-6, atol=0.0))


def _off_product(file: LintContext) -> Iterator[tuple[ir.Node, Quantizer, QParams]]:
    for node, activation, weight, bias in _biased(file):
        if bias is None or bias.qparams.qtype.storage != "int32" or not is_integer(bias):
            continue
        grid = _grid(activation, weight, _size(node))
        fits = grid is not None and (1 in (sizes := (bias.qparams.scale.size, grid.scale.size)) or sizes[0] == sizes[1])
        if grid is not None and fits and not _is_on(bias.qparams, grid):
            yield node, bias, grid


def _scale(file: LintContext) -> Iterator[Found]:
    for node, bias, grid in _off_product(file):
        ratio = bias.qparams.scale.astype(np.float64) / grid.scale
        worst = float(ratio.ravel()[np.abs(np.log(ratio)).argmax()])
        yield Found(
            f"the scale of the bias is {worst:.6g} times scale of activation x scale of weight", node, bias.tensor
        )


def _regrid(file: LintContext, found: Sequence[Found]) -> None:
    """Codes of the nearest values on the accumulator's grid; biases that do not fit int32 there are left."""
    names = build.Names(file.model)
    for node, bias, grid in list(_off_product(file)):
        values = dequantized(bias) if bias.stored else None
        if values is None or not np.abs(values.astype(np.float64) / grid.scale).max(initial=0) <= LARGEST:
            continue
        scope, name = walk.scope_of(node), str(bias.input.name)
        parameters = qdq.make_parameters(scope, names, name, grid)
        stamp = {build.CREATED_BY: "lint"}
        codes = numerics.quantize(values, grid)
        made = qdq.insert_stored(bias.input, codes, parameters, grid, names, stamp, scope=scope, before=node)
        node.replace_input_with(2, made)
    edit.remove_unused(file.model)


def _type(file: LintContext) -> Iterator[Found]:
    for node, _, _, bias in _biased(file):
        if bias is not None and bias.qparams.qtype.storage != "int32":
            yield Found(f"the bias is quantized to {bias.qparams.qtype.storage}", node, bias.tensor)


def _find_lone_biases(file: LintContext) -> Iterator[Found]:
    for node, activation, weight, bias in _biased(file):
        if bias is None or bias.qparams.qtype.storage != "int32" or (activation and weight):
            continue
        missing = "activation" if activation is None else "weight"
        yield Found(f"the bias is int32, the {missing} float", node, bias.tensor)


def _overflow(file: LintContext) -> Iterator[Found]:
    for node, activation, weight, bias in _biased(file):
        if bias is not None and bias.stored and bias.qparams.qtype.storage == "int32":
            codes = query.constant_array(bias.input)
            ends = 0 if codes is None else int((np.abs(codes.astype(np.int64)) >= LARGEST).sum())
            if ends:
                yield Found(f"{ends} values of the bias are at the end of int32", node, bias.tensor)
        values = query.constant_array(node.inputs[2])
        grid = _grid(activation, weight, _size(node))
        if bias is None and values is not None and grid is not None:
            steps = float(np.abs(values.astype(np.float64) / grid.scale).max(initial=0))
            if np.isfinite(steps) and steps > LARGEST:
                text = f"the float bias is {steps:.3g} steps of its accumulator, beyond int32"
                yield Found(text, node, str(node.inputs[2].name if node.inputs[2] else ""))


def _off_grid(file: LintContext) -> Iterator[Found]:
    for node, activation, weight, bias in _biased(file):
        values = query.constant_array(node.inputs[2])
        grid = _grid(activation, weight, _size(node))
        if bias is not None or values is None or grid is None or values.dtype != np.float32:
            continue
        shaped = values.reshape(-1)
        if not np.allclose(numerics.fake_quantize(shaped, grid), shaped, rtol=1e-5, atol=0.0):
            yield Found(
                "the float bias lies between the steps of its accumulator",
                node,
                str(getattr(node.inputs[2], "name", "")),
            )


RULES = (
    Rule(
        code="bias-scale",
        severity="error",
        defect="the scale of an int32 bias is not scale of activation x scale of weight",
        reason="onnxruntime and QNN fuse it and use the product anyway, without a message: the bias is wrong by that factor",
        remedy="requantize the bias to the product of the two scales, zero point 0; it moves by half an LSB of the accumulator",
        source="onnxruntime and QNN run with such a file: largest difference 0.09; microsoft/onnxruntime#26709, Xilinx/brevitas#515",
        check=_scale,
        fix=_regrid,
    ),
    Rule(
        code="bias-type",
        severity="warning",
        defect="a bias is quantized to another type than int32",
        reason="onnxruntime and QNN do not fuse such a node: it runs in float",
        remedy="int32 with scale of activation x scale of weight, or float",
        source="onnxruntime 1.32 and QNN run with int8 biases: Conv and Gemm in float",
        check=_type,
        table_decides=True,
    ),
    Rule(
        code="bias-alone",
        severity="warning",
        defect="a bias is int32, though activation or weight of its node is float",
        reason="there is no integer accumulator: the node runs in float with a rounded bias",
        remedy="quantize the other inputs too, or leave the bias float",
        source="onnxruntime qdq_selectors.cc ConvNodeGroupSelector",
        check=_find_lone_biases,
    ),
    Rule(
        code="bias-overflow",
        severity="error",
        defect="a bias does not fit int32 on its accumulator's grid",
        reason="it saturates, and the whole channel is shifted",
        remedy="raise the weight scale of that channel until bias / (scale x scale) fits; insert-qdq does",
        source="onnxruntime quant_utils: adjusts weight scales for small products; microsoft/onnxruntime#21000",
        check=_overflow,
    ),
    Rule(
        code="bias-off-grid",
        severity="note",
        defect="a float bias does not lie on its accumulator's grid",
        reason="onnxruntime's default session rounds it to int32 by itself: sessions differ in some predictions",
        remedy="store it as int32, or as float values on that grid, and train through it",
        source="onnxruntime WeightBiasQuantization: 1,209 of 10,000 predictions of a W4A4 file differ between sessions",
        check=_off_grid,
        table_decides=True,
    ),
)
