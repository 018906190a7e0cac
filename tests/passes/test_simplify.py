"""simplify: onnxsim's result only where it is the same function."""

import sys

import numpy as np
import onnx
import pytest

from onnxqat.errors import ModelError, QatError
from onnxqat.graph import io, qdq
from onnxqat.passes import simplify
from onnxqat.passes.simplify import Simplify
from tests.passes.checks import compare_outputs, parse
from tests.passes.quantized import quantized

FOLDABLE = """g (float[2,6] x) => (float[2,3,2] y) <int64[1] r = {2}, int64[2] t = {3, 2}> {
    s = Concat <axis = 0> (r, t) u = Reshape(x, s) y = Relu(u) }"""

onnxsim = pytest.importorskip("onnxsim")


def test_shape_arithmetic_is_folded() -> None:
    model = parse(FOLDABLE)
    model.metadata_props.add(key="k", value="v")
    result = Simplify().run(model)
    assert result.changed
    assert "Concat" not in [n.op_type for n in result.model.graph.node]
    assert result.model.metadata_props[0].value == "v"
    compare_outputs(model, result.model, 1e-6)
    assert not Simplify().run(result.model).changed


def test_quantizers_survive() -> None:
    model = quantized()
    result = Simplify().run(model).model
    assert qdq.is_quantized(io.load(result))
    compare_outputs(model, result, 1e-5)


def break_numbers(model: onnx.ModelProto) -> onnx.ModelProto:
    next(n for n in model.graph.node if n.op_type == "Relu").op_type = "Abs"
    return model


def break_names(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.output[0].name = model.graph.node[-1].output[0] = "z"
    return model


def break_quantizers(model: onnx.ModelProto) -> onnx.ModelProto:
    node = next(n for n in model.graph.node if n.op_type == "Relu")
    scale = onnx.numpy_helper.from_array(np.asarray(0.1, np.float32), "scale")
    model.graph.initializer.append(scale)
    last = len(model.graph.node)
    node.output[0], name = "before", node.output[0]
    model.graph.node.insert(last, onnx.helper.make_node("QuantizeLinear", ["before", "scale"], ["codes"]))
    model.graph.node.append(onnx.helper.make_node("DequantizeLinear", ["codes", "scale"], [name]))
    return model


@pytest.mark.parametrize("damage", [break_numbers, break_names, break_quantizers])
def test_a_changed_function_is_refused(damage, monkeypatch: pytest.MonkeyPatch) -> None:
    def simplify_badly(model: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return damage(copy), True

    monkeypatch.setattr(onnxsim, "simplify", simplify_badly)
    with pytest.raises(QatError) as caught:
        Simplify().run(parse(FOLDABLE))
    assert caught.value.code == "simplify-changed-function"


def test_missing_onnxsim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxsim", None)
    with pytest.raises(QatError, match="simplify") as caught:
        Simplify().run(parse(FOLDABLE))
    assert caught.value.code == "dependency-missing"


def test_model_that_runs_on_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplify, "SIZES", (1,))
    text = FOLDABLE.replace("float[2,6]", "float[N,6]")
    with pytest.raises(ModelError) as caught:
        Simplify().run(parse(text))
    assert caught.value.code == "model-not-runnable"
    assert Simplify({"x": (2, 6)}).run(parse(text)).changed


@pytest.mark.parametrize("name", ["resnet20_cifar10", "basic_pitch"])
def test_real_models(shared, name: str) -> None:
    model = io.load(shared / "data" / "models" / f"{name}.onnx")
    result = Simplify().run(model)
    assert result.changed
    assert [v.name for v in result.model.graph.outputs] == [v.name for v in model.graph.outputs]
