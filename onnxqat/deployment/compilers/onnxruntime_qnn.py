"""Qualcomm's HTP through onnxruntime's QNN execution provider: offline compiler, and simulator on x86-64."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import onnx

from onnxqat.deployment.base_compiler import MOVES, Kind, NodeResult
from onnxqat.deployment.graph_nodes import Nodes
from onnxqat.deployment.run import environment_compiler
from onnxqat.deployment.run.environment import Environment
from onnxqat.deployment.workarounds.htp_float_rows import HtpFloatRows
from onnxqat.deployment.workarounds.htp_resize_scales import HtpResizeScales
from onnxqat.deployment.workarounds.silu_pairs import SiluPairs
from onnxqat.graph import inference
from onnxqat.passes._base import run_passes

TYPES = {
    0x0008: "int8", 0x0016: "int16", 0x0032: "int32", 0x0064: "int64",
    0x0108: "uint8", 0x0116: "uint16", 0x0132: "uint32", 0x0164: "uint64",
    0x0216: "float16", 0x0232: "float32", 0x0508: "bool",
    0x0304: "s4", 0x0308: "s8", 0x0316: "s16", 0x0332: "s32",
    0x0404: "u4", 0x0408: "u8", 0x0416: "u16", 0x0432: "u32",
}  # fmt: skip
"""Data types of a QNN graph, ``Qnn_DataType_t`` of QnnTypes.h; s8 and the like are fixed point."""

FLOATS = {"float16", "float32"}
_TOKEN = re.compile(r"_token_\d+(_\d+)?$")


class Compiler(environment_compiler.EnvironmentCompiler):
    """Judged by the types that each node of QNN's own graph reads; what QNN leaves to onnxruntime is rejected.

    Options with a dot are session settings of onnxruntime, others are those of the provider, such as ``soc_model``.
    The vendor's own file is the context binary, with the ONNX file that carries it.
    """

    package = "onnxruntime-qnn"
    integer_kernels = """
        Conv ConvTranspose Gemm MatMul Add Sub Mul Div Max Min Concat MaxPool AveragePool GlobalAveragePool GlobalMaxPool
        ReduceMean ReduceMax ReduceMin ReduceSum Resize Pad DepthToSpace SpaceToDepth Reshape Transpose Flatten Squeeze
        Unsqueeze Slice Split Gather Tile Expand Identity LeakyRelu Sigmoid Softmax LogSoftmax Tanh Elu Softplus Exp Sqrt
        Abs Neg HardSigmoid HardSwish Gelu LpNormalization LayerNormalization InstanceNormalization RMSNormalization PRelu
        Where GatherElements GridSample Pow Relu Clip
    """
    environment = Environment(
        name="onnxruntime-qnn",
        package="onnxruntime-qnn",
        requirements=("onnxruntime-qnn==2.7.0", "onnxruntime==1.32.0", "numpy>=2.0"),
        python=(11, 14),
        systems=("linux-x86_64",),
        megabytes=440,
    )

    def prepare(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Pairs inside SiLUs, steps of 1 around interpolations, float rows without a Gemm; see the base class."""
        passes = (SiluPairs(), HtpResizeScales(), HtpFloatRows())
        prepared: onnx.ModelProto = run_passes(inference.infer_shapes(model), passes).model
        return prepared

    def read_back(self, original: onnx.ModelProto, facts: Mapping[str, Any]) -> tuple[NodeResult, ...]:
        """From the graphs that QNN compiled and from who was given each node; see the base class."""
        nodes = Nodes(original)
        for found in (node for graph in facts["graphs"] for node in graph):
            own = nodes.find(_TOKEN.sub("", found["name"]))
            if own is None:
                continue
            types = [TYPES.get(t, hex(t)) for t in found["types"]]
            wide = sorted(FLOATS.intersection(types))
            kind: Kind = "moved" if own.op_type in MOVES else "integer"
            if wide:
                kind = "float"
            nodes.seen(own, kind, f"{found['type']} {'+'.join(types)}", f"HTP computes it in {wide[0]}" if wide else "")
        for provider, op_type, name in facts["assigned"]:
            left = nodes.find(_TOKEN.sub("", name)) if provider.startswith("CPU") else None
            if left is not None:
                nodes.seen(left, "rejected", f"{op_type} on the CPU", "QNN does not take it, onnxruntime's CPU runs it")
        nodes.folded(through_quantizers=False)
        return nodes.results()
