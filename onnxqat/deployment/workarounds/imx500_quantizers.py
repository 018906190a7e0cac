"""Q/DQ pairs as operators of mct-quantizers: a power-of-two threshold in place of scale and zero point."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper, numpy_helper

from onnxqat.deployment.graph_nodes import codes_clip
from onnxqat.errors import CheckError
from onnxqat.graph import inference
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE

DOMAIN = "mct_quantizers"
ACTIVATION, WEIGHTS = "ActivationPOTQuantizer", "WeightsPOTQuantizer"
VERSION = "1.6.0"  # of mct-quantizers, which the converter asks for
_OTHER = re.compile(r"\W", re.ASCII)
PRODUCER = ("pytorch", "2.0.0")  # the converter looks at these before it looks at the graph


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a deploy form without Q/DQ.

    1. Activations: ``QuantizeLinear -> (Clip) -> DequantizeLinear`` becomes one ActivationPOTQuantizer with threshold
       scale * 2**(bits - signed); uint8 codes around 128 are signed ones.
    2. Stored 8-bit weights become float constants on their grid behind a WeightsPOTQuantizer.
    3. Stored int32 biases become float constants.
    4. Names get letters, digits and underscores only: the converter fails on others. Graph inputs and outputs keep theirs.

    Args:
        model: deploy form with static shapes; it is not changed.

    Raises:
        CheckError: ``handoff-failed``: a scale that is no power of two, or another zero point.
    """
    made = onnx.ModelProto()
    made.CopyFrom(inference.infer_shapes(model))
    graph = made.graph
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == QUANTIZE or codes_clip(node, makers):
            continue
        if node.op_type != DEQUANTIZE:
            nodes.append(node)
        elif node.input[0] in constants:
            nodes += _stored(node, constants, graph)
        else:
            nodes.append(_activation(node, constants, makers))
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input} | {v.name for v in graph.output}
    kept = [t for t in graph.initializer if t.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    _rename(graph)
    made.opset_import.add(domain=DOMAIN, version=1)
    made.producer_name, made.producer_version = PRODUCER
    return made


def _rename(graph: onnx.GraphProto) -> None:
    names: dict[str, str] = {str(v.name): str(v.name) for v in (*graph.input, *graph.output)} | {"": ""}

    def plain(name: str) -> str:
        return names.setdefault(name, f"{_OTHER.sub('_', name).strip('_')}_{len(names)}")

    for index, node in enumerate(graph.node):
        node.name = f"{_OTHER.sub('_', node.name).strip('_')}_{index}"
        node.input[:] = [plain(name) for name in node.input]
        node.output[:] = [plain(name) for name in node.output]
    for tensor in graph.initializer:
        tensor.name = plain(tensor.name)
    for value in graph.value_info:
        value.name = plain(value.name)


def _activation(
    node: onnx.NodeProto, constants: dict[str, np.ndarray], makers: dict[str, onnx.NodeProto]
) -> onnx.NodeProto:
    """Return MCT's node for an activation's pair: a threshold, a width and a sign in place of scale and zero point."""
    clip, quantize = None, makers[node.input[0]]
    if quantize.op_type == "Clip":
        clip, quantize = quantize, makers[quantize.input[0]]
    tensor = quantize.input[0]
    zero = _zero_point(quantize, constants)
    info = np.iinfo(zero.dtype)
    low, high = (info.min, info.max) if clip is None else (constants[n].item() for n in clip.input[1:3])
    middle = (int(info.min) + int(info.max) + 1) // 2
    signed = low < 0 or int(zero.max()) == middle
    _check_zero(zero, {0} | ({middle} if signed else set()), tensor)
    bits = (int(high) - int(low)).bit_length()
    threshold = _threshold(constants[quantize.input[1]], bits, signed, tensor)
    return helper.make_node(
        ACTIVATION,
        [tensor],
        list(node.output),
        name=node.name,
        domain=DOMAIN,
        threshold=float(threshold.ravel()[0]),
        signed=int(signed),
        num_bits=bits,
        mctq_version=VERSION,
    )


def _stored(node: onnx.NodeProto, constants: dict[str, np.ndarray], graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Replace a constant's DequantizeLinear: MCT's node on float values, or plain floats for a bias."""
    codes, scale, zero = constants[node.input[0]], constants[node.input[1]], _zero_point(node, constants)
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    spread = (
        scale if scale.ndim == 0 else np.expand_dims(scale, [d for d in range(codes.ndim) if d != axis % codes.ndim])
    )
    values = (codes.astype(np.float32) * spread).astype(np.float32)
    _check_zero(zero, {0}, node.output[0])
    if codes.dtype == np.int32:
        graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
        return
    bits = codes.dtype.itemsize * 8
    threshold = _threshold(np.atleast_1d(scale), bits, True, node.output[0])
    names = (f"{node.output[0]}_on_grid", f"{node.output[0]}_threshold")
    graph.initializer.extend(map(numpy_helper.from_array, (values, threshold), names))
    yield helper.make_node(
        WEIGHTS,
        list(names),
        list(node.output),
        name=node.name,
        domain=DOMAIN,
        num_bits=bits,
        mctq_version=VERSION,
        per_channel=int(scale.ndim > 0),
        channel_axis=axis if scale.ndim else 0,
        signed=1,
    )


def _zero_point(node: onnx.NodeProto, constants: dict[str, np.ndarray]) -> np.ndarray:
    return constants[node.input[2]] if len(node.input) > 2 and node.input[2] else np.zeros((), np.uint8)


def _check_zero(zero: np.ndarray, accepted: set[int], tensor: str) -> None:
    if not set(np.unique(zero).tolist()) <= accepted:
        raise CheckError(
            "handoff-failed",
            f"imx500 has no zero points: tensor {tensor!r} has {int(zero.ravel()[0])}",
            hint="insert-qdq with --backend imx500",
        )


def _threshold(scale: np.ndarray, bits: int, signed: bool, tensor: str) -> np.ndarray:
    if not (np.frexp(scale)[0] == 0.5).all():
        raise CheckError(
            "handoff-failed",
            f"imx500 has scales that are powers of two: tensor {tensor!r} has {float(scale.ravel()[0]):.9g}",
            hint="insert-qdq with --backend imx500",
        )
    return np.asarray(scale * np.float32(2 ** (bits - signed)), np.float32)
