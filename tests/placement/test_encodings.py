"""Encodings of other tools: what is written is read back, those tensors keep them, and mistakes are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat.compat import qparams as own
from onnxqat.deployment import ranges
from onnxqat.deployment.forms import aimet_encodings, snpe_overrides, tensorrt_calibration
from onnxqat.deployment.layer_ranges import ModelRanges
from onnxqat.errors import UsageError
from onnxqat.graph import qdq
from onnxqat.placement import given_encodings
from onnxqat.placement.table_overrides import Overrides
from tests.validation import tiny


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return tiny.write(None)


def quantized(model: onnx.ModelProto, backend: str, *files: Path, samples: int | None = 16, **options: Any) -> ir.Model:
    chosen = Overrides(encodings=tuple(map(str, files)), **options)
    data = None if samples is None else {"image": tiny.images(samples, seed=samples)}
    result = onnxqat.insert_qdq(model, backend, data=data, overrides=chosen, fast=True, guard=False)
    return ir.from_proto(result.model)


def parameters(model: ir.Model, role: str) -> dict[str, tuple[list[float], list[int], str]]:
    found = (q for q in qdq.quantizers(model, every=True) if q.role == role)
    return {
        q.tensor: (
            np.atleast_1d(q.qparams.scale).tolist(),
            np.atleast_1d(q.qparams.zero_point).tolist(),
            q.qparams.qtype.storage,
        )
        for q in found
    }


def of_ort(model: ir.Model) -> str:
    """As onnxruntime's ``TensorQuantOverrides``."""
    document = {}
    for role in ("activation", "weight"):
        for tensor, (scales, zeros, storage) in parameters(model, role).items():
            kind = storage.replace("uint", "QUInt").replace("int", "QInt") if "u" not in storage else "QUInt8"
            document[tensor] = [
                {"quant_type": kind, "scale": s, "zero_point": z} for s, z in zip(scales, zeros, strict=True)
            ]
    return json.dumps(document)


def written(model: ir.Model) -> ModelRanges:
    """What the forms write; none of these has a word about layers."""
    return ModelRanges(tuple(ranges.tensor_ranges(model)), ())


