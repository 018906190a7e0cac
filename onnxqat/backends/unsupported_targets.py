"""Targets that cannot have a table, with the reason: their names are known, so that the answer is not "no such name"."""

from __future__ import annotations

REFUSED = {
    "nnie": (
        "HiSilicon NNIE quantizes on a logarithmic grid (MQBench's NNIEFakeQuantize rounds the logarithm of a value), "
        "which QuantizeLinear and DequantizeLinear cannot express: their steps are equal"
    ),
    "ryzen-ai-bf16": (
        "AMD's compiler takes the float32 model and converts it to bfloat16 by itself (Ryzen AI Software documentation, "
        "Development Flow Overview), so that there is no scale to place or to learn: give it the float model; tables "
        "for the same chip are ryzen-ai-xint8 and ryzen-ai-a8w8"
    ),
    "ti-mcu-npu": (
        "TI's compiler for MCUs (NNC 2.1, Layer Patterns Supported on the NPU) reads a quantized layer as integers in "
        "Add, Mul, Div by a power of two, Floor and Clip, which rounds down, and no QuantizeLinear; its int8 layers need "
        "scales that are powers of two: tables for such chips are tidl and tsqat"
    ),
}
"""Name to reason."""
