"""Codes that go from one grid to another, alone or where branches are joined."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
import torch

from onnxqat import to_integer, to_torch
from onnxqat.bridge.integer.conversion import Requantization

JOINED = {
    "alone": "w = Identity(u)",
    "relu": "w = Relu(u)",
    "clip": "w = Clip(u, low, high)",
    "moved": "p = Relu(u) q = MaxPool<kernel_shape = [2, 2]>(p) w = Transpose<perm = [0, 1, 3, 2]>(q)",
    "concat": "w = Concat<axis = 1>(u, v)",
    "concat, relu": "p = Concat<axis = 1>(u, v) w = Relu(p)",
    "reflected": 'p = Pad<mode = "reflect">(u, pads) w = Concat<axis = 1>(p, p)',
    "largest": "w = Max(u, v)",
    "where": "w = Where(chosen, u, v)",
    "scattered": "w = ScatterElements<axis = 1>(u, places, v)",
    "scattered slices": "w = ScatterND(u, rows, v)",
}
"""Ways from two quantized tensors, ``u`` and ``v``, to one that is quantized anew."""


def graph(middle: str, scales: tuple[float, float, float], kind: str = "uint8") -> onnx.ModelProto:
    """Two tensors on grids of their own, `middle`, and a third grid behind it."""
    s, t, r = scales
    zero = {"uint8": (131, 119, 125), "int8": (3, -9, -3), "int16": (3, -9, -3)}[kind]
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : {21 if kind == "int16" else 17}]>
    one (float[2, 3, 6, 6] x, float[2, 3, 6, 6] m) => (float[a, b, c, d] y)
    <float s = {{{s}}}, {kind} z = {{{zero[0]}}}, float t = {{{t}}}, {kind} o = {{{zero[1]}}}, float r = {{{r}}},
    {kind} n = {{{zero[2]}}}, float low = {{-0.71}}, float high = {{1.13}}, int64[1, 1, 1, 1] at = {{2}},
    int64[8] pads = {{0, 0, 1, 2, 0, 0, 3, 1}}, int64[2, 1] rows = {{1, 0}}, float[1, 3, 1, 1] half = {{1, -1, 1}}> {{
        a = QuantizeLinear(x, s, z) u = DequantizeLinear(a, s, z)
        b = QuantizeLinear(m, t, o) v = DequantizeLinear(b, t, o)
        l = Shape(v) places = Expand(at, l) zero = Sub(high, high) chosen = Greater(half, zero)
        {middle}
        d = QuantizeLinear(w, r, n) y = DequantizeLinear(d, r, n) }}""")
    onnx.checker.check_model(model)
    return model


def images() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(2, 3, 6, 6)).astype(np.float32)


