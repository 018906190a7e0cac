"""Sony's IMX500 converter: a compiler for power-of-two grids, which takes quantizers of mct-quantizers, not Q/DQ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from onnxqat.deployment.base_compiler import NodeResult
from onnxqat.deployment.graph_nodes import Nodes
from onnxqat.deployment.run import environment_compiler
from onnxqat.deployment.run.environment import Environment
from onnxqat.deployment.workarounds import imx500_quantizers


class Compiler(environment_compiler.EnvironmentCompiler):
    """All or nothing: what the converter takes runs on integers, and it refuses a model with anything else in it.

    The numbers are those of the quantizers' own operators in onnxruntime: the converter has no simulator. Needs Java.
    The vendor's own files are ``packerOut.zip``, which the camera's packager takes, and the ONNX file that was
    converted.
    """

    package = "imx500-converter"
    traces = False
    integer_kernels = """
        Conv ConvTranspose Gemm MatMul Add Sub Mul Concat MaxPool AveragePool GlobalAveragePool ReduceMean Relu Clip
        LeakyRelu PRelu Sigmoid Tanh HardSwish HardSigmoid Softmax Resize Pad Reshape Transpose Flatten Slice Split
    """
    environment = Environment(
        name="imx500",
        package="imx500-converter",
        requirements=("imx500-converter[pt]==3.19.2",),
        python=(10, 12),
        systems=("linux-x86_64",),
        programs=("java",),
        megabytes=600,
    )

    def prepare(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Q/DQ rewritten as ``mct_quantizers`` operators.

        Raises:
            CheckError: ``handoff-failed``: a grid that they cannot say.
        """
        return imx500_quantizers.rewritten(model)

    def read_back(self, original: onnx.ModelProto, facts: Mapping[str, Any]) -> tuple[NodeResult, ...]:
        """Every node of an accepted model is on integers; see the base class."""
        nodes = Nodes(original)
        for node in nodes.all:
            nodes.seen(node, "integer", "accepted by the converter")
        return nodes.results()
