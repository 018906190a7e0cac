"""Small models with Q/DQ pairs, for the checks of extensions that read such files."""

from __future__ import annotations

import functools

import onnx

from onnxqat.insertion.insert import insert_qdq
from onnxqat.pipeline.check import parse
from onnxqat.pipeline.examples import EXAMPLES

BACKEND = "onnxruntime-cpu"


@functools.cache
def quantized_examples() -> tuple[onnx.ModelProto, ...]:
    """Return the example networks with the pairs of a common backend, calibrated on random data; nobody changes them."""
    made = []
    for text in EXAMPLES:
        result = insert_qdq(parse(text), backend=BACKEND, random_data=True, fast=True, guard=False).model
        assert isinstance(result, onnx.ModelProto)
        made.append(result)
    return tuple(made)
