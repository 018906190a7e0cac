"""Vendors' files of ranges say the same numbers as the Q/DQ pairs."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import yaml

from onnxqat.deployment.deploy import float_form
from onnxqat.deployment.forms import _base, aimet_encodings, rknn_quantization, snpe_overrides, tensorrt_calibration
from onnxqat.deployment.ranges import TensorRange, tensor_ranges
from onnxqat.graph import io
from onnxqat.numerics import dequantize
from tests.validation import tiny


@pytest.fixture(scope="module")
def u8() -> list[TensorRange]:
    return tensor_ranges(io.load(tiny.pair()[1]))


@pytest.fixture(scope="module")
def s8() -> list[TensorRange]:
    return tensor_ranges(io.load(tiny.pair(symmetric=True)[1]))


def values(tensor: TensorRange, code: int) -> np.ndarray:
    """What `code` of the storage type stands for, one number a channel."""
    codes = np.full(tensor.scales.shape, code)
    return np.atleast_1d(dequantize(codes if tensor.qparams.axis is not None else codes[0], tensor.qparams))


def test_names_are_those_of_the_float_model(u8: list[TensorRange]) -> None:
    graph = float_form(io.load(tiny.pair()[1])).graph
    known = (
        {str(v.name) for v in graph.inputs} | set(graph.initializers) | {str(o.name) for n in graph for o in n.outputs}
    )
    assert {r.name for r in u8} <= known
    assert {"image", "logits", "conv1_w"} <= {r.name for r in u8}
    assert not any(r.name == "conv1_b" for r in u8)


@pytest.mark.parametrize("symmetric", [False, True])
def test_encodings_give_the_same_values(symmetric: bool, u8: list[TensorRange], s8: list[TensorRange]) -> None:
    ranges = s8 if symmetric else u8
    content = json.loads(aimet_encodings.Form().text(ranges))
    assert content["version"] == "1.0.0"
    rows = {e["name"]: e for e in content["activation_encodings"] + content["param_encodings"]}
    old = json.loads(snpe_overrides.Form().text(ranges))
    older = old["activation_encodings"] | old["param_encodings"]
    assert set(rows) == set(older) == {r.name for r in ranges}
    for tensor in ranges:
        row = rows[tensor.name]
        unsigned = 200
        expected = values(tensor, unsigned - (128 if tensor.signed else 0))
        assert np.allclose((unsigned + np.array(row["offset"])) * np.array(row["scale"]), expected, rtol=1e-6)
        assert row["enc_type"] == ("PER_TENSOR" if tensor.qparams.axis is None else "PER_CHANNEL")
        assert row["is_sym"] is tensor.signed
        assert [e["scale"] for e in older[tensor.name]] == row["scale"]
        low = values(tensor, tensor.qparams.qtype.quant_min)
        assert np.allclose([e["min"] for e in older[tensor.name]], low, rtol=1e-6)


def test_calibration_cache_holds_the_bits_of_the_scales(u8: list[TensorRange], s8: list[TensorRange]) -> None:
    form = tensorrt_calibration.Form()
    assert "symmetric int8" in form.accepts(u8)
    assert form.accepts(s8) == ""
    header, *lines = form.text(s8).splitlines()
    assert header == tensorrt_calibration.HEADER
    found = dict(line.rsplit(": ", 1) for line in lines)
    for tensor in (r for r in s8 if r.role == "activation"):
        assert struct.unpack(">f", bytes.fromhex(found[tensor.name]))[0] == tensor.scales[0]
    assert len(found) == sum(r.role == "activation" for r in s8)


def test_rknn_codes_are_signed(u8: list[TensorRange]) -> None:
    found = yaml.safe_load(rknn_quantization.Form().text(u8))["quantize_parameters"]
    tensor = next(r for r in u8 if r.name == "image")
    row = found["image"]
    assert row["zero_point"][0] == int(tensor.zero_points[0]) - 128
    assert (-128 - row["zero_point"][0]) * row["scale"][0] == pytest.approx(row["min"][0], rel=1e-6)
    assert (127 - row["zero_point"][0]) * row["scale"][0] == pytest.approx(row["max"][0], rel=1e-6)


def test_a_form_belongs_to_its_compilers() -> None:
    def files(*lineage: str) -> set[str]:
        return {form.file for form in _base.forms_for(lineage)}

    assert files("openvino-cpu") == {"encodings.json"}
    assert files("qnn-htp", "onnxruntime-qnn") == {"encodings.json", "snpe_overrides.json"}
    assert files("tensorrt") == {"encodings.json", "tensorrt_calibration.cache"}
    assert files("rknn") == {"encodings.json", "rknn.quantization.cfg"}
