"""Rockchip's RKNN-Toolkit2: compiler for RK3588 and the like, and its simulator."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from onnxqat.deployment.base_compiler import MOVES, Kind, NodeResult
from onnxqat.deployment.graph_nodes import Nodes
from onnxqat.deployment.run import environment_compiler
from onnxqat.deployment.run.environment import Environment
from onnxqat.deployment.workarounds.rknn_average_pools import RknnAveragePools
from onnxqat.deployment.workarounds.rknn_four_axes import RknnFourAxes
from onnxqat.deployment.workarounds.rknn_linear_layers import RknnLinearLayers
from onnxqat.deployment.workarounds.rknn_long_strides import RknnLongStrides
from onnxqat.deployment.workarounds.rknn_max_pools import RknnMaxPools
from onnxqat.deployment.workarounds.rknn_resize_pairs import RknnResizePairs
from onnxqat.deployment.workarounds.rknn_six_axes import RknnSixAxes
from onnxqat.deployment.workarounds.rknn_zero_points import with_kept_grids
from onnxqat.deployment.workarounds.silu_pairs import SiluPairs
from onnxqat.graph import inference
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE
from onnxqat.passes._base import run_passes

_ROW = re.compile(r"D RKNN: \[[\d:.]+\] (\d+)\s+(\w+)\s+(INT8|INT16|INT4|FLOAT16|FLOAT|FLOAT32)\s+(NPU|CPU|GPU)\s(.*)")
_ADDED = re.compile(r"(#\d+|_split|_select|_2[a-z]+\w*|_[A-Z]\w*|_\d+)$")


class Compiler(environment_compiler.EnvironmentCompiler):
    """Judged by the compiler's own table of operators: data type INT8 is integer; the target CPU is said in `detail`.

    Options are those of ``RKNN.config``, such as ``target_platform`` (rk3588 without) and ``optimization_level`` (2
    without). The vendor's own files are the ``.rknn`` and the ONNX file that it was made of: see
    :mod:`onnxqat.deployment.workarounds.rknn_average_pools` and :mod:`onnxqat.deployment.workarounds.rknn_zero_points`.
    """

    package = "rknn-toolkit2"
    integer_kernels = """
        Conv ConvTranspose Gemm MatMul Add Sub Mul Div Max Min Concat MaxPool AveragePool GlobalAveragePool ReduceMean
        Resize Pad Reshape Transpose Flatten Slice Split Gather LeakyRelu PRelu Sigmoid Softmax Tanh Elu Softplus Exp
        Sqrt Abs HardSigmoid HardSwish Relu Clip
    """
    # The package pins torch<=2.4, which has no build for many machines; it works with this one.
    environment = Environment(
        name="rknn-toolkit2",
        package="rknn-toolkit2",
        bare=("rknn-toolkit2==2.5.0",),
        requirements=(
            "torch==2.13.0",
            "numpy==1.26.4",
            "onnx==1.18.0",
            "onnxruntime==1.22.1",
            "protobuf==4.25.4",
            "scipy<1.18",
            "opencv-python-headless<4.12",
            "psutil",
            "ruamel.yaml",
            "fast-histogram",
            "tqdm",
            "setuptools<81",
        ),
        python=(10, 12),
        systems=("linux-x86_64",),
        megabytes=2000,
    )

    def prepare(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Rows and long strides as convolutions of stride 1, pools cut to what their windows reach, SiLUs with a pair inside, grids that it keeps; see the base class."""
        passes = (
            RknnResizePairs(),
            RknnMaxPools(),
            RknnAveragePools(),
            SiluPairs(),
            RknnLongStrides(),
            RknnLinearLayers(),
            RknnFourAxes(),
            RknnSixAxes(),
        )
        return with_kept_grids(run_passes(inference.infer_shapes(model), passes).model)

    def read_back(self, original: onnx.ModelProto, facts: Mapping[str, Any]) -> tuple[NodeResult, ...]:
        """From the table of operators; see the base class."""
        nodes = Nodes(original)
        for row in map(_ROW.match, facts["table"]):
            if row is None:
                continue
            op, dtype, target = row[2], row[3], row[4]
            node = _find(row[5].split()[-1].partition(":")[2], nodes)
            if node is None:
                continue
            kind: Kind = "integer" if dtype.startswith("INT") else "float"
            why = "" if kind == "integer" else f"the compiler chose {dtype}"
            for part in (node, *_fused(node, op, original.graph, nodes)):
                moved = kind == "integer" and part.op_type in MOVES
                nodes.seen(part, "moved" if moved else kind, f"{op} {dtype} {target}", why)
        nodes.folded(through_quantizers=True)
        return nodes.results()


def _find(name: str, nodes: Nodes) -> onnx.NodeProto | None:
    """The node that the compiler calls `name`, which may have its suffixes for split and fused operators."""
    while name:
        node = nodes.find(name)
        if node is not None:
            return node
        shorter = _ADDED.sub("", name)
        if shorter == name:
            return None
        name = shorter
    return None


def _fused(node: onnx.NodeProto, op: str, graph: onnx.GraphProto, nodes: Nodes) -> Iterator[onnx.NodeProto]:
    """Nodes behind `node` that the compiled operator `op` (ConvAddRelu) has in its name."""
    rest = op.lower().removeprefix("conv").removeprefix(node.op_type.lower()).replace("exswish", "sigmoidmul")
    known = {id(n) for n in nodes.all}
    pending, seen = [node], {id(node)}
    while pending and rest:
        for follower in _followers(pending.pop(), graph):
            kind = follower.op_type.lower()
            if id(follower) in known and id(follower) not in seen and kind in rest:
                seen.add(id(follower))
                rest = rest.replace(kind, "", 1)
                pending.append(follower)
                yield follower


def _followers(node: onnx.NodeProto, graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Nodes that read what `node` makes, quantizers between them left out."""
    pending = list(node.output)
    while pending:
        name = pending.pop()
        for reader in graph.node:
            if name in reader.input:
                if reader.op_type in (QUANTIZE, DEQUANTIZE):
                    pending += reader.output
                else:
                    yield reader
