"""Weights are rounded on the data by default, where there are enough of them to tell that it helps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat.errors import DataError, ModelError
from onnxqat.graph import notes
from onnxqat.insertion import rounding_choice, weight_choice
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.placement.table_overrides import Overrides
from tests.passes.checks import ort_run

TEXTS = {
    "conv": """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 12, 5, 5] x) => (float[N, 8, 5, 5] y) { y = Conv(x, w, b) }""",
    "gemm": """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 12] x) => (float[N, 8] y) { y = Gemm<transB = 1>(x, w, b) }""",
    "matmul": """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 4, 12] x) => (float[N, 4, 8] y) { y = MatMul(x, w) }""",
    "stack": """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 4, 12] x) => (float[2, N, 4, 8] y) {
            s = Constant<value_ints = [0]> ()
            u = Unsqueeze(x, s)
            y = MatMul(u, w)
        }""",
    "transposed": """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 12, 5, 5] x) => (float[N, 8, 9, 9] y) { y = ConvTranspose<strides = [2, 2]>(x, w, b) }""",
}
SHAPES = {
    "conv": (8, 12, 1, 1),
    "gemm": (8, 12),
    "matmul": (12, 8),
    "stack": (2, 1, 12, 8),
    "transposed": (12, 8, 1, 1),
}
SIZES = {"conv": (12, 5, 5), "gemm": (12,), "matmul": (4, 12), "stack": (4, 12), "transposed": (12, 5, 5)}


def network(kind: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXTS[kind])
    for name, shape in (("w", SHAPES[kind]), ("b", (8,))):
        if name == "w" or kind not in ("matmul", "stack"):
            model.graph.initializer.append(
                onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
            )
    return model


def samples(kind: str, count: int, seed: int = 1) -> np.ndarray:
    """Inputs that go together: errors of one can be made up for by others."""
    rng = np.random.default_rng(seed)
    size = SIZES[kind]
    axis = 1 if kind in ("conv", "transposed") else len(size)
    common = rng.standard_normal((count, *size)).mean(axis=axis, keepdims=True) * 4
    return (common + 0.3 * rng.standard_normal((count, *size)) + 1).astype(np.float32)


def weights_of(model: onnx.ModelProto) -> np.ndarray:
    return next(onnx.numpy_helper.to_array(i) for i in model.graph.initializer if i.name == "w")


def weights(model: onnx.ModelProto) -> np.ndarray:
    return weights_of(StripQdq().run(model).model)


@pytest.mark.parametrize("kind", list(TEXTS))
def test_rounding_on_data_is_the_default(kind: str) -> None:
    model, data = network(kind), {"x": samples(kind, 128)}
    overrides = Overrides(activation_type="uint16")
    options = {"data": data, "overrides": overrides, "guard": False}
    fresh = {"x": samples(kind, 64, seed=2) * np.float32(0.7)}  # inside the ranges that calibration saw
    wanted = ort_run(model, fresh)["y"]
    errors = {}
    for rounding in ("nearest", "auto"):
        made = onnxqat.insert_qdq(model, rounding=rounding, **options).model
        errors[rounding] = float(np.square(ort_run(made, fresh)["y"] - wanted).mean())
    assert errors["auto"] < 0.9 * errors["nearest"]


def test_narrow_weights_of_a_model_in_memory_stay() -> None:
    """Training would have no file of the float model to take for its teacher."""
    made = onnxqat.insert_qdq(
        network("conv"), data={"x": samples("conv", 128)}, overrides=Overrides(weight_bits=4), guard=False
    )
    np.testing.assert_array_equal(weights(made.model), weights_of(network("conv")))
    assert any('rounding="gptq"' in remark.message for remark in made.remarks)
    assert all(entry.key != notes.ROUNDED_BITS for entry in made.model.metadata_props)


def test_narrow_weights_of_a_file_are_rounded_on_the_data(tmp_path: Path) -> None:
    path = tmp_path / "float.onnx"
    onnx.save(network("conv"), path)
    options = {"data": {"x": samples("conv", 128)}, "overrides": Overrides(weight_bits=4), "guard": False}
    made = onnx.load(onnxqat.insert_qdq(path, **options).model)
    assert not np.array_equal(weights(made), weights_of(network("conv")))
    assert {entry.key: entry.value for entry in made.metadata_props}[notes.ROUNDED_BITS] == "4"


@pytest.mark.parametrize("bits", [2, 4])
def test_narrow_weights_stay_near_the_float_ones(bits: int) -> None:
    """Training starts from them: each is within its code, and most are as they were."""
    model = network("conv")
    options = {"data": {"x": samples("conv", 128)}, "guard": False}
    overrides = Overrides(weight_bits=bits)
    made, fast = (
        onnxqat.insert_qdq(model, overrides=overrides, rounding=name, **options).model
        for name in ("compensated", "nearest")
    )
    fresh = {"x": samples("conv", 64, seed=2)}
    noise = [np.square(ort_run(m, fresh)["y"] - ort_run(model, fresh)["y"]).mean() for m in (made, fast)]
    assert noise[0] < 0.8 * noise[1]
    changed = weights(made) != weights_of(model)
    assert 0 < changed.mean() < 0.6


def test_few_samples_and_fast_leave_weights() -> None:
    model = network("conv")
    for count, options in ((8, {}), (128, {"fast": True})):
        made = onnxqat.insert_qdq(model, data={"x": samples("conv", count)}, **options).model
        np.testing.assert_array_equal(weights(made), weights_of(model))


def test_gptq_is_compensated_rounding() -> None:
    model, data = network("conv"), {"x": samples("conv", 128)}
    made = [
        onnxqat.insert_qdq(model, data=data, rounding=name, overrides=Overrides(weight_bits=4), guard=False).model
        for name in ("gptq", "compensated")
    ]
    np.testing.assert_array_equal(weights(made[0]), weights(made[1]))
    assert not np.array_equal(weights(made[0]), weights_of(model))


def test_bias_correction_with_nearest_codes() -> None:
    """The mean error goes, and weights stay; without it, rounding on data leaves biases."""
    model, data = network("conv"), {"x": samples("conv", 128)}
    options = {"data": data, "overrides": Overrides(weight_bits=3), "guard": False}
    fresh = {"x": samples("conv", 64, seed=2)}
    wanted = ort_run(model, fresh)["y"]

    def made(**choice: object) -> tuple[onnx.ModelProto, float]:
        result = onnxqat.insert_qdq(model, **options, **choice).model
        return result, float(np.abs((ort_run(result, fresh)["y"] - wanted).mean(axis=(0, 2, 3))).max())

    (_, error), (corrected, less) = made(rounding="nearest"), made(rounding="nearest", bias_correction=True)
    np.testing.assert_array_equal(weights(corrected), weights_of(model))
    assert less < 0.2 * error
    rounded, error = made(rounding="gptq", bias_correction=False)
    assert not np.array_equal(weights(rounded), weights_of(model))
    _, less = made(rounding="gptq")
    assert less < 0.2 * error


@pytest.mark.parametrize("choice", [{"rounding": "gptq"}, {"bias_correction": True, "rounding": "nearest"}])
def test_what_is_asked_for_needs_data(choice: dict[str, object]) -> None:
    with pytest.raises(DataError, match="no data"):
        onnxqat.insert_qdq(network("conv"), "tensorrt-int4", **choice)


def test_the_constant_of_an_add_is_the_bias_of_a_matmul() -> None:
    model = network("matmul")
    del model.graph.node[:]
    model.graph.node.extend(
        onnx.parser.parse_graph("g (float[N, 4, 12] x) => (float[N, 4, 8] y) { z = MatMul(x, w)\n y = Add(b, z) }").node
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(8, np.float32), "b"))
    made = onnxqat.insert_qdq(
        model, "tensorrt-int4", data={"x": samples("matmul", 128)}, rounding="nearest", bias_correction=True
    )
    fresh = {"x": samples("matmul", 64, seed=2)}
    error = (ort_run(made.model, fresh)["y"] - ort_run(model, fresh)["y"]).mean(axis=(0, 1))
    plain = onnxqat.insert_qdq(model, "tensorrt-int4").model
    assert (
        np.abs(error).max()
        < 0.2 * np.abs((ort_run(plain, fresh)["y"] - ort_run(model, fresh)["y"]).mean(axis=(0, 1))).max()
    )


def deep(layers: int = 6, width: int = 24) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    lines, value = [], "x"
    for i in range(layers):
        lines += [f"h{i} = MatMul({value}, w{i})", f"r{i} = Relu(h{i})"]
        value = f"r{i}"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[N, {width}] x) => (float[N, {width}] {value}) {{ '
        + "\n".join(lines)
        + " }"
    )
    for i in range(layers):
        values = rng.standard_normal((width, width)) * np.sqrt(2 / width)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), f"w{i}"))
    return model


@pytest.mark.parametrize("rounding", ["gptq", "auto"])
@pytest.mark.parametrize("count", [40, 512])
def test_layers_take_turns_where_that_helps_on_other_data(
    rounding: weight_choice.Rounding, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few samples, layers in turn learn by heart what those in front of them lost."""
    onnx.save(deep(), tmp_path / "deep.onnx")
    compared = []
    best = rounding_choice._Comparison.best

    def watched(comparison: Any, candidates: Sequence[Any]) -> Any:
        taken = best(comparison, candidates)
        noise = []
        for candidate in candidates:
            model = candidate.model.clone()
            comparison.insert(model, [], candidate.grids)
            proto, name = ir.to_proto(model), str(model.graph.outputs[0].name)
            noise.append(
                sum(
                    float(np.square(ort_run(proto, feeds)[name] - ort_run(deep(), feeds)[name]).sum())
                    for feeds in comparison.held
                )
            )
        compared.append((noise, candidates.index(taken)))
        return taken

    monkeypatch.setattr(rounding_choice._Comparison, "best", watched)
    data = {"x": np.random.default_rng(1).standard_normal((count, 24)).astype(np.float32)}
    onnxqat.insert_qdq(
        tmp_path / "deep.onnx", data=data, overrides=Overrides(weight_bits=4), rounding=rounding, guard=False,
        equalize=False, output=tmp_path / "made.onnx",
    )  # fmt: skip
    [(noise, taken)] = compared
    assert len(noise) == (2 if rounding == "gptq" else 3)
    assert len(set(noise)) == len(noise)
    assert noise[taken] == min(noise)


