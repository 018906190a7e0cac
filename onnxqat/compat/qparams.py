"""Quantization parameters as JSON beside a clean float model: a QDQ model in two parts, and put together again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.errors import DataError, ModelError
from onnxqat.graph import atomic, build, edit, io, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes import _base
from onnxqat.passes._forms import float_name
from onnxqat.passes.derive_bias import DeriveBias
from onnxqat.passes.pair_captured import PairCaptured
from onnxqat.passes.place_qdq import PlaceQdq
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.types import BiasPlacement, Placement, QParams, QType

FORMAT = "onnxqat-qparams-1"
SCALE = "_scale"


def split(source: io.ModelSource) -> tuple[ir.Model, dict[str, Any]]:
    """A QDQ model as its float model and what its quantizers are.

    Args:
        source: path or model in train form (float weights); it is not changed.

    Returns:
        The model without Q/DQ, and a document of JSON values: ``quantizers`` by tensor, with their consumers, and
        ``biases``. A float32 is written with as many digits as give it back.

    Raises:
        ModelError: ``model-not-quantized``.
    """
    model = io.load(source)
    found = qdq.quantizers(model, every=True)
    if not found:
        raise ModelError("model-not-quantized", "the model has no quantizers to describe")
    groups: dict[int, str] = {}
    quantizers: list[dict[str, Any]] = []
    biases: list[dict[str, Any]] = []
    for quantizer in found:
        if quantizer.role == "bias" and quantizer.stored:
            biases += [_bias(quantizer, node) for node, index in _readers(quantizer) if index == 2]
        else:
            quantizers.append(_quantizer(quantizer, groups))
    biases += [
        {"node": str(node.name), "storage": "float", "rule": node.metadata_props.get(build.RULE, "")}
        for node, _, _ in qdq.snapped_biases(model, found)
    ]
    document = {
        "format": FORMAT,
        "metadata": {k: v for k, v in model.metadata_props.items() if k.startswith("onnxqat.")},
        "quantizers": quantizers,
        "biases": biases,
    }
    _base.rewrite(model, [StripQdq()])
    return model, document


def join(clean: io.ModelSource, document: Mapping[str, Any]) -> ir.Model:
    """The QDQ model, in train form, that :func:`split` made `clean` and `document` from.

    Raises:
        DataError: ``data-format``: `document` is none of :func:`split`.
        ModelError: ``pass-precondition``: it names a tensor or node that `clean` does not have.
    """
    if document.get("format") != FORMAT:
        raise DataError("data-format", f"these quantization parameters are not of format {FORMAT}")
    model = io.load(clean)
    try:
        placements = [_placement(entry) for entry in document["quantizers"]]
        biases = [BiasPlacement(b["node"], b["storage"], b["rule"]) for b in document["biases"]]
        codes = {b["node"]: b["codes"] for b in document["biases"] if "codes" in b}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError("data-format", f"the quantization parameters are damaged: {error!r}") from None
    names = {str(node.name) for node in walk.nodes(model)}
    for bias in biases:
        if bias.node not in names:
            raise ModelError("pass-precondition", f"there is no node {bias.node!r} whose bias is to be quantized")
    _base.rewrite(model, [PlaceQdq(placements), PairCaptured(), DeriveBias(biases)])
    _set_codes(model, codes)
    model.metadata_props.update(document.get("metadata", {}))
    edit.remove_unused(model)
    return model


def read(path: Path) -> dict[str, Any]:
    """The document in a JSON file.

    Raises:
        DataError: ``data-not-found``, ``data-format``.
    """
    if not path.is_file():
        raise DataError("data-not-found", f"{path}: no such file")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError("data-format", f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError("data-format", f"{path}: holds no quantization parameters of format {FORMAT}")
    return document


def write(document: Mapping[str, Any], path: Path, clean: AbstractContextManager[Callable[[], None]]) -> Path:
    """Write the document as JSON, and the float model that it belongs to: never one beside the other's predecessor.

    A process that is killed between the two leaves no document, since an old one would give the new weights wrong
    scales.

    Args:
        document: what :func:`split` gave.
        path: the file.
        clean: stages the float model and gives the function that puts it into its place, as
            :func:`onnxqat.graph.saving.staged` does.

    Raises:
        ModelError: ``output-not-writable``.
    """
    content = (json.dumps(document, indent=1) + "\n").encode()
    with atomic.staged_file(path, content) as put_document, clean as put_model:
        if not atomic.is_device(path):
            atomic.remove(path)
        put_model()
        put_document()
    return path


# ---------------------------------------------------------------- one quantizer
def _readers(quantizer: Quantizer) -> list[tuple[ir.Node, int]]:
    return quantizer.uses


def _quantizer(quantizer: Quantizer, groups: dict[int, str]) -> dict[str, Any]:
    """Return one quantizer as an entry of the qparams file; quantizers that share a scale name the same group."""
    qparams, stamp = quantizer.qparams, quantizer.nodes[0].metadata_props
    output = quantizer.outputs[0]
    tensor = float_name(quantizer) if quantizer.stored else quantizer.tensor
    # A graph output gives its name to the dequantized tensor.
    tensor = str(output.name) if output.is_graph_output() and not quantizer.stored else tensor
    values = query.constant_tensor(quantizer.input) is None
    return {
        "tensor": tensor,
        "role": quantizer.role,
        "type": qparams.qtype.storage,
        "quant_min": qparams.qtype.quant_min,
        "quant_max": qparams.qtype.quant_max,
        "axis": qparams.axis,
        "block_size": qparams.block_size,
        "scale_bits": qparams.scale_bits,
        "scale": qparams.scale.tolist(),
        "zero_point": qparams.zero_point.tolist(),
        "group": groups.setdefault(id(quantizer.scales[0]), _root(quantizer) or tensor),
        "consumers": None if values and _reads_all(quantizer) else [[str(n.name), i] for n, i in _readers(quantizer)],
        "rule": stamp.get(build.RULE, ""),
        "prescribed": quantizer.prescribed,
    }


def _root(quantizer: Quantizer) -> str:
    """The tensor that the scale's name says it was made for; "" where it says nothing."""
    name = str(quantizer.scales[0].name)
    return name.removesuffix(SCALE) if name.endswith(SCALE) else ""