WRITERS: dict[str, tuple[str, Callable[[ir.Model], str], tuple[str, ...]]] = {
    "aimet": ("qnn-htp", lambda m: aimet_encodings.Form().text(written(m)), ("activation", "weight")),
    "snpe": ("qnn-htp", lambda m: snpe_overrides.Form().text(written(m)), ("activation", "weight")),
    "tensorrt": ("tensorrt", lambda m: tensorrt_calibration.Form().text(written(m)), ("activation",)),
    "own": ("onnxruntime-cpu", lambda m: json.dumps(own.split(m)[1]), ("activation", "weight")),
    "onnxruntime": ("onnxruntime-cpu", of_ort, ("activation", "weight")),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_written_is_read_back(model: onnx.ModelProto, tmp_path: Path, kind: str) -> None:
    backend, write, roles = WRITERS[kind]
    first = quantized(model, backend)
    file = tmp_path / "encodings.txt"
    file.write_text(write(first))
    other = quantized(model, backend, samples=3)
    again = quantized(model, backend, file, samples=3)
    for role in roles:
        assert parameters(again, role) == parameters(first, role)
    assert parameters(other, "activation") != parameters(first, "activation")


def test_where_all_activations_are_given_no_data_are_needed(model: onnx.ModelProto, tmp_path: Path) -> None:
    first = quantized(model, "onnxruntime-cpu")
    file = tmp_path / "clip_ranges.json"
    file.write_text(json.dumps(own.split(first)[1]))
    again = quantized(model, "onnxruntime-cpu", file, samples=None)
    assert parameters(again, "activation") == parameters(first, "activation")


@pytest.mark.parametrize(
    ("document", "scale", "zero_point"),
    [
        ({"image": {"min": -1.28, "max": 1.27, "bit": 8}}, 0.01, 128),
        ({"ppl-cuda": {"image": {"min": -1.28, "max": 1.27, "bit": 8, "type": "biased"}}}, 0.01, 128),
        ({"tensorrt": {"blob_range": {"image": 2.55}}}, 0.02, 128),
        ({"image": [{"rmin": 0.0, "rmax": 2.55}]}, 0.01, 0),
        ({"activation_encodings": {"image": [{"bitwidth": 8, "min": 0.0, "max": 2.55}]}}, 0.01, 0),
        ({"version": "2.0.0", "encodings": [{"name": "image", "output_dtype": "uint8", "y_scale": 0.5, "y_zero_point": 3}]}, 0.5, 3),
        ({"version": "2.0.0", "encodings": [{"name": "image", "output_dtype": "int8", "y_scale": 0.5}]}, 0.5, 128),
    ],
)  # fmt: skip
def test_forms_of_entries(model: onnx.ModelProto, tmp_path: Path, document: Any, scale: float, zero_point: int) -> None:
    file = tmp_path / "e.json"
    file.write_text(json.dumps(document))
    found = parameters(quantized(model, "onnxruntime-cpu", file, samples=4), "activation")["image"]
    assert found[0] == pytest.approx([scale], rel=1e-6)
    assert found[1:] == ([zero_point], "uint8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a file of encodings"),
        ("[1, 2]", "not a file of encodings"),
        ("{" * 100_000, "not a file of encodings"),
        ('{"activation_encodings": {"image": [{"bitwidth": 8}]}}', "is incomplete"),
        ("TRT-8601-EntropyCalibration2\\nimage: xyz", "is incomplete"),
        ('{"imag": {"min": 0, "max": 1}}', "no tensor of the model"),
        ('{"image": {"min": 0, "max": 1, "bit": 4}}', "4 bits, and the plan 8"),
        ('{"image": {"scale": [0.1, 0.2], "zero_point": [0, 0]}}', "2 channels, and the plan one scale"),
        ('{"image": {"scale": 0.1, "zero_point": 700}}', "outside of the codes"),
        ('{"image": {"scale": -0.1, "zero_point": 0}}', "finite and > 0"),
    ],
)
def test_mistakes_are_named(model: onnx.ModelProto, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "e.json"
    file.write_text(text.replace("\\n", "\n"))
    with pytest.raises(UsageError, match=message):
        quantized(model, "onnxruntime-cpu", file, samples=4)
    with pytest.raises(UsageError, match="cannot be read"):
        given_encodings.read([tmp_path / "none.json"])


def test_what_is_not_quantized_is_not_needed(model: onnx.ModelProto, tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    file.write_text(json.dumps({"logits": {"min": 0, "max": 1}}))
    data = {"image": tiny.images(4)}
    chosen = Overrides(encodings=(str(file),), exclude=("*",))
    result = onnxqat.insert_qdq(model, data=data, overrides=chosen, fast=True, guard=False)
    assert any("were not needed" in remark.message for remark in result.remarks)


def test_members_of_a_group_share_what_is_given(tmp_path: Path) -> None:
    """A Concat, whose inputs and output have one scale."""
    helper = onnx.helper
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="relu"),
        helper.make_node("Conv", ["a", "w"], ["b"], name="conv"),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1, name="concat"),
        helper.make_node("Conv", ["c", "v"], ["y"], name="last"),
    ]
    weights = {"w": np.ones((2, 2, 1, 1), np.float32), "v": np.ones((1, 4, 1, 1), np.float32)}
    graph = helper.make_graph(
        nodes,
        "group",
        [helper.make_tensor_value_info("x", 1, ["N", 2, 4, 4])],
        [helper.make_tensor_value_info("y", 1, ["N", 1, 4, 4])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = tmp_path / "e.json"
    file.write_text(json.dumps({"b": {"min": 0.0, "max": 5.1, "bit": 8}}))
    x = np.random.default_rng(0).standard_normal((4, 2, 4, 4)).astype(np.float32)
    chosen = Overrides(encodings=(str(file),))
    result = onnxqat.insert_qdq(proto, "onnxruntime-cpu", data={"x": x}, overrides=chosen, fast=True, guard=False)
    found = parameters(ir.from_proto(result.model), "activation")
    shared = [found[name] for name in ("a", "b", "c") if name in found]
    assert len(shared) >= 2, found
    assert all(each == shared[0] for each in shared), found


def test_scales_of_few_bits_that_are_given_are_not_searched(model: onnx.ModelProto, tmp_path: Path) -> None:
    """At 4 bits rounding on data chooses scales too, where they are its own to choose."""
    data = {"image": tiny.images(16)}

    def rounded(*files: Path) -> dict[str, Any]:
        chosen = Overrides(encodings=tuple(map(str, files)), weight_bits=4)
        made = onnxqat.insert_qdq(model, data=data, overrides=chosen, rounding="gptq", guard=False)
        return parameters(ir.from_proto(made.model), "weight")

    nearest = quantized(model, "onnxruntime-cpu", weight_bits=4)
    file = tmp_path / "e.json"
    file.write_text(json.dumps(own.split(nearest)[1]))
    assert rounded() != parameters(nearest, "weight")
    assert rounded(file) == parameters(nearest, "weight")
