"""OpenVINO's CPU plugin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxqat.deployment import base_compiler, kernel_times, openvino_refusals
from onnxqat.deployment.base_compiler import MOVES, Array, CompilerResult, Kind
from onnxqat.deployment.graph_nodes import Nodes, split_names

THREADS = "INFERENCE_NUM_THREADS"
CARRIERS = frozenset(
    [
        "Transpose",
        "Reorder",
        "Reshape",
        "Convert",
        "FakeQuantize",
        "Concat",
        "Split",
        "VariadicSplit",
        "Broadcast",
        "Tile",
    ]
)
"""Layers that only carry or round what a node computes: they bear names of nodes whose kernel is another layer."""


class Compiler(base_compiler.BaseCompiler):
    """Judged by the kernel of each node of the runtime model: ``primitiveType`` ends in ``_i8``.

    A generated kernel bears the type of the first tensor that it reads, and computes sums and the like in float32.

    The property ``runtimePrecision`` says i8 for kernels that in fact compute in float32, so it is not used. The
    precision hint is f32: on machines with AMX the default is bfloat16. Shapes are those of the samples where these
    agree: kernels, and so roundings, are others with dynamic shapes, as with another number of threads. The vendor's
    own file is the IR, with the shapes of the ONNX file.
    """

    package = "openvino"
    extra = "openvino"
    takes_threads = True
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
        original = onnx.load(path, load_external_data=False)
        config = {"INFERENCE_PRECISION_HINT": "f32", **self.options}
        if self.threads is not None:
            config[THREADS] = str(self.threads)
        core = openvino.Core()
        files: tuple[str, ...] = ()
        try:
            model = core.read_model(str(path))
            if artefacts is not None:
                files = ("openvino/model.xml", "openvino/model.bin")
                (artefacts / "openvino").mkdir()
                openvino.save_model(model, str(artefacts / files[0]), compress_to_fp16=False)
            shapes = _make_static(model, batches)
            compiled = core.compile_model(model, "CPU", config)
        except RuntimeError as error:
            raise openvino_refusals.translated(str(error), original) from error
        outputs = tuple(_run(compiled, batch, [v.name for v in original.graph.output]) for batch in batches)
        settings = {"shapes": shapes, "threads": str(compiled.get_property(THREADS))}
        return CompilerResult(outputs, read_back(original, compiled.get_runtime_model()), files, settings)

    def node_times(self, path: Path, feeds: Mapping[str, Array]) -> tuple[dict[str, float], float]:
        """Times of OpenVINO's performance counters; see the base class."""
        try:
            import openvino
        except ImportError:
            raise self.missing() from None
        original = onnx.load(path, load_external_data=False)
        config = {
            "INFERENCE_PRECISION_HINT": "f32",
            "PERF_COUNT": "YES",
            **self.options,
            THREADS: str(self.threads or 1),
        }
        core = openvino.Core()
        try:
            model = core.read_model(str(path))
            _make_static(model, [feeds])
            compiled = core.compile_model(model, "CPU", config)
        except RuntimeError as error:
            raise openvino_refusals.translated(str(error), original) from error
        request, runs = compiled.create_infer_request(), defaultdict[str, list[float]](list)
        for _ in range(kernel_times.RUNS):
            request.infer(dict(feeds))
            for layer in request.get_profiling_info():
                runs[layer.node_name].append(layer.real_time.total_seconds())
        nodes, computed = Nodes(original), {}
        for operator in compiled.get_runtime_model().get_ordered_ops():
            info = operator.get_rt_info()
            names = str(info["originalLayersNames"].astype(str)) if "originalLayersNames" in info else ""
            computed[operator.get_friendly_name()] = list(split_names(names, nodes))
        return kernel_times.by_node(runs, computed)


def _make_static(model: Any, batches: Sequence[Mapping[str, Array]]) -> str:
    """Give `model` the shapes of the samples, where all have the same; return ``static`` or ``dynamic``."""
    found = {name: {batch[name].shape for batch in batches} for name in (batches[0] if batches else ())}
    if model.is_dynamic() and found and all(len(shapes) == 1 for shapes in found.values()):
        before = {port.get_any_name(): port.get_partial_shape() for port in model.inputs}
        try:
            model.reshape({name: list(shape) for name, (shape,) in found.items()})
        except RuntimeError:  # a Reshape inside that holds for other sizes alone: OpenVINO still takes it as it is
            model.reshape(before)
    return "dynamic" if model.is_dynamic() else "static"


def _run(compiled: Any, batch: Mapping[str, Array], names: list[str]) -> dict[str, Array]:
    found = compiled(dict(batch))
    by_name = {name: value for port, value in found.items() for name in port.get_names()}
    in_order = list(found.values())
    return {name: np.array(by_name.get(name, in_order[i])) for i, name in enumerate(names)}


def read_back(original: onnx.ModelProto, runtime: Any) -> tuple[base_compiler.NodeResult, ...]:
    """Return the execution of each node of `original`; layers of the runtime model name the nodes fused into them.

    A layer that only carries data, such as the Transpose of a weight, tells of a node that computes where no other does.
    """
    nodes = Nodes(original)
    carried: list[tuple[onnx.NodeProto, Kind, str]] = []
    computed: dict[str, tuple[Kind, str]] = {}
    for operator in runtime.get_ordered_ops():
        info = operator.get_rt_info()

        def text(key: str, info: Any = info) -> str:
            return str(info[key].astype(str)) if key in info else ""

        layer, kernel = text("layerType"), text("primitiveType")
        if layer in ("Const", "Input", "Output"):
            continue
        kind: Kind = "integer" if kernel.lower().endswith("i8") else "float"
        detail = " ".join(filter(None, (layer, kernel, _precision(text("outputPrecisions")))))
        for node in split_names(text("originalLayersNames"), nodes):
            if layer in CARRIERS and node.op_type not in MOVES and node.op_type != layer:
                carried.append((node, kind, detail))
                continue
            own = _in_generated(node, layer, kind)
            nodes.seen(node, own, detail)
            computed[node.output[0]] = (own, detail)
    for node, kind, detail in carried:
        if node.output[0] not in computed:
            nodes.seen(node, *_of_bias(node, original, computed) or (kind, detail))
    return nodes.results()


def _in_generated(node: onnx.NodeProto, layer: str, kind: Kind) -> Kind:
    """Return how `node` runs in `layer`: a generated kernel (Subgraph) bears the type of the first tensor that it reads.

    It computes in float32 what has no kernel for integers, such as the Add of a code and a float; attention, whose
    products have one, is such a layer too.
    """
    return "float" if layer == "Subgraph" and node.op_type not in Compiler.integer_kernels.split() else kind


def _precision(outputs: str) -> str:
    """Return what to say of the type of a layer's results; nothing where it is not known."""
    return f"to {outputs.partition(',')[0]}" if outputs else ""


def _of_bias(
    node: onnx.NodeProto, original: onnx.ModelProto, computed: Mapping[str, tuple[Kind, str]]
) -> tuple[Kind, str] | None:
    """Return how the Add of a bias runs that alone reads a product: OpenVINO gives the kernel the name of the Add."""
    if node.op_type not in ("MatMul", "Gemm"):
        return None
    readers = [user for user in original.graph.node if node.output[0] in user.input]
    found = computed.get(readers[0].output[0]) if len(readers) == 1 and readers[0].op_type == "Add" else None
    return found if found is not None and found[1].startswith("FullyConnected") else None
