"""Sums of two products that leave 16 bits are counted as the instruction would add them, on any processor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxqat
from onnxqat import numerics
from onnxqat.calibration import saturation
from onnxqat.graph import io, notes, qdq
from onnxqat.placement.table_overrides import Overrides
from onnxqat.runtime.session import Session
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
        data=[{"x": x}],
        overrides=Overrides(reduce_range=False, activation_type=storage),
        fast=True,
    ).model
    graph = io.load(model)
    (meter,) = saturated_sums.watch(graph).meters
    meter.update(numerics.fake_quantize(x, _grid(graph)))
    codes = numerics.quantize(x, _grid(graph)).astype(np.int64) + (128 if storage == "int8" else 0)
    zero = int(_grid(graph).zero_point) + (128 if storage == "int8" else 0)
    weight = next(saturation.codes_of(q) for q in qdq.quantizers(graph) if q.role == "weight")
    assert meter.count == by_hand(meter.node, codes, zero, weight) > 0


def _grid(model: ir.Model) -> numerics.QParams:
    return next(q.qparams for q in qdq.quantizers(model) if q.tensor == "x")


def test_validate_counts_and_lint_reads_the_note() -> None:
    model = networks.with_weights(TEXT)
    made = onnxqat.insert_qdq(model, data={"x": images()}, fast=True).model
    quiet, loud = (_remark(onnxqat.validate(model, made, {"x": x})) for x in (images(), images(1, size=4)))
    assert quiet.startswith("no sum of two 8-bit products leaves 16 bits on 300 samples")
    assert "saturate on processors without VNNI: calibrate on more samples" in loud
    safe = onnxqat.insert_qdq(model, data={"x": images()}, overrides=Overrides(safe_range=True), fast=True).model
    assert _remark(onnxqat.validate(model, safe, {"x": images()})) == ""
    other = onnxqat.insert_qdq(model, "tensorrt", data={"x": images()}, fast=True).model
    if not machine.saturates():
        assert _remark(onnxqat.validate(model, other, {"x": images()})) == ""

    assert not [f for f in onnxqat.lint(made, "onnxruntime-cpu").findings if f.code == "target-width"]
    for node in made.graph.node:
        kept = [p for p in node.metadata_props if p.key != notes.LARGEST_CODES]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    assert [f for f in onnxqat.lint(made, "onnxruntime-cpu").findings if f.code == "target-width"]


CODES = {
    "QLinearConv": ("4, 5, 5", (6, 4, 3, 3), "r = QLinearConv<pads = [1, 0, 1, 0]>(q, s, z, w, t, o, s, z)"),
    "QLinearMatMul": ("9", (9, 6), "r = QLinearMatMul(q, s, z, w, t, o, s, z)"),
    "QGemm": ("9", (6, 9), "r = com.microsoft.QGemm<transB = 1>(q, s, z, w, t, o, , s, z)"),
    "MatMulInteger": ("9", (9, 6), "i = MatMulInteger(q, w, z) f = Cast<to = 1>(i) r = QuantizeLinear(f, s, z)"),
    "ConvInteger": (
        "4, 5, 5",
        (6, 4, 3, 3),
        "i = ConvInteger(q, w, z) f = Cast<to = 1>(i) r = QuantizeLinear(f, s, z)",
    ),
    "of a computed scale": (
        "9",
        (9, 6),
        """n = Neg(s) e = Neg(n) p = QuantizeLinear(x, e, z) v = DequantizeLinear(p, e, z) u = DequantizeLinear(w, t, o)
        m = MatMul(v, u) r = QuantizeLinear(m, s, z)""",
    ),
}
"""Layers of whose input no quantizer tells the codes: sizes of a sample, shape of the weight, nodes."""


def on_codes(kind: str) -> onnx.ModelProto:
    sample, shape, nodes = CODES[kind]
    rank = ", ".join(["N"] * len(shape))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N, {sample}] x) => (float[{rank}] y)
        <float s = {{0.02}}, float t = {{0.01}}, uint8 z = {{100}}, int8 o = {{0}}> {{
        q = QuantizeLinear(x, s, z) {nodes} y = DequantizeLinear(r, s, z) }}""")
    codes = np.random.default_rng(1).integers(-127, 128, shape, np.int8)
    model.graph.initializer.append(numpy_helper.from_array(codes, "w"))
    return model


