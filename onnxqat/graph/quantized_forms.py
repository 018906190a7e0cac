"""Forms other than QDQ that a quantized model may have: operators on codes, dynamic quantization, vendors' quantizers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Literal

import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import qdq, walk

Kind = Literal["qdq", "qoperator", "dynamic", "vendor"]

QOPERATORS = ("QLinear", "QGemm", "QOrdered")
"""Beginnings of the names of operators that read codes and give codes."""

DYNAMIC = ("DynamicQuantize", "QAttention", "QEmbed")
"""Beginnings of the names of operators whose scales follow from each batch."""

_BESIDE_DYNAMIC = ("ConvInteger", "MatMulInteger")  # read what such operators give

_OWN = ("", "ai.onnx", "com.microsoft", "com.ms.internal.nhwc")
_QUANTIZER = re.compile("quant(?!ile|um)|fixneuron|multithreshold")  # the last two are Vitis AI's and FINN's

TOOLS = {
    "aimet.customop": "AIMET",
    "aimet.customop.cpu": "AIMET",
    "aimet.customop.cuda": "AIMET",
    "com.amd.quark": "AMD Quark",
    "com.vai.quantize": "Vitis AI",
    "finn.custom_op.general": "FINN",
    "mct_quantizers": "Model Compression Toolkit",
    "onnx.brevitas": "Brevitas",
    "org.openvinotoolkit": "OpenVINO's NNCF",
    "qonnx.custom_op.general": "QONNX, which Brevitas writes",
    "quantized_decomposed": "torch's export of quantized programs",
    "quark": "AMD Quark",
    "trt": "NVIDIA ModelOpt, for TensorRT",
}
"""The tool whose quantizers lie in a domain."""


@dataclasses.dataclass(frozen=True)
class Form:
    """Form in which a model is quantized.

    Attributes:
        kind: ``"qdq"``, ``"qoperator"``, ``"dynamic"`` or ``"vendor"``.
        operators: the operators that show it, each once, with their domain where that is a vendor's.
        tool: the tool that writes them; empty if unknown.
    """

    kind: Kind
    operators: tuple[str, ...]
    tool: str = ""


def is_vendor_quantizer(node: ir.Node) -> bool:
    """Return True for a quantizer of a domain that is neither ONNX's nor onnxruntime's."""
    if node.domain in _OWN or node.domain.startswith("ai.onnx."):
        return False
    return _QUANTIZER.search(node.op_type.lower()) is not None


def is_qoperator(node: ir.Node) -> bool:
    """Return True for an operator that reads codes and gives codes."""
    return node.domain in _OWN and node.op_type.startswith(QOPERATORS)


def is_integer_operator(node: ir.Node) -> bool:
    """Return True for an operator on codes, or of dynamic quantization: no operator of a float graph that a table has."""
    return is_qoperator(node) or (node.domain in _OWN and node.op_type.startswith((*DYNAMIC, *_BESIDE_DYNAMIC)))


def dynamic(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Return those of `nodes` that make up dynamic quantization; none where no scale is computed.

    A DynamicQuantizeLinear that DequantizeLinear alone reads is a pair: nothing computes on its codes, and what is in
    front of it can be trained.
    """
    own = [node for node in nodes if node.domain in _OWN and not is_dynamic_pair(node)]
    if not any(node.op_type.startswith(DYNAMIC) for node in own):
        return []
    return [node for node in own if node.op_type.startswith((*DYNAMIC, *_BESIDE_DYNAMIC))]


def is_dynamic_pair(node: ir.Node) -> bool:
    """Return True for a DynamicQuantizeLinear whose codes only DequantizeLinear with its scale and zero point read."""
    if node.op_type != "DynamicQuantizeLinear" or node.domain:
        return False
    readers = node.outputs[0].consumers()
    return bool(readers) and all(
        r.op_type == "DequantizeLinear" and list(r.inputs) == list(node.outputs) for r in readers
    )


def form_of(model: ir.Model) -> Form | None:
    """Return the form in which `model` is quantized; None for a float model.

    A vendor's quantizers go before operators on codes, those before dynamic quantization, and that before pairs, which
    a model of any form may have besides.
    """
    nodes = list(walk.nodes(model))
    kinds: dict[Kind, list[ir.Node]] = {
        "vendor": [node for node in nodes if is_vendor_quantizer(node)],
        "qoperator": [node for node in nodes if is_qoperator(node)],
        "dynamic": dynamic(nodes),
        "qdq": [node for node in nodes if qdq.is_qdq(node)],
    }
    for kind, found in kinds.items():
        if found:
            vendor = kind == "vendor"
            names = [f"{n.domain}.{n.op_type}" if vendor else n.op_type for n in found]
            return Form(kind, tuple(dict.fromkeys(names)), tool_of(found[0].domain) if vendor else "")
    return None


def tool_of(domain: str) -> str:
    """Return the tool whose quantizers lie in `domain`; empty where that is not known."""
    return TOOLS.get(domain, "")


def refusal(model: ir.Model, name: str) -> ModelError | None:
    """Return the error for a model without pairs that says why it has none; None where nothing in it tells.

    Args:
        model: that a command was given.
        name: of the model, for the message.
    """
    form = form_of(model)
    backend = model.metadata_props.get("onnxqat.backend")
    if form is None and backend is not None:
        return ModelError(
            "model-not-quantized",
            f"insert-qdq left all of {name} in float: {backend} quantizes none of its operators, or options leave them out",
            hint="insert-qdq says for each operator why; give it another --backend, or deploy the float model",
        )
    if form is None or form.kind not in ("dynamic", "vendor"):
        return None
    names = ", ".join(form.operators[:4])
    if form.kind == "dynamic":
        return ModelError(
            "model-form",
            f"{name} is quantized dynamically ({names}): its scales follow from each batch, so that there is nothing to "
            "calibrate or to train",
            hint="take the float model that it was made from: onnxqat insert-qdq FLOAT.onnx",
        )
    of = f"those of {form.tool}" if form.tool else "no operators of ONNX or onnxruntime"
    return ModelError(
        "model-form",
        f"the quantizers of {name} are {of} ({names})",
        hint="export it with QuantizeLinear and DequantizeLinear of ONNX, or take the float model: onnxqat insert-qdq",
    )
