"""Vendors' files of ranges say the same numbers as the Q/DQ pairs."""

from __future__ import annotations

import dataclasses
import json
import struct

import numpy as np
import onnx_ir as ir
import pytest
import yaml

from onnxqat.deployment.deploy import float_form
from onnxqat.deployment.forms import (
    _base,
    aimet_encodings,
    mnn_compression,
    ncnn_table,
    rknn_quantization,
    snpe_overrides,
    tensorrt_calibration,
)
from onnxqat.deployment.forms import ranges as plain_ranges
from onnxqat.deployment.layer_ranges import ModelRanges, model_ranges
from onnxqat.deployment.ranges import TensorRange
from onnxqat.graph import io
from onnxqat.numerics import dequantize
from tests.validation import tiny


@pytest.fixture(scope="module")
def u8() -> ModelRanges:
    return ranges_of(io.load(tiny.pair()[1]))


@pytest.fixture(scope="module")
def s8() -> ModelRanges:
    return ranges_of(io.load(tiny.pair(symmetric=True)[1]))


def ranges_of(train: ir.Model) -> ModelRanges:
    return model_ranges(train, float_form(train))


def values(tensor: TensorRange, code: int) -> np.ndarray:
    """What `code` of the storage type stands for, one number a channel."""
    codes = np.full(tensor.scales.shape, code)
    return np.atleast_1d(dequantize(codes if tensor.qparams.axis is not None else codes[0], tensor.qparams))


def test_names_are_those_of_the_float_model(u8: ModelRanges) -> None:
    graph = float_form(io.load(tiny.pair()[1])).graph
    known = (
        {str(v.name) for v in graph.inputs} | set(graph.initializers) | {str(o.name) for n in graph for o in n.outputs}
    )
    assert {r.name for r in u8.tensors} <= known
    assert {"image", "logits", "conv1_w"} <= {r.name for r in u8.tensors}
    assert not any(r.name == "conv1_b" for r in u8.tensors)


@pytest.mark.parametrize("symmetric", [False, True])
def test_encodings_give_the_same_values(symmetric: bool, u8: ModelRanges, s8: ModelRanges) -> None:
    ranges = s8 if symmetric else u8
    content = json.loads(aimet_encodings.Form().text(ranges))
    assert content["version"] == "1.0.0"
    rows = {e["name"]: e for e in content["activation_encodings"] + content["param_encodings"]}
    old = json.loads(snpe_overrides.Form().text(ranges))
    older = old["activation_encodings"] | old["param_encodings"]
    assert set(rows) == set(older) == {r.name for r in ranges.tensors}
    for tensor in ranges.tensors:
        row = rows[tensor.name]
        unsigned = 200
        expected = values(tensor, unsigned - (128 if tensor.signed else 0))
        assert np.allclose((unsigned + np.array(row["offset"])) * np.array(row["scale"]), expected, rtol=1e-6)
        assert row["enc_type"] == ("PER_TENSOR" if tensor.qparams.axis is None else "PER_CHANNEL")
        assert row["is_sym"] is tensor.signed
        assert [e["scale"] for e in older[tensor.name]] == row["scale"]
        low = values(tensor, tensor.qparams.qtype.quant_min)
        assert np.allclose([e["min"] for e in older[tensor.name]], low, rtol=1e-6)


def test_calibration_cache_holds_the_bits_of_the_scales(u8: ModelRanges, s8: ModelRanges) -> None:
    form = tensorrt_calibration.Form()
    assert "symmetric int8" in form.accepts(u8)
    assert form.accepts(s8) == ""
    header, *lines = form.text(s8).splitlines()
    assert header == tensorrt_calibration.HEADER
    found = dict(line.rsplit(": ", 1) for line in lines)
    for tensor in s8.activations:
        assert struct.unpack(">f", bytes.fromhex(found[tensor.name]))[0] == tensor.scales[0]
    assert len(found) == len(s8.activations)


def test_rknn_codes_are_signed(u8: ModelRanges) -> None:
    found = yaml.safe_load(rknn_quantization.Form().text(u8))["quantize_parameters"]
    tensor = next(r for r in u8.tensors if r.name == "image")
    row = found["image"]
    assert row["zero_point"][0] == int(tensor.zero_points[0]) - 128
    assert (-128 - row["zero_point"][0]) * row["scale"][0] == pytest.approx(row["min"][0], rel=1e-6)
    assert (127 - row["zero_point"][0]) * row["scale"][0] == pytest.approx(row["max"][0], rel=1e-6)


