"""Operators of onnxruntime's domain ``com.microsoft``, by family: the file of ``bridge/lowering`` that has their functions."""

from __future__ import annotations

import functools

from onnxqat.ops.definition import OpDef

_row = functools.partial(OpDef, domain="com.microsoft")

FAMILIES: dict[str, tuple[OpDef, ...]] = {
    # Activation functions
    "activation": (_row("Gelu", 1, 1),),
    # Convolutions and matrix products of integers, which are not trained
    "integer": (
        _row("QLinearConv", 1, 1, ("parameter",)),
        _row("MatMulIntegerToFloat", 1, 1, ("parameter",)),
        _row("DynamicQuantizeMatMul", 1, 1, ("parameter",)),
        _row("QGemm", 1, 1, ("parameter",)),
    ),
    # com.microsoft's attention operators
    "microsoft_attention": (
        _row("Attention", 1, 1, ("data", "weight", "bias", "parameter", "data", "parameter")),
        _row("QAttention", 1, 1, ("parameter",)),
        _row("MultiHeadAttention", 1, 1, ("data", "data", "data", "bias", "parameter")),
        _row("GroupQueryAttention", 1, 1, ("data", "data", "data", "data", "data", "parameter")),
        _row("RotaryEmbedding", 1, 1, ("data", "parameter")),
    ),
    # com.microsoft operators on weights that are stored as integers with one scale per block
    "microsoft_blocks": (
        _row("MatMulNBits", 1, 1, ("data", "parameter", "parameter", "parameter", "parameter", "bias")),
        _row("GatherBlockQuantized", 1, 1, ("parameter",)),
    ),
    # com.microsoft operators that exporters used before ONNX had the like
    "microsoft_forerunners": (
        _row("CDist", 1, 1, ("data", "data")),
        _row("CropAndResize", 1, 1, ("data", "parameter")),
        _row("ExpandDims", 1, 1, ("data", "parameter"), passthrough=True),
        _row("GatherND", 1, 1, ("data", "parameter"), passthrough=True),
        _row("GridSample", 1, 1, ("data", "parameter")),
        _row("Inverse", 1, 1),
        _row("Pad", 1, 1, ("data", "parameter")),
        _row("Trilu", 1, 1, ("data", "parameter"), passthrough=True),
        _row("UnfoldTensor", 1, 1, passthrough=True),
        _row("Unique", 1, 1, ("parameter",)),
    ),
    # com.microsoft operators from codes to codes, which are not trained, and its forms of Q and DQ outside of quantizers
    "microsoft_quantized": (
        _row("QuantizeLinear", 1, 1, ("data", "parameter", "parameter")),
        _row("DequantizeLinear", 1, 1, ("data", "parameter", "parameter")),
        _row("QLinearAdd", 1, 1, ("parameter",)),
        _row("QLinearMul", 1, 1, ("parameter",)),
        _row("QLinearSigmoid", 1, 1, ("parameter",)),
        _row("QLinearLeakyRelu", 1, 1, ("parameter",)),
        _row("QLinearSoftmax", 1, 1, ("parameter",)),
        _row("QLinearConcat", 1, 1, ("parameter",)),
        _row("QLinearWhere", 1, 1, ("parameter",)),
        _row("QLinearAveragePool", 1, 1, ("parameter",)),
        _row("QLinearGlobalAveragePool", 1, 1, ("parameter",)),
        _row("NhwcMaxPool", 1, 1, ("parameter",)),
    ),
    # Recurrent operators of com.microsoft
    "microsoft_recurrent": (_row("DynamicQuantizeLSTM", 1, 1, ("parameter",)),),
    # com.microsoft operators that onnxruntime's optimizers put in the place of several: activations, norms, products
    "microsoft_transformer": (
        _row("FastGelu", 1, 1, ("data", "bias")),
        _row("QuickGelu", 1, 1),
        _row("BiasGelu", 1, 1, ("data", "bias")),
        _row("BiasSplitGelu", 1, 1, ("data", "bias")),
        _row("BiasAdd", 1, 1, ("data", "bias", "data")),
        _row("BiasSoftmax", 1, 1, ("data", "parameter"), output_range=(0.0, 1.0)),
        _row("SkipLayerNormalization", 1, 1, ("data", "data", "parameter")),
        _row("SkipSimplifiedLayerNormalization", 1, 1, ("data", "data", "parameter")),
        _row("EmbedLayerNormalization", 1, 1, ("parameter",)),
        _row("QEmbedLayerNormalization", 1, 1, ("parameter",)),
        _row("GroupNorm", 1, 1, ("data", "parameter")),
        _row("SkipGroupNorm", 1, 1, ("data", "parameter", "parameter", "data", "bias")),
        _row("FusedMatMul", 1, 1, ("data", "weight")),
        _row("TransposeMatMul", 1, 1, ("data", "weight")),
        _row("FusedGemm", 1, 1, ("data", "weight", "bias")),
        _row("FusedConv", 1, 1, ("data", "weight", "bias", "data")),
    ),
}
