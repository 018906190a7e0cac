"""TensorRT's calibration cache: the scale of each activation, for builds that quantize a float model implicitly."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from onnxqat.deployment.forms import _base
from onnxqat.deployment.ranges import TensorRange

HEADER = "TRT-8601-EntropyCalibration2"


class Form(_base.BaseForm):
    """``trtexec --onnx=float.onnx --int8 --calib=tensorrt_calibration.cache``.

    TensorRT compares the number in the first line with its own version; that line is to be changed for another one.
    A line is the tensor's name and the bits of the float32 scale in hexadecimal. TensorRT computes scales of weights.
    """

    file = "tensorrt_calibration.cache"
    compilers = frozenset({"tensorrt", "tensorrt-rtx"})

    def accepts(self, ranges: Sequence[TensorRange]) -> str:
        """Only 8-bit symmetric activations; see the class."""
        wrong = [
            r.name for r in ranges if r.role == "activation" and (r.bits != 8 or r.zero_points.any() or not r.signed)
        ]
        return f"its scales are for symmetric int8, and {wrong[0]!r} is quantized otherwise" if wrong else ""

    def text(self, ranges: Sequence[TensorRange]) -> str:
        """One line a tensor; see the class."""
        lines = [f"{r.name}: {struct.pack('>f', r.scales[0]).hex()}" for r in ranges if r.role == "activation"]
        return "\n".join([HEADER, *lines]) + "\n"
