"""Sums of two products that leave 16 bits are counted as the instruction would add them, on any processor."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat import numerics
from onnxqat.backends.selection import Overrides
from onnxqat.calibration import saturation
from onnxqat.graph import io, notes, qdq
from onnxqat.validation import machine, saturated_sums
from tests.bridge.integer import networks
from tests.calibration.test_largest_codes import TEXT, images

LAYERS = {
    "padded": "y = Conv <pads = [2, 1, 0, 1], strides = [2, 1]> (x, w)",
    "grouped": "y = Conv <group = 2, dilations = [1, 2]> (x, w)",
    "odd": "y = Conv (x, w)",
    "gemm": "y = Gemm <transB = 1> (x, w)",
    "matmul": "y = MatMul (x, w)",
}
SHAPES = {
    "padded": ("N, 4, 7, 7", "6, 4, 3, 3"),
    "grouped": ("N, 4, 7, 7", "6, 2, 3, 3"),
    "odd": ("N, 3, 9, 9", "12, 3, 3, 3"),
    "gemm": ("N, 9", "6, 9"),
    "matmul": ("N, 5, 9", "9, 6"),
}


def by_hand(node: ir.Node, x: np.ndarray, zero: int, weight: np.ndarray) -> int:
    """Pairs of products that leave 16 bits, place by place; `x` are the codes that the kernel reads."""
    if node.op_type != "Conv":
        rows = weight if node.op_type == "Gemm" else weight.T
        return sum(pairs_outside(place, row) for place in x.reshape(-1, x.shape[-1]) for row in rows)
    attributes = {k: list(v.value) for k, v in node.attributes.items() if isinstance(v.value, (list, tuple))}
    pads, strides = attributes.get("pads", [0] * 4), attributes.get("strides", [1, 1])
    dilations = attributes.get("dilations", [1, 1])
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=zero)
    groups, count = x.shape[1] // weight.shape[1], 0
    spans = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
    for sample in x:
        for top in range(0, x.shape[2] - spans[0] + 1, strides[0]):
            for left in range(0, x.shape[3] - spans[1] + 1, strides[1]):
                window = sample[:, top : top + spans[0] : dilations[0], left : left + spans[1] : dilations[1]]
                for row, filter_ in enumerate(weight):
                    first = row // (len(weight) // groups) * weight.shape[1]
                    part = window[first : first + weight.shape[1]]
                    count += pairs_outside(
                        np.moveaxis(part, 0, -1).reshape(-1), np.moveaxis(filter_, 0, -1).reshape(-1)
                    )
    return count


def pairs_outside(activation: np.ndarray, weight: np.ndarray) -> int:
    products = np.pad(activation.astype(np.int64) * weight.astype(np.int64), (0, len(weight) % 2))
    sums = products.reshape(-1, 2).sum(1)
    return int(((sums > 32767) | (sums < -32768)).sum())


@pytest.mark.parametrize("kind", list(LAYERS))
@pytest.mark.parametrize("storage", ["uint8", "int8"])
def test_the_count_is_that_of_every_place(kind: str, storage: str) -> None:
    x_shape, w_shape = SHAPES[kind]
    rank = len(x_shape.split(","))
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{x_shape}] x) => (float[{", ".join("N" * rank)}] y) <float[{w_shape}] w> {{ {LAYERS[kind]} }}"""
    shape = [40 if kind == "gemm" else 3, *(int(size) for size in x_shape.split(",")[1:])]
    x = np.random.default_rng(0).uniform(-1, 3, shape).astype(np.float32)
    model = onnxqat.insert_qdq(
        networks.with_weights(text),
        calibration=[{"x": x}],
        overrides=Overrides(reduce_range=False, activation_type=storage),
        fast=True,
    ).model
    graph = io.load(model)
    (meter,) = saturated_sums.meters(graph)
    meter.update(numerics.fake_quantize(x, _grid(graph)))
    codes = numerics.quantize(x, _grid(graph)).astype(np.int64) + (128 if storage == "int8" else 0)
    zero = int(_grid(graph).zero_point) + (128 if storage == "int8" else 0)
    weight = next(saturation.codes_of(q) for q in qdq.quantizers(graph) if q.role == "weight")
    assert meter.count == by_hand(meter.node, codes, zero, weight) > 0


def _grid(model: ir.Model) -> numerics.QParams:
    return next(q.qparams for q in qdq.quantizers(model) if q.tensor == "x")


def test_validate_counts_and_lint_reads_the_note() -> None:
    model = networks.with_weights(TEXT)
    made = onnxqat.insert_qdq(model, calibration={"x": images()}, fast=True).model
    quiet, loud = (_remark(onnxqat.validate(model, made, {"x": x})) for x in (images(), images(1, size=4)))
    assert quiet.startswith("no sum of two 8-bit products leaves 16 bits on 300 samples")
    assert "saturate on processors without VNNI: calibrate on more samples" in loud
    safe = onnxqat.insert_qdq(model, calibration={"x": images()}, overrides=Overrides(safe_range=True), fast=True).model
    assert _remark(onnxqat.validate(model, safe, {"x": images()})) == ""
    other = onnxqat.insert_qdq(model, "tensorrt", calibration={"x": images()}, fast=True).model
    if not machine.saturates():
        assert _remark(onnxqat.validate(model, other, {"x": images()})) == ""

    assert not [f for f in onnxqat.lint(made, "onnxruntime-cpu").findings if f.code == "target-width"]
    for node in made.graph.node:
        kept = [p for p in node.metadata_props if p.key != notes.LARGEST_CODES]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    assert [f for f in onnxqat.lint(made, "onnxruntime-cpu").findings if f.code == "target-width"]


def _remark(report: onnxqat.validation.result.ValidationReport) -> str:
    return next((r.message for r in report.remarks if "16 bits" in r.message), "")
