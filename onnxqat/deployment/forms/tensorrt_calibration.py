"""TensorRT's calibration cache: the scale of each activation, for builds that quantize a float model implicitly."""

from __future__ import annotations

import struct

from onnxqat.deployment.forms import _base
from onnxqat.deployment.layer_ranges import ModelRanges

HEADER = "TRT-8601-EntropyCalibration2"


class Form(_base.BaseForm):
    """``trtexec --onnx=float.onnx --int8 --calib=tensorrt_calibration.cache``.

    TensorRT compares the number in the first line with its own version; that line is to be changed for another one.
    A line is the tensor's name and the bits of the float32 scale in hexadecimal. TensorRT computes scales of weights.
    """

    file = "tensorrt_calibration.cache"
    compilers = frozenset({"tensorrt", "tensorrt-rtx"})

    def accepts(self, ranges: ModelRanges) -> str:
        """Only 8-bit symmetric activations; see the class."""
        wrong = [r.name for r in ranges.activations if (r.bits != 8 or r.zero_points.any() or not r.signed)]
        return f"its scales are for symmetric int8, and {wrong[0]!r} is quantized otherwise" if wrong else ""

    def text(self, ranges: ModelRanges) -> str:
        """One line a tensor; see the class."""
        lines = [f"{r.name}: {struct.pack('>f', r.scales[0]).hex()}" for r in ranges.activations]
        return "\n".join([HEADER, *lines]) + "\n"
