"""Targets that cannot have a table, with the reason: their names are known, so that the answer is not "no such name"."""

from __future__ import annotations

REFUSED = {
    "nnie": (
        "HiSilicon NNIE quantizes on a logarithmic grid (MQBench's NNIEFakeQuantize rounds the logarithm of a value), "
        "which QuantizeLinear and DequantizeLinear cannot express: their steps are equal"
    ),
    "ti-mcu-npu": (
        "TI's compiler for MCUs (NNC 2.1, Layer Patterns Supported on the NPU) reads a quantized layer as integers in "
        "Add, Mul, Div by a power of two, Floor and Clip, which rounds down, and no QuantizeLinear; its int8 layers need "
        "scales that are powers of two: tables for such chips are tidl and tsqat"
    ),
}
"""Name to reason."""
