"""Notes of a BatchNormalization that the graph is to compute: whatever changes the folded layer, its parts still fold to it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.graph import folded_batchnorm, io, query, walk
from onnxqat.passes import _base, _batchnorm_parts
from onnxqat.passes._base import Pass
from onnxqat.passes.cross_layer_equalization import CrossLayerEqualization
from onnxqat.passes.equalize_silu import EqualizeSilu
from onnxqat.passes.fold_affine import FoldAffine
from onnxqat.passes.fold_batchnorm import FoldBatchnorm
from onnxqat.passes.fold_input_affine import FoldInputAffine
from onnxqat.passes.high_bias_absorption import HighBiasAbsorption
from tests.passes.checks import parse

RNG = np.random.default_rng(0)
SIZES = np.float32([100, 1, 0.5, 0.1])


def text(between: str, kernel: str = "Conv", group: int = 1) -> onnx.ModelProto:
    """Two layers with a BatchNormalization each, constants as a layer scale behind the second, and `between`."""
    second = f"{kernel} <group = {group}>"
    constants = {
        "w": RNG.normal(size=(4, 2, 1, 1)) * SIZES.reshape(4, 1, 1, 1),
        "k": RNG.normal(size=4),
        "u": RNG.normal(size=(4, 4 // group, 1, 1)),
        "f": [[[3]], [[0.5]], [[-1]], [[2]]],
        "h": 0.25,
        "o": 0.5,
    } | {f"{b}{p}": RNG.normal(size=4) if p in "gbm" else RNG.uniform(0.5, 2, 4) for b in "ac" for p in "gbmv"}
    shapes = {n: f"[{','.join(map(str, np.shape(v)))}]" if np.shape(v) else "" for n, v in constants.items()}
    names = ", ".join(f"float{shape} {n}" for n, shape in shapes.items())
    model = parse(
        f"""g (float[N,2,3,3] x, {names}) => (float[N,4,3,3] z) {{
        ["first"] s = Conv(x, w, k) t = BatchNormalization(s, ag, ab, am, av) {between}
        ["second"] c = {second}(y, u) d = BatchNormalization(c, cg, cb, cm, cv) z = Mul(d, f) }}"""
    )
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(value), name))
    del model.graph.input[1:]
    return model


def noted(proto: onnx.ModelProto) -> ir.Model:
    """The model with its normalizations noted and folded."""
    model = io.load(proto)
    for scope in walk.scopes(model):
        for node in [n for n in scope if n.op_type == "BatchNormalization"]:
            assert _batchnorm_parts.note(scope, node) is None
    _base.rewrite(model, [FoldBatchnorm()])
    return model


SILU = EqualizeSilu({"t": (-SIZES, SIZES)})
EQUALIZED = CrossLayerEqualization(ranges={"y": SIZES})
WEIGHTS = CrossLayerEqualization()
ABSORBED = HighBiasAbsorption({"y": np.float32([0.5, 0, 1, 2])})


@pytest.mark.parametrize(("kernel", "group"), [("Conv", 1), ("Conv", 4), ("ConvTranspose", 1), ("ConvTranspose", 4)])
@pytest.mark.parametrize(
    ("made", "between"),
    [(WEIGHTS, "y = Relu(t)"), (EQUALIZED, "y = Relu(t)"), (SILU, "g = Sigmoid(t) y = Mul(t, g)"),
     (ABSORBED, "y = Relu(t)"), (FoldAffine(), "y = Relu(t)"), (FoldInputAffine(), "r = Relu(t) y = Mul(r, h)"),
     (FoldInputAffine(), "r = Relu(t) q = Mul(r, h) y = Add(q, o)")],
)  # fmt: skip
def test_parts_follow_what_changes_the_layer(made: Pass, between: str, kernel: str, group: int) -> None:
    if kernel == "ConvTranspose" and made in (SILU, ABSORBED):
        pytest.skip("neither pass goes through a ConvTranspose")
    model = noted(text(between, kernel, group))
    old = [_constants(layer) for layer in _layers(model)]
    assert _base.rewrite(model, [made]).changed
    new = [_constants(layer) for layer in _layers(model)]
    assert any(
        (a != b).any() for before, after in zip(old, new, strict=True) for a, b in zip(before, after, strict=True)
    )
    for layer in _layers(model):
        parts = layer.meta[_batchnorm_parts.NOTE]
        found = folded_batchnorm.fold(parts.weight, (*parts.vectors, parts.epsilon), parts.shape)
        for array, held in zip(found, _constants(layer), strict=True):
            # float32 arithmetic against float64, rounded
            np.testing.assert_allclose(array, held, rtol=1e-5, atol=1e-5 * np.abs(held).max())


def test_notes_go_from_a_copy_to_the_model() -> None:
    model = noted(text("y = Relu(t)"))
    assert _batchnorm_parts.are_noted(model)
    copy = model.clone()
    layer = _layers(copy)[1]
    weight, _ = _constants(layer)
    _batchnorm_parts.follow(layer, weight + 1, np.ones(4, np.float32))
    mine = _layers(model)[1]
    assert mine.meta[_batchnorm_parts.NOTE] is not layer.meta[_batchnorm_parts.NOTE]
    _batchnorm_parts.carry(copy, model)
    assert mine.meta[_batchnorm_parts.NOTE] is layer.meta[_batchnorm_parts.NOTE]


def _layers(model: ir.Model) -> list[ir.Node]:
    return [node for node in walk.nodes(model) if node.name in ("first", "second")]


def _constants(layer: ir.Node) -> list[np.ndarray]:
    found = [query.constant_array(value) for value in layer.inputs[1:]]
    return [array for array in found if array is not None]