@pytest.mark.parametrize(
    ("bits", "node_bits", "ways"),
    [
        (4, ("node_1", 3, 8), 3),
        (4, ("node_1", 2, 8), 3),
        (8, ("node_1", 3, 8), 3),
        (3, ("node_1", 8, 8), 2),
        (2, ("node_1", 4, 8), 2),
        (4, ("node_1", 4, 3), 2),
    ],
)
def test_single_layers_of_few_bits_take_turns_too(
    bits: int, node_bits: tuple[str, int, int], ways: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training follows only where most weights, or the activations, have few bits; such weights are rounded alone."""
    model = deep()
    for number, node in enumerate(node for node in model.graph.node if node.op_type == "MatMul"):
        node.name = f"node_{number}"
    onnx.save(model, tmp_path / "deep.onnx")
    compared = []
    best = rounding_choice._Comparison.best

    def watched(comparison: Any, candidates: Sequence[Any]) -> Any:
        compared.append(len(candidates))
        return best(comparison, candidates)

    monkeypatch.setattr(rounding_choice._Comparison, "best", watched)
    data = {"x": np.random.default_rng(1).standard_normal((40, 24)).astype(np.float32)}
    onnxqat.insert_qdq(
        tmp_path / "deep.onnx", data=data, overrides=Overrides(weight_bits=bits, node_bits=(node_bits,)),
        guard=False, equalize=False, output=tmp_path / "made.onnx",
    )  # fmt: skip
    assert compared == [ways]


def test_layers_are_rounded_alone_where_nothing_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quantized model that onnxruntime does not run is still written; the trial says that it was not run."""

    def refuse(*_: Any) -> None:
        raise ModelError("model-not-runnable", "onnxruntime has no such operator")

    monkeypatch.setattr(rounding_choice._Comparison, "best", refuse)
    data = {"x": np.random.default_rng(1).standard_normal((40, 24)).astype(np.float32)}
    options = {"data": data, "overrides": Overrides(weight_bits=4), "guard": False, "equalize": False}
    made = onnxqat.insert_qdq(deep(2), rounding="gptq", **options).model
    monkeypatch.setattr(rounding_choice, "_turns", lambda model, placements, insert: None)
    alone = onnxqat.insert_qdq(deep(2), rounding="gptq", **options).model
    assert [i.raw_data for i in made.graph.initializer] == [i.raw_data for i in alone.graph.initializer]