def session(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # which makes one pair of two
    found = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(found.run(None, {"x": x, "m": -x})[0])


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("middle", JOINED.values(), ids=JOINED.keys())
def test_shifts_give_what_the_file_says_of_powers_of_two(middle: str, kind: str) -> None:
    """Quotients of powers of two are exact in float, so ties are ties, and half to even is the file's own rounding."""
    model, x = graph(middle, (2.0**-7, 2.0**-4, 2.0**-5), kind), images()
    expected = session(model, x)
    assert len(np.unique(expected)) > 8
    for engine in ("torch", "numpy"):
        found = to_integer(model, arithmetic="shift", rounding="half-even", engine=engine)  # type: ignore[arg-type]
        assert [kernel for _, kernel in found.kernels] == ["Requantization"]
        assert found.float_operators() == []
        np.testing.assert_array_equal(found.run({"x": x, "m": -x}).outputs["y"], expected)


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16"])
@pytest.mark.parametrize("middle", JOINED.values(), ids=JOINED.keys())
def test_multipliers_round_within_a_step_of_the_file(middle: str, kind: str) -> None:
    model, x = graph(middle, (0.0071, 0.031, 0.0213), kind), images()
    expected = session(model, x)
    codes = []
    for engine in ("torch", "numpy"):
        found = to_integer(model, arithmetic="fixed-point", engine=engine).run({"x": x, "m": -x})  # type: ignore[arg-type]
        np.testing.assert_allclose(found.outputs["y"], expected, atol=0.0213 * 1.01)  # a tie falls the other way
        codes.append(found.codes["w"])
    np.testing.assert_array_equal(*codes)


def test_a_ratio_of_multipliers_is_that_of_requantize() -> None:
    """The formula of TensorFlow Lite's kernel, written out with Python's whole numbers."""
    s, r = np.float32(0.0071), np.float32(0.0213)
    x = (np.arange(216, dtype=np.float32).reshape(2, 3, 6, 6) - 110) * s
    found = to_integer(graph(JOINED["alone"], (float(s), 0.031, float(r))), arithmetic="fixed-point").run(
        {"x": x, "m": -x}
    )
    mantissa, exponent = np.frexp(float(s) / float(r))
    multiplier = round(mantissa * 2**31)
    expected = []
    for step in range(-110, 106):
        high = (step * multiplier + (1 << 30)) >> 31
        whole, rest = divmod(high, 2**-exponent)
        half = 2**-exponent / 2
        expected.append(whole + (rest > half or (rest == half and high >= 0)) + 125)
    np.testing.assert_array_equal(found.codes["w"].reshape(-1), expected)


def test_a_coarse_grid_ends_a_fine_one_in_any_arithmetic() -> None:
    """Ratios beyond the number of codes leave no int64: the largest and the smallest code are what is left."""
    x = images()
    for arithmetic in ("fixed-point", "shift"):
        model = graph(JOINED["alone"], (2.0**10, 1.0, 2.0**-20), "int16")
        found = to_integer(model, arithmetic=arithmetic).run({"x": x * 4096, "m": x}).codes["w"]
        np.testing.assert_array_equal(np.unique(found), [-(2**15), -3, 2**15 - 1])


@pytest.mark.parametrize("middle", [JOINED["concat, relu"], JOINED["clip"], JOINED["where"]])
def test_gradients_are_those_of_float_simulation(middle: str) -> None:
    model, x = graph(middle, (2.0**-7, 2.0**-4, 2.0**-5)), images()
    found = []
    for module in (to_torch(model), to_torch(model, arithmetic="shift")):
        given = torch.from_numpy(x).requires_grad_()
        module(given, -given).square().sum().backward()
        found.append([g for g in (given.grad, *(p.grad for p in module.parameters())) if g is not None])
    assert any(isinstance(m, Requantization) for m in module.modules())
    assert len(found[0]) > 2
    for expected, gradient in zip(*found, strict=True):
        # One code in a thousand is a tie, which shifts round up and the file to even.
        torch.testing.assert_close(gradient, expected, rtol=0.05, atol=0.05 * float(expected.abs().max()))


def test_pairs_with_the_same_grid_hold_no_requantization_and_sums_are_no_movement() -> None:
    same = to_integer(graph(JOINED["concat"], (0.02, 0.03, 0.02)), arithmetic="fixed-point")
    assert [kernel for _, kernel in same.kernels] == ["Requantization"]
    model = graph(JOINED["alone"], (0.02, 0.03, 0.02))
    model.graph.initializer[5].CopyFrom(onnx.numpy_helper.from_array(np.uint8(131), "n"))
    assert to_integer(model, arithmetic="fixed-point").kernels == []
    largest = graph(JOINED["largest"], (0.02, 0.03, 0.02))
    assert to_integer(largest, arithmetic="onnxruntime").float_operators() == ["w"]
    added = graph('w = ScatterElements<axis = 1, reduction = "add">(u, places, v)', (0.02, 0.03, 0.02))
    assert to_integer(added, arithmetic="fixed-point").float_operators() == ["w"]
