"""Comparison of a compiler with the reference node by node, with every quantized tensor as a graph output."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper, numpy_helper

from onnxqat.deployment.base_compiler import Array, NodeResult
from onnxqat.deployment.graph_nodes import codes_clip
from onnxqat.graph import inference
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE

SUFFIX = "_onnxqat_traced"
SAMPLES = 2


@dataclasses.dataclass(frozen=True)
class Tap:
    """A quantized tensor that is looked at.

    Attributes:
        output: name of the extra graph output.
        nodes: names of the nodes whose result it is: its maker, and what lies above it without Q/DQ between.
        step: the smallest scale of its quantizer.
    """

    output: str
    nodes: tuple[str, ...]
    step: float


def tapped(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[Tap]]:
    """A copy in which each activation's codes go through one more DequantizeLinear to an output.

    The nodes that were there keep their inputs and outputs, so that a compiler fuses them as before.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    known = {v.name: v for v in inference.infer_shapes(model).graph.value_info}
    scales = {t.name: t for t in graph.initializer}
    makers = {o: n for n in graph.node for o in n.output}
    outputs = {v.name for v in graph.output}
    taps: list[Tap] = []
    extra: list[onnx.NodeProto] = []
    for node in list(graph.node):
        source = makers.get(node.input[0]) if node.op_type == DEQUANTIZE else None
        quantize = makers.get(source.input[0]) if source is not None and codes_clip(source, makers) else source
        if quantize is None or quantize.op_type != QUANTIZE or node.input[1] not in scales or node.output[0] in outputs:
            continue
        above = _above(quantize.input[0], makers)
        name = f"{node.input[0]}{SUFFIX}"
        if not above or any(tap.output == name for tap in taps):
            continue
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name, copy.output[0] = name, name
        extra.append(copy)
        graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        if node.output[0] in known:
            graph.output[-1].type.CopyFrom(known[node.output[0]].type)
        taps.append(Tap(name, tuple(above), float(numpy_helper.to_array(scales[node.input[1]]).min())))
    graph.node.extend(extra)
    return made, taps


def _above(name: str, makers: Mapping[str, onnx.NodeProto]) -> list[str]:
    """The maker of `name` and the only makers above it, up to the next Q/DQ."""
    found: list[str] = []
    maker = makers.get(name)
    while maker is not None and maker.op_type not in (QUANTIZE, DEQUANTIZE):
        found.append(maker.name or maker.output[0])
        maker = makers.get(maker.input[0]) if maker.input else None
    return found


def forced(model: onnx.ModelProto, taps: Sequence[Tap]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A copy of a tapped model that reads the tensors of `taps` instead of computing them, and still gives them.

    Fed with what a compiler made of them, it tells what each node should have made of its inputs.

    Returns:
        The copy, and the tap behind each of its new inputs.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    known = {tap.output for tap in taps}
    outputs = {v.name: v for v in graph.output}
    sources: dict[str, str] = {}
    nodes = []
    for node in graph.node:
        tap = f"{node.input[0]}{SUFFIX}" if node.op_type == DEQUANTIZE else ""
        if tap not in known or node.output[0] in outputs:
            nodes.append(node)
            continue
        sources[node.output[0]] = tap
        value = onnx.ValueInfoProto()
        value.CopyFrom(outputs[tap])
        value.name = node.output[0]
        graph.input.append(value)
    kept = [v for v in graph.value_info if v.name not in sources]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.value_info.extend(kept)
    return made, sources


def with_steps(
    nodes: Iterable[NodeResult],
    taps: Sequence[Tap],
    found: Sequence[Mapping[str, Array]],
    reference: Sequence[Mapping[str, Array]],
    own: Sequence[Mapping[str, Array]],
) -> tuple[NodeResult, ...]:
    """`nodes` with the largest difference of each one's quantized result, in LSB.

    Args:
        nodes: how each node runs.
        taps: of :func:`tapped`.
        found: outputs of the compiler, one dict a batch.
        reference: those of the reference.
        own: those of :func:`forced`, fed with `found`.
    """
    steps, alone = _largest(taps, found, reference), _largest(taps, found, own)
    return tuple(
        dataclasses.replace(n, steps=steps.get(n.name, n.steps), own_steps=alone.get(n.name, n.own_steps))
        for n in nodes
    )


def _largest(
    taps: Sequence[Tap], found: Sequence[Mapping[str, Array]], other: Sequence[Mapping[str, Array]]
) -> dict[str, float]:
    steps: dict[str, float] = {}
    for tap in taps:
        apart = max(_apart(a[tap.output], b[tap.output], tap.step) for a, b in zip(found, other, strict=True))
        for name in tap.nodes:
            steps[name] = max(apart, steps.get(name, 0.0))
    return steps


def _apart(found: Array, reference: Array, step: float) -> float:
    if found.shape != reference.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):
        apart = np.abs(found.astype(np.float64) - reference.astype(np.float64)) / step
    return float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0))
