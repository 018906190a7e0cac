"""Operators on codes in integers, one file each: the formula, its function in ONNX, and a bound on its error.

A formula is written once. numpy and torch compute it, and :mod:`onnxqat.integer_functions.tracing` writes it down as a
model-local function of ONNX's integer operators.
"""

from __future__ import annotations