def _reads_all(quantizer: Quantizer) -> bool:
    """Check whether `quantizer` is the only reader of the tensor that it quantizes."""
    return all(user is quantizer.quantize for user in quantizer.input.consumers())


def _placement(entry: Mapping[str, Any]) -> Placement:
    qparams = QParams(
        np.asarray(entry["scale"], np.float32),
        np.asarray(entry["zero_point"], np.int64),
        QType(entry["type"], entry["quant_min"], entry["quant_max"]),
        entry["axis"],
        entry["scale_bits"],
        entry["block_size"],
    )
    consumers = None if entry["consumers"] is None else tuple((str(n), int(i)) for n, i in entry["consumers"])
    return Placement(
        entry["tensor"], qparams, entry["rule"], consumers, entry["group"], bool(entry.get("prescribed", False))
    )


# ---------------------------------------------------------------- biases
def _bias(quantizer: Quantizer, node: ir.Node) -> dict[str, Any]:
    """An int32 bias; its codes only where float32 does not give them back."""
    codes = np.asarray(query.constant_array(quantizer.input)).astype(np.int64)
    entry = {
        "node": str(node.name),
        "storage": "int32",
        "rule": quantizer.nodes[0].metadata_props.get(build.RULE, ""),
    }
    again = numerics.quantize(numerics.dequantize(codes, quantizer.qparams), quantizer.qparams)
    return entry if np.array_equal(again, codes) else {**entry, "codes": codes.tolist()}


def _set_codes(model: ir.Model, codes: Mapping[str, list[int]]) -> None:
    for node in walk.nodes(model):
        value = query.input_at(node, 2)
        producer = query.producer(value)
        stored = producer.inputs[0] if producer is not None and str(node.name) in codes else None
        if stored is not None and stored.const_value is not None:
            stored.const_value = build.tensor(np.asarray(codes[str(node.name)], np.int32), name=stored.name)