def test_a_form_belongs_to_its_compilers() -> None:
    def files(*lineage: str) -> set[str]:
        return {form.file for form in _base.forms_for(lineage)}

    common = {"encodings.json", "ranges.json"}
    assert files("openvino-cpu") == common
    assert files("qnn-htp", "onnxruntime-qnn") == common | {"snpe_overrides.json"}
    assert files("tensorrt") == common | {"tensorrt_calibration.cache"}
    assert files("rknn") == common | {"rknn.quantization.cfg"}
    assert files("ncnn") == common | {"ncnn.table"}
    assert files("mnn") == common | {"mnn_compression.json"}


def test_layers_know_what_they_read_and_make(u8: ModelRanges) -> None:
    found = {layer.name: layer for layer in u8.layers}
    assert list(found) == ["Conv_conv1", "Conv_conv2", "Gemm_logits_float"]
    first, _, last = found.values()
    assert (first.output, first.made) == ("relu1", next(r for r in u8.tensors if r.name == "relu1"))
    assert (last.op_type, last.transposed, last.channels) == ("Gemm", True, tiny.CLASSES)
    assert last.data is not None
    assert last.data.name == "flat"


def test_plain_ranges_are_values_of_the_grid(u8: ModelRanges) -> None:
    content = json.loads(plain_ranges.Form().text(u8))
    assert set(content["tensors"]) == {r.name for r in u8.tensors}
    for tensor in u8.tensors:
        row = content["tensors"][tensor.name]
        for end, code in zip(("min", "max"), row["codes"], strict=True):
            assert np.allclose(row[end], values(tensor, code), rtol=1e-6)
        assert np.allclose((row["codes"][0] - np.array(row["zero_point"])) * row["scale"], row["min"], rtol=1e-6)
    assert content["layers"][0] == {
        "node": "Conv_conv1",
        "op_type": "Conv",
        "input": "image",
        "weight": "conv1_w",
        "output": "relu1",
    }


def read_table(text: str) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Factors of inputs and of weights, as ncnn2int8.cpp reads them: by the pattern in the first word."""
    rows = {key: [float(f) for f in factors] for key, *factors in (line.split(" ") for line in text.splitlines())}
    weights = {key: row for key, row in rows.items() if "_param_" in key}
    return {key: row for key, row in rows.items() if key not in weights}, weights


def test_ncnn_table_holds_the_inverse_of_the_scales(u8: ModelRanges, s8: ModelRanges) -> None:
    form = ncnn_table.Form()
    assert "'image' is quantized otherwise" in form.accepts(u8)
    assert form.accepts(s8) == ""
    data, weights = read_table(form.text(s8))
    assert list(data) == [layer.name for layer in s8.layers]
    for layer in s8.layers:
        assert layer.data is not None
        row = np.array(weights[f"{layer.name}_param_0"])
        assert np.array_equal((1 / row).astype(np.float32), np.broadcast_to(layer.weight.scales, row.shape))
        assert len(row) == layer.weight_shape[0]
        assert np.float32(1 / data[layer.name][0]) == layer.data.scales[0]


@pytest.mark.parametrize(
    ("changed", "factors"),
    [
        ({}, 8),
        ({"group": 8, "weight_shape": (8, 1, 3, 3)}, 8),
        ({"group": 2, "weight_shape": (8, 4, 3, 3)}, 0),  # ncnn has one scale a group, the file one a channel
        ({"weight_shape": (8, 8, 3)}, 0),  # Convolution1D
        ({"op_type": "ConvTranspose"}, 0),
        ({"data": None}, 0),
    ],
)
def test_ncnn_has_lines_for_layers_with_an_int8_kernel(s8: ModelRanges, changed: dict, factors: int) -> None:
    layer = dataclasses.replace(s8.layers[1], **changed)
    data, weights = read_table(ncnn_table.Form().text(dataclasses.replace(s8, layers=(layer,))))
    assert [len(row) for row in weights.values()] == [factors] * bool(factors)
    assert len(data) == bool(factors)


def test_mnn_finds_layers_by_what_they_make(u8: ModelRanges, s8: ModelRanges) -> None:
    form = mnn_compression.Form()
    assert "'image' is quantized otherwise" in form.accepts(u8)
    assert form.accepts(s8) == ""
    (algorithm,) = json.loads(form.text(s8))["algo"]
    assert algorithm["type"] == "QUANTIZE"
    rows = {row["output"][0]["name"]: row for row in algorithm["quant_params"]["layer"]}
    assert list(rows) == ["relu1", "conv2"]
    for layer in s8.layers[:2]:
        row = rows[layer.output]
        assert layer.data is not None
        assert layer.made is not None
        assert row["input"][0]["name"] == layer.data.name
        entries = (row["weight"], row["input"], row["output"])
        for entry, tensor in zip(entries, (layer.weight, layer.data, layer.made), strict=True):
            assert np.array_equal(np.float32(entry[0]["scales"]), tensor.scales)
        assert len(row["weight"][0]["scales"]) == layer.channels
