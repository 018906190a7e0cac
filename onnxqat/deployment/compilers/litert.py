"""LiteRT (TensorFlow Lite): our own ``.tflite``, and its interpreter with reference kernels."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from onnxqat.deployment.base_compiler import Array, BaseCompiler, CompilerResult, NodeResult, ScriptJob
from onnxqat.deployment.graph_nodes import Nodes
from onnxqat.deployment.litert.convert import Converted, convert
from onnxqat.deployment.litert.flatbuffer import to_bytes
from onnxqat.deployment.run.environment import Environment
from onnxqat.deployment.run.environment_compiler import EnvironmentCompiler
from onnxqat.deployment.static_model import static_copy
from onnxqat.errors import UsageError

FILE = "litert/model.tflite"
"""The model in a bundle."""
_FLOAT = "no int8 operator: not all of its inputs and its result are quantized, or LiteRT has it in float only"


class Compiler(EnvironmentCompiler):
    """Judged by what was written: a node whose operators read int8 is on integers, as the interpreter runs what it reads.

    The file is written with the package ``tflite`` alone; numbers come from the interpreter, in an environment of its
    own. That runs reference kernels, whose codes are those of the arithmetic ``litert``.
    """

    package = "tflite"
    extra = "litert"
    arithmetic = "litert"
    integer_kernels = """
        Conv ConvTranspose Gemm MatMul Add Sub Mul Max Min Concat MaxPool AveragePool GlobalAveragePool GlobalMaxPool
        ReduceMean ReduceMax ReduceMin ReduceSum Resize Pad Reshape Transpose Flatten Squeeze Unsqueeze Slice Split Gather
        DepthToSpace SpaceToDepth Expand Tile Relu Clip LeakyRelu PRelu HardSwish Sigmoid Tanh Softmax LogSoftmax
        LpNormalization
    """
    environment = Environment(
        name="litert",
        package="ai-edge-litert",
        requirements=("ai-edge-litert==2.3.0", "numpy>=2.0"),
        python=(10, 14),
        systems=("linux-x86_64", "linux-aarch64", "darwin-arm64", "windows-x86_64"),
        megabytes=150,
    )

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        self.runs_numbers = self.environment.version() is not None

    def version(self) -> str | None:
        """Version of the package that the file is written with; None where it is not installed."""
        return BaseCompiler.version(self)

    def missing(self) -> UsageError:
        """The error that says how to install that package."""
        return BaseCompiler.missing(self)

    def incomplete(self) -> str:
        """Return the command that installs the interpreter: the writer alone runs no numbers."""
        return "" if self.runs_numbers else f"without its interpreter: {self.environment.missing().hint}"

    def script_job(self, path: Path, batches: Sequence[Mapping[str, Array]], folder: Path) -> ScriptJob | None:  # type: ignore[override]
        """Write the model for the interpreter; None where that is not installed. See the base class."""
        if not self.runs_numbers:
            return None
        original = static_copy(path, batches[0])
        written = write(original, folder)
        return ScriptJob(self.script, self.environment.interpreter, written, original)

    def nodes_of(self, report: Mapping[str, Any], script: ScriptJob | None) -> tuple[NodeResult, ...]:
        """Read back the facts that the script reported, or without an interpreter those of the file that was written."""
        return BaseCompiler.nodes_of(self, report, script) if script is None else super().nodes_of(report, script)

    def compile_and_run(
        self, path: Path, batches: Sequence[Mapping[str, Array]], artefacts: Path | None = None
    ) -> CompilerResult:
        """Write the model without an interpreter; see the base class."""
        original = static_copy(path, batches[0])
        files: tuple[str, ...] = ()
        if artefacts is not None:
            (artefacts / FILE).parent.mkdir(exist_ok=True)
            (artefacts / FILE).write_bytes(to_bytes(convert(original).model))
            files = (FILE,)
        return CompilerResult((), self.read_back(original, facts_of(convert(original))), files)

    def read_back(self, original: onnx.ModelProto, facts: Mapping[str, Any]) -> tuple[NodeResult, ...]:
        """From what was written for each node; see the base class."""
        nodes = Nodes(original)
        for name, kind, operators, _ in facts["nodes"]:
            node = nodes.find(name)
            if node is not None:
                nodes.seen(node, kind, " ".join(operators), _FLOAT if kind == "float" else "")
        return nodes.results()


def write(original: onnx.ModelProto, folder: Path) -> Path:
    """Write the model into `folder`, and beside it what its inputs, outputs and operators are; its path."""
    converted = convert(original)
    path = folder / "model.tflite"
    path.write_bytes(to_bytes(converted.model))
    path.with_suffix(".json").write_text(json.dumps(facts_of(converted)), encoding="utf-8")
    return path


def facts_of(converted: Converted) -> dict[str, Any]:
    """Facts of a model that a script needs, as JSON."""
    ports = {"inputs": converted.inputs, "outputs": converted.outputs}
    sides = {side: [dataclasses.asdict(port) for port in found] for side, found in ports.items()}
    return {**sides, "nodes": [dataclasses.astuple(node) for node in converted.nodes]}
