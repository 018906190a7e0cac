"""NVIDIA TensorRT-RTX: TensorRT's parser and builder, which run without a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import onnx

from onnxqat.deployment.base_compiler import MOVES, Kind, NodeResult
from onnxqat.deployment.graph_nodes import Nodes
from onnxqat.deployment.run import environment_compiler
from onnxqat.deployment.run.environment import Environment

QUANTIZED = {"Int8", "FP8", "Int4", "FP4", "UInt8"}
GENERATED = "kgen"
_LAYER = re.compile(r"Name: .*?, LayerType: (\w+)")
_BEHIND_INPUTS = re.compile(r", (?:Constants|Outputs): \[")
_TYPE = re.compile(r"Datatype: (\w+)")
_ONNX = re.compile(r"\[ONNX Layer: ([^\]]*)\]")


class Compiler(environment_compiler.EnvironmentCompiler):
    """Judged by the builder's list of layers: a layer whose inputs are all Int8 (or FP8, Int4) is on integers.

    Layers of type ``kgen`` are kernels that it generates for element-wise operators; they read and write Int8 beside
    quantized neighbours, and compute in float. The option ``compute_capability`` chooses the GPU, SM86 without. No
    numbers come back: an engine needs a GPU to run. The vendor's own file is the engine.
    """

    package = "tensorrt-rtx"
    runs_numbers = False
    # AveragePool has one too, which the builder takes or leaves: it chose float in every model of the probe.
    integer_kernels = "Conv Gemm MatMul MaxPool"
    environment = Environment(
        name="tensorrt-rtx",
        package="tensorrt-rtx",
        requirements=("tensorrt-rtx==1.7.1.116", "numpy>=1.26"),
        python=(10, 13),
        systems=("linux-x86_64", "windows-x86_64"),
        megabytes=400,
    )

    def read_back(self, original: onnx.ModelProto, facts: Mapping[str, Any]) -> tuple[NodeResult, ...]:
        """From the layers of the engine; see the base class."""
        nodes = Nodes(original)
        for line in facts["layers"].splitlines():
            found = _LAYER.match(line)
            if found is None:
                continue
            layer, types = found[1], _TYPE.findall(_BEHIND_INPUTS.split(line)[0])
            integer = bool(types) and set(types) <= QUANTIZED
            detail = f"{layer} {'+'.join(types)}".strip()
            for name in _ONNX.findall(line):
                node = nodes.find(name)
                if node is not None:
                    nodes.seen(node, _kind(layer, node.op_type, integer), detail, _float_reason(layer, types))
        return nodes.results()


def _kind(layer: str, op_type: str, integer: bool) -> Kind:
    if not integer:
        return "float"
    if layer != GENERATED:
        return "integer"
    return "moved" if op_type in MOVES else "float"


def _float_reason(layer: str, types: list[str]) -> str:
    if layer == GENERATED:
        return "a generated kernel computes it in float"
    wide = [t for t in types if t not in QUANTIZED]
    return f"the layer {layer} reads {', '.join(wide)}" if wide else ""
