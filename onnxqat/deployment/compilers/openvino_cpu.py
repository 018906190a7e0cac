"""OpenVINO's CPU plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxqat.deployment import base_compiler
from onnxqat.deployment.base_compiler import Array, CompilerResult, Kind
from onnxqat.deployment.graph_nodes import Nodes, split_names


class Compiler(base_compiler.BaseCompiler):
    """Judged by the kernel of each node of the runtime model: ``primitiveType`` ends in ``_i8``.

    The property ``runtimePrecision`` says i8 for kernels that in fact compute in float32, so it is not used. The
    precision hint is f32: on machines with AMX the default is bfloat16. The vendor's own file is the IR.
    """

    package = "openvino"
    extra = "openvino"
    # Add and Mul run on integers where they are fused into a convolution, and have no kernel of their own.
    integer_kernels = """
        Conv ConvTranspose Gemm MatMul Concat MaxPool AveragePool GlobalAveragePool GlobalMaxPool ReduceMean ReduceMax
        ReduceMin ReduceSum Resize DepthToSpace Reshape Transpose Flatten Squeeze Unsqueeze Slice Split Gather Expand
    """

    def compile_and_run(
        self, path: Path, batches: Sequence[Mapping[str, Array]], artefacts: Path | None = None
    ) -> CompilerResult:
        """Compile for the CPU of this machine; see the base class."""
        try:
            import openvino
        except ImportError:
            raise self.missing() from None
        core = openvino.Core()
        model = core.read_model(str(path))
        compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **self.options})
        original = onnx.load(path, load_external_data=False)
        outputs = tuple(_run(compiled, batch, [v.name for v in original.graph.output]) for batch in batches)
        files: tuple[str, ...] = ()
        if artefacts is not None:
            files = ("openvino/model.xml", "openvino/model.bin")
            (artefacts / "openvino").mkdir()
            openvino.save_model(model, str(artefacts / files[0]), compress_to_fp16=False)
        return CompilerResult(outputs, read_back(original, compiled.get_runtime_model()), files)


def _run(compiled: Any, batch: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    found = compiled(dict(batch))
    by_name = {name: value for port, value in found.items() for name in port.get_names()}
    in_order = list(found.values())
    return {name: np.array(by_name.get(name, in_order[i])) for i, name in enumerate(names)}


def read_back(original: onnx.ModelProto, runtime: Any) -> tuple[base_compiler.NodeResult, ...]:
    """Return the execution of each node of `original`; layers of the runtime model name the nodes fused into them."""
    nodes = Nodes(original)
    for operator in runtime.get_ordered_ops():
        info = operator.get_rt_info()

        def text(key: str, info: Any = info) -> str:
            return str(info[key].astype(str)) if key in info else ""

        layer, kernel = text("layerType"), text("primitiveType")
        if layer in ("Const", "Input", "Output"):
            continue
        kind: Kind = "integer" if kernel.lower().endswith("i8") else "float"
        for node in split_names(text("originalLayersNames"), nodes):
            nodes.seen(node, kind, f"{layer} {kernel}")
    return nodes.results()
