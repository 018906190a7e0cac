"""onnxruntime's CPU execution provider, in its default session."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from onnxqat.deployment import base_compiler, kernel_times
from onnxqat.deployment.base_compiler import MOVES, Array, CompilerResult, Kind
from onnxqat.deployment.graph_nodes import Nodes, above, bodies
from onnxqat.graph.staging import scratch
from onnxqat.runtime import custom_ops

_INTEGER = ("QLinear", "QGemm", "QAttention", "NhwcMaxPool", "MatMulInteger", "ConvInteger", "MatMulNBits")
_LAYOUTS = ("ReorderOutput", "Transpose")
"""Operators that onnxruntime puts behind a kernel with another order of axes."""
_TIMED = "_kernel_time"
_SUFFIX = re.compile(r"(_nchwc|_token_\d+|/duplicated)+$")


class Compiler(base_compiler.BaseCompiler):
    """Judged by the optimized graph that onnxruntime writes: ``QLinear*``, ``QGemm`` and their like are integer.

    The optimized graph itself is no artefact: it is for this version and this machine.
    """

    package = "onnxruntime"
    arithmetic = "onnxruntime"
    takes_threads = True
    integer_kernels = """
        Conv Gemm MatMul Add Mul Concat MaxPool AveragePool GlobalAveragePool LeakyRelu Sigmoid Softmax Reshape
        Transpose Flatten Squeeze Unsqueeze Slice Split Gather Tile Expand Resize DepthToSpace
    """

    def version(self) -> str | None:
        """Version of the module: its package has other names with other execution providers."""
        import onnxruntime

        return str(onnxruntime.__version__)

    def compile_and_run(
        self, path: Path, batches: Sequence[Mapping[str, Array]], artefacts: Path | None = None
    ) -> CompilerResult:
        """Run in a default session with the table's `options` as session configuration; see the base class."""
        import onnxruntime

        options = self._session_options()
        with scratch() as folder:
            optimized = folder / "optimized.onnx"
            options.optimized_model_filepath = str(optimized)
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            names = [v.name for v in session.get_outputs()]
            outputs = tuple(dict(zip(names, session.run(names, dict(b)), strict=True)) for b in batches)
            original = onnx.load(path, load_external_data=False)
            nodes = read_back(original, onnx.load(optimized, load_external_data=False).graph)
        return CompilerResult(outputs, nodes, settings={"threads": str(self.threads or "all cores")})

    def node_times(self, path: Path, feeds: Mapping[str, Array]) -> tuple[dict[str, float], float]:
        """Times of onnxruntime's profiler in a default session; see the base class."""
        import onnxruntime

        options = self._session_options()
        options.enable_profiling = True
        with scratch() as folder:
            optimized = folder / "optimized.onnx"
            options.optimized_model_filepath = str(optimized)
            options.profile_file_prefix = str(folder / "profile")
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            for _ in range(kernel_times.RUNS):
                session.run(None, dict(feeds))
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
            original = onnx.load(path, load_external_data=False)
            computed = _computed(original, onnx.load(optimized, load_external_data=False).graph)
        runs: dict[str, list[float]] = defaultdict(list)
        for event in events:
            if event.get("cat") == "Node" and event["name"].endswith(_TIMED):
                runs[event["name"].removesuffix(_TIMED)].append(event["dur"] * 1e-6)
        return kernel_times.by_node(runs, computed)

    def _session_options(self) -> Any:
        """Session options with the table's settings and the user's number of threads."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        for key, value in self.options.items():
            options.add_session_config_entry(key, value)
        options.intra_op_num_threads = self.threads or 0  # 0: as many as there are cores
        custom_ops.register(options)
        return options


def _computed(original: onnx.ModelProto, optimized: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    """Nodes of `original` that each node of the optimized graph computes, by its name: first the one that it is named for."""
    nodes, makers = Nodes(original), {o: n for n in original.graph.node for o in n.output}
    made = {o for n in optimized.node for o in n.output}
    found = {}
    for node in optimized.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            own = nodes.find(_SUFFIX.sub("", node.name)) if node.name else None
            found[node.name] = [*([] if own is None else [own]), *above(node.output, makers, made)]
    return found


def read_back(original: onnx.ModelProto, optimized: onnx.GraphProto) -> tuple[base_compiler.NodeResult, ...]:
    """Return the execution of each node of `original`, read from the graph that onnxruntime optimized.

    A fused node carries the name of one node; the others that it stands for are found by walking up from the tensor
    that it makes to those that other nodes of the optimized graph make. Nodes in bodies follow those around them.
    """
    return tuple(_of_graph(Nodes(original), original.graph, optimized))


def _of_graph(nodes: Nodes, graph: onnx.GraphProto, optimized: onnx.GraphProto) -> Iterator[base_compiler.NodeResult]:
    yield from _of_nodes(nodes, graph, optimized)
    twins = {(n.op_type, o): n for n in optimized.node for o in n.output}
    for node in graph.node:
        twin = next((t for o in node.output if (t := twins.get((node.op_type, o))) is not None), None)
        compiled = {} if twin is None else bodies(twin)
        for name, body in bodies(node).items():
            yield from _of_graph(nodes.inside(body), body, compiled[name]) if name in compiled else ()


def _of_nodes(nodes: Nodes, graph: onnx.GraphProto, optimized: onnx.GraphProto) -> tuple[base_compiler.NodeResult, ...]:
    """Results for the nodes of one `graph`, by what onnxruntime's `optimized` form of it computes their outputs with.

    A node that has no kernel of its own was fused into the one behind it, and ran as that one did.
    """
    makers = {o: n for n in graph.node for o in n.output}
    made = {o for n in optimized.node for o in n.output}
    integers: set[str] = set()
    covered: list[tuple[onnx.NodeProto, Kind, str]] = []
    by_output: dict[str, tuple[Kind, str]] = {}
    for node in optimized.node:
        kind = _kind(node, integers)
        if kind != "float" or node.op_type == "QuantizeLinear":
            integers.update(node.output)
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        own = nodes.find(_SUFFIX.sub("", node.name)) if node.name else None
        if own is not None:
            nodes.seen(own, kind, node.op_type)
        ran = (kind, node.op_type)
        if own is None and node.op_type in _LAYOUTS:  # it gives the result of the kernel in front the name in the file
            ran = by_output.get(node.input[0], ran)
        by_output.update(dict.fromkeys(node.output, ran))
        covered += [(n, *ran) for n in above(node.output, makers, made)]
    for original_node, kind, detail in covered:
        named = nodes.find(original_node.output[0])
        if named is original_node:
            nodes.seen(original_node, kind, detail)
    return nodes.results()


def _kind(node: onnx.NodeProto, integers: set[str]) -> Kind:
    if node.op_type.startswith(_INTEGER):
        return "integer"
    if node.input and node.input[0] in integers:
        if node.op_type in MOVES:
            return "moved"
        if node.op_type in ("MaxPool", "Concat", "Max", "Min"):
            return "integer"
    return "float"