def values(kind: str, seed: int = 0) -> np.ndarray:
    sample = [int(size) for size in CODES[kind][0].split(",")]
    return np.random.default_rng(seed).uniform(-1, 3, [20, *sample]).astype(np.float32)


@pytest.mark.parametrize("kind", list(CODES))
def test_sums_of_codes_are_counted(kind: str) -> None:
    model, x = on_codes(kind), values(kind)
    watched = saturated_sums.watch(io.load(model))
    assert watched.others == ()
    (meter,) = watched.meters
    (weight,) = (numpy_helper.to_array(i) for i in model.graph.initializer if i.name == "w")
    codes = np.clip(np.rint(x / np.float32(0.02)) + 100, 0, 255).astype(np.uint8)
    watched.update({watched.codes[0]: codes})
    assert meter.count == by_hand(meter.plain, codes.astype(np.int64), 100, weight.astype(np.int64)) > 0


@pytest.mark.parametrize("kind", list(CODES))
def test_lint_and_validate_name_layers_on_codes(kind: str) -> None:
    model, x = on_codes(kind), values(kind)
    layer = next(n.output[0] for n in model.graph.node if n.op_type in kind or n.op_type == "MatMul")
    report = onnxqat.validate(model, model, {"x": x}, use_torch=False)
    (remark,) = (r for r in report.remarks if "leave 16 bits on 20 samples" in r.message)
    assert [layer in name for name in remark.nodes] == [True]
    if "computed" not in kind:  # pairs are held to the table edge by edge
        found = [f for f in onnxqat.lint(model, "onnxruntime-cpu").findings if f.code == "target-width"]
        assert [(layer in f.node, f.severity) for f in found] == [(True, "warning")]
    assert not [f for f in onnxqat.lint(model, "tensorrt").findings if f.code == "target-width"]


def test_no_promise_for_layers_that_are_not_counted() -> None:
    model = on_codes("MatMulInteger")
    known = next(n for n in model.graph.node if n.op_type == "MatMulInteger")
    known.input[2] = "zero"  # known only as the file runs
    model.graph.node.insert(0, onnx.helper.make_node("Identity", ["z"], ["zero"]))
    model.graph.node.insert(0, onnx.helper.make_node("Max", ["z", "z"], ["zz"]))
    model.graph.node[1].input[0] = "zz"
    remarks = onnxqat.validate(model, model, {"x": values("MatMulInteger")}, use_torch=False).remarks
    assert any("in 1 layer in which they were not counted" in r.message for r in remarks)
    assert not any("compute the same" in r.message for r in remarks)


def test_what_is_told_of_a_file_is_the_same_on_every_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes decide, not the kernels of this machine: a file of no table, and one of a target without a compiler."""
    told = []
    table = tmp_path / "narrow.yaml"
    table.write_text("schema: 1\nbackend: narrow\nextends: academic\n", encoding="utf-8")
    model = networks.with_weights(TEXT)
    made = onnxqat.insert_qdq(model, str(table), data={"x": images()}, fast=True).model
    for node in made.graph.node:
        del node.metadata_props[:]
    for saturates in (True, False):
        monkeypatch.setattr(machine, "saturates", lambda saturates=saturates: saturates)
        foreign = onnxqat.validate(on_codes("QGemm"), on_codes("QGemm"), {"x": values("QGemm")}, use_torch=False)
        bundle = onnxqat.handoff(made, str(table), tmp_path / f"bundle{saturates}", data={"x": images()})
        found = onnxqat.lint(made, str(table)).findings
        assert any(f.code == "target-width" for f in found)
        counted = [r.message for r in foreign.remarks if "leave 16 bits" in r.message]
        assert counted
        told.append((counted, found, bundle.failures))
    assert told[0] == told[1]


def test_what_saturates_nowhere_is_the_same_in_both_kinds_of_kernels() -> None:
    """The count on codes is what sessions do: the option for exact kernels changes nothing where no sum was counted."""
    kind = "QLinearMatMul"
    model, x = on_codes(kind), values(kind)
    (weight,) = (i for i in model.graph.initializer if i.name == "w")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) // 2, "w"))
    assert saturated_sums.watch(io.load(model)) == saturated_sums.Watched()
    default = Session(io.load(model), optimize=True).run({"x": x})["y"]
    np.testing.assert_array_equal(default, networks.session(model, x)[0])


def _remark(report: onnxqat.validation.result.ValidationReport) -> str:
    return next((r.message for r in report.remarks if "16 bits" in r.message), "")
