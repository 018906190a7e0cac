"""The quantizer module: bits, gradients, states."""

import copy
import dataclasses
import pickle
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from onnxqat import numerics
from onnxqat.bridge.kernels import reference
from onnxqat.bridge.quantizers.derived_fake_quantize import DerivedFakeQuantize
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize, State
from onnxqat.errors import DataError, UnsupportedError, UsageError
from onnxqat.types import QParams, QType, Role, Scheme

Floats = npt.NDArray[np.float32]
INT32 = QType("int32", -(2**31), 2**31 - 1)
# Dynamo instantiates the class itself when it traces an autograd function.
dynamo = pytest.mark.filterwarnings(
    "ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning"
)


def qparams(scale: Any = 0.05, zero_point: Any = 0, qtype: QType | None = None, axis: int | None = None) -> QParams:
    scale = np.asarray(scale, np.float32)
    codes = np.broadcast_to(np.asarray(zero_point, np.int64), scale.shape).copy()
    return QParams(scale, codes, qtype or QType.of(8, signed=True), axis)


def quantizer(*arguments: Any, role: Role = "activation", **keywords: Any) -> FakeQuantize:
    return FakeQuantize(qparams(*arguments, **keywords), tensor="x", role=role)


def tie_rich(shape: tuple[int, ...], q: QParams, seed: int = 0) -> Floats:
    """Values of which half lie at or one ulp from the middle between two codes, with some far outside."""
    random = np.random.default_rng(seed)
    scale = numerics.along_axis(q.scale, q.axis, len(shape))
    span = q.qtype.quant_max - q.qtype.quant_min
    steps = random.integers(-2 * span, 2 * span, shape) + 0.5
    ties = (steps * scale).astype(np.float32)
    ties = np.nextafter(ties, random.choice([-np.inf, np.inf], shape).astype(np.float32), dtype=np.float32)
    exact = (steps * scale).astype(np.float32)
    plain = (random.standard_normal(shape) * span / 3 * scale).astype(np.float32)
    x = np.choose(random.integers(0, 4, shape), [exact, ties, plain, plain]).astype(np.float32)
    x.reshape(-1)[:6] = [0.0, -0.0, np.inf, -np.inf, 1e-45, -1e38]
    return x


def bits(x: Tensor | Floats) -> npt.NDArray[np.int32]:
    array = x.detach().numpy() if isinstance(x, Tensor) else x
    return np.ascontiguousarray(array).view(np.int32)


def run_onnx(x: Floats, q: QParams, *, stored: bool = False) -> Floats:
    """Q -> (Clip) -> DQ in onnxruntime, or DQ of codes `x`."""
    kind = getattr(TensorProto, q.qtype.storage.upper())
    ends = [helper.make_tensor("zero", kind, q.zero_point.shape, q.zero_point.reshape(-1))]
    ends.append(numpy_helper.from_array(q.scale, "scale"))
    axis: Any = {} if q.axis is None else {"axis": q.axis}
    nodes, codes = [], "x"
    if not stored:
        nodes.append(helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["codes"], **axis))
        codes = "codes"
        if q.qtype.needs_clip:
            for name, value in (("low", q.qtype.quant_min), ("high", q.qtype.quant_max)):
                ends.append(helper.make_tensor(name, kind, (), [value]))
            nodes.append(helper.make_node("Clip", ["codes", "low", "high"], ["clipped"]))
            codes = "clipped"
    nodes.append(helper.make_node("DequantizeLinear", [codes, "scale", "zero"], ["y"], **axis))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind if stored else TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
        ends,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return cast(Floats, session.run(None, {"x": x})[0])


GRIDS = [
    *(QType.of(b, signed=s) for b in (2, 3, 4, 5, 6, 7, 8, 16) for s in (True, False)),
    QType.of(8, signed=True, narrow=True),
    QType("int4", -8, 7),
    QType("uint4", 0, 15),
]


@pytest.mark.parametrize("qtype", GRIDS, ids=lambda q: f"{q.storage}_{q.quant_min}_{q.quant_max}")
def test_bits_are_those_of_onnxruntime_and_numpy(qtype: QType) -> None:
    random = np.random.default_rng(qtype.bits)
    for axis, shape in ((None, ()), (0, (5,)), (1, (7,)), (2, (6,)), (-1, (6,))):
        zero = random.integers(qtype.quant_min, qtype.quant_max + 1, shape)
        q = qparams(random.uniform(0.003, 0.2, shape), zero, qtype, axis)
        x = tie_rich((5, 7, 6), q)
        y = FakeQuantize(q, tensor="x", role="activation")(torch.from_numpy(x))
        assert np.array_equal(bits(y), bits(numerics.fake_quantize(x, q)))
        assert np.array_equal(bits(y), bits(run_onnx(x, q)))


@pytest.mark.parametrize("zero_point", [0, 128, 37])
def test_bits_of_a_million_ties(zero_point: int) -> None:
    q = qparams(0.0123, zero_point, QType.of(8, signed=False))
    x = tie_rich((1_000_000,), q)
    y = FakeQuantize(q, tensor="x", role="activation")(torch.from_numpy(x))
    assert np.array_equal(bits(y), bits(run_onnx(x, q)))


def test_nan_stays_visible() -> None:
    x = torch.tensor([1.0, float("nan")])
    assert torch.isnan(quantizer()(x)).tolist() == [False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_computed_in_float32(dtype: torch.dtype) -> None:
    q = quantizer()
    x = torch.randn(64).to(dtype).requires_grad_()
    y = q(x)
    assert y.dtype == dtype
    assert torch.equal(y, q(x.float()).to(dtype))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype


def analytic(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, axis: int | None) -> Tensor:
    """LSQ as its authors write it, on autograd: clip, round with a straight-through gradient, rescale."""
    s, z = (reference.along_axis(v, axis, x.ndim) for v in (scale, zero.double()))
    v = torch.minimum(torch.maximum(x / s, low - z), high - z)
    return (v + (v.round() - v).detach()) * s


@pytest.mark.parametrize(("axis", "shape"), [(None, ()), (0, (4,)), (1, (5,)), (2, (6,)), (-1, (6,))])
@pytest.mark.parametrize("zero_point", [0, -128, 17])
def test_gradients_are_the_analytic_ones(axis: int | None, shape: tuple[int, ...], zero_point: int) -> None:
    random = np.random.default_rng(1)
    q = quantizer(random.uniform(0.005, 0.01, shape), zero_point, axis=axis)
    x = torch.randn(4, 5, 6, requires_grad=True)
    weight = torch.randn(4, 5, 6)
    (q(x) * weight).sum().backward()
    x64 = x.detach().double().requires_grad_()
    s64 = q.scale.detach().double().requires_grad_()
    expected: Any = (analytic(x64, s64, q.zero_point, -128, 127, axis) * weight).sum()
    expected.backward()
    assert x.grad is not None
    assert x64.grad is not None
    assert s64.grad is not None
    assert q.scale.grad is not None
    torch.testing.assert_close(x.grad.double(), x64.grad, rtol=0, atol=0)
    torch.testing.assert_close(q.scale.grad.double() / q.gradient_scale(x), s64.grad, rtol=1e-4, atol=1e-3)
    assert q.scale.grad.shape == shape


def test_scale_gradient_of_saturated_values_is_a_finite_difference() -> None:
    """Where every value saturates, x' is linear in the scale, so the difference quotient is exact."""
    q = quantizer(0.01, 3)
    x = torch.tensor([5.0, -5.0, 7.0])
    weight = torch.tensor([1.0, 10.0, 100.0])
    (q(x) * weight).sum().backward()
    with torch.no_grad():
        q.scale.add_(1e-3)
        above = (q(x) * weight).sum()
        q.scale.sub_(2e-3)
        below = (q(x) * weight).sum()
    assert q.scale.grad is not None
    slope = float(q.scale.grad) / q.gradient_scale(x)  # LSQ's factor on the gradient of the scale
    assert slope == pytest.approx(float(above - below) / 2e-3, rel=1e-3)
    assert slope == pytest.approx((127 - 3) * 101 + (-128 - 3) * 10)


def test_no_gradient_passes_a_saturated_value() -> None:
    q = quantizer(0.1)
    x = torch.tensor([100.0, -100.0, float("inf"), 1.0], requires_grad=True)
    q(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 0.0, 1.0]
    assert q.scale.grad is not None
    assert torch.isfinite(q.scale.grad)


def test_nothing_but_the_input_is_saved() -> None:
    x = torch.randn(1000, requires_grad=True)
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.untyped_storage().data_ptr() if tensor.numel() > 1 else 0)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        quantizer()(x)
    assert {p for p in saved if p} == {x.untyped_storage().data_ptr()}


def test_float_state_is_the_identity() -> None:
    q = quantizer()
    q.state = "float"
    x = torch.tensor([0.123, -0.0, float("nan"), float("inf"), 1e-45])
    assert np.array_equal(bits(q(x)), bits(x))


@pytest.mark.parametrize(
    ("state", "observes", "quantizes"),
    [
        ("float", False, False),
        ("calibrate", True, False),
        ("quantize", False, True),
        ("calibrate_quantized", True, True),
    ],
)
def test_states(state: State, observes: bool, quantizes: bool) -> None:
    q = quantizer()
    q.state = state
    x = torch.tensor([0.031, -0.4])
    assert torch.equal(q(x), x) is not quantizes
    assert torch.isfinite(q.observed_max).item() is observes


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_observed_range_gives_the_parameters_of_numerics(axis: int | None) -> None:
    batches = [torch.randn(4, 4, 4) for _ in range(3)]
    q = quantizer(np.ones(() if axis is None else 4), -5, axis=axis)
    q.state = "calibrate"
    for batch in batches:
        q(batch)
    parameter = q.scale
    q.apply_observed()
    joined = torch.stack(batches).numpy()
    others = None if axis is None else tuple(d for d in range(4) if d != axis % 3 + 1)
    low, high = joined.min(others), joined.max(others)
    expected = numerics.from_range(low, high, Scheme(q.qtype, symmetric=False, axis=axis))
    assert q.qparams().same(expected)
    assert q.scale is parameter, "an optimizer may hold the parameter"


def test_symmetry_follows_from_the_zero_point() -> None:
    assert quantizer(0.1, 0).symmetric
    assert not quantizer(0.1, 4).symmetric
    assert quantizer(0.1, 128, QType.of(8, signed=False)).symmetric
    assert not quantizer(0.1, 0, QType.of(8, signed=False)).symmetric
    assert not FakeQuantize(qparams(), tensor="x", role="weight", symmetric=False).symmetric


def test_short_scales_stay_short_while_they_learn() -> None:
    q = FakeQuantize(dataclasses.replace(qparams(), scale_bits=1), tensor="x", role="activation")
    q.observe(torch.tensor([-1.5, 1.5]))
    q.apply_observed()
    assert q.scale.item() == 2.0**-6
    with torch.no_grad():
        q.scale.mul_(1.1)
    assert q.effective_scale().item() == 2.0**-5
    assert q.qparams().scale == np.float32(2.0**-5)
    q(torch.tensor([0.3, 0.9])).sum().backward()
    assert q.scale.grad is not None
    assert q.scale.grad.item() != 0


def test_unobserved_and_non_finite_ranges_are_refused() -> None:
    q = quantizer()
    with pytest.raises(DataError, match="'x'") as error:
        q.apply_observed()
    assert error.value.code == "data-missing"
    q.observe(torch.tensor([1.0, float("nan")]))
    with pytest.raises(DataError) as error:
        q.apply_observed()
    assert error.value.code == "data-non-finite"


def test_set_qparams_refuses_another_grid() -> None:
    with pytest.raises(UsageError):
        quantizer().set_qparams(qparams(qtype=QType.of(4, signed=True)))


def test_qparams_are_what_forward_computes() -> None:
    q = quantizer([0.1, 0.3], [1, 2], axis=0)
    x = np.random.default_rng(0).standard_normal((2, 50)).astype(np.float32)
    assert np.array_equal(bits(q(torch.from_numpy(x))), bits(numerics.fake_quantize(x, q.qparams())))
    assert q.qparams().same(qparams([0.1, 0.3], [1, 2], axis=0))


def test_a_scale_that_turned_negative_counts_as_the_smallest_and_can_recover() -> None:
    q = quantizer(0.1)
    with torch.no_grad():
        q.scale.fill_(-0.1)
    y = q(torch.tensor([1.0, -1.0, 0.0]))
    assert torch.isfinite(y).all()
    assert float(q.qparams().scale) == reference.SMALLEST_SCALE
    (y * torch.tensor([-1.0, 1.0, 1.0])).sum().backward()
    assert q.scale.grad is not None
    assert float(q.scale.grad) < 0, "this loss falls as the scale grows"


class Layer(torch.nn.Module):
    """A linear layer with quantized input, weight and bias."""

    def __init__(self, stored_as: Literal["int32", "float"] = "int32") -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(4, 8, generator=generator))
        self.bias = torch.nn.Parameter(torch.randn(4, generator=generator))
        self.x = quantizer(0.02, 7)
        self.w = quantizer([0.01, 0.02, 0.03, 0.04], axis=0, role="weight")
        scale = self.x.qparams().scale * self.w.qparams().scale
        self.b = DerivedFakeQuantize(
            qparams(scale, 0, INT32, 0), activation=self.x, weight=self.w, tensor="b", stored_as=stored_as
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(self.x(x), self.w(self.weight), self.b(self.bias))


def test_derived_bias_has_the_bits_of_onnxruntime() -> None:
    layer = Layer()
    random = np.random.default_rng(0)
    q = layer.b.qparams()
    assert np.array_equal(q.scale, layer.x.qparams().scale * layer.w.qparams().scale)
    for size in (1.0, 1e3, 1e6, 1e12):
        bias = (random.standard_normal((4, 500)) * size).astype(np.float32)
        codes = numerics.quantize(bias, q)
        expected = run_onnx(codes.astype(np.int32), q, stored=True)
        assert np.array_equal(bits(layer.b(torch.from_numpy(bias))), bits(expected))


def test_large_codes_with_a_zero_point_saturate_exactly() -> None:
    q = qparams(0.5, 100, INT32)
    x = np.asarray([1e9, -1e9, 5e8, 2**30 - 64, 1e30], np.float32)
    y = FakeQuantize(q, tensor="x", role="bias")(torch.from_numpy(x))
    assert np.array_equal(bits(y), bits(numerics.fake_quantize(x, q)))


def test_derived_bias_follows_its_layer_and_has_no_parameters() -> None:
    layer = Layer()
    assert not list(layer.b.parameters())
    assert set(layer.state_dict()) == {"weight", "bias", "x.scale", "x.zero_point", "w.scale", "w.zero_point"}
    with torch.no_grad():
        layer.x.scale.mul_(3)
        layer.w.scale.mul_(0.7)
    assert np.array_equal(layer.b.qparams().scale, layer.x.qparams().scale * layer.w.qparams().scale)
    with pytest.raises(UsageError):
        layer.b.set_qparams(layer.b.qparams())


def test_derived_bias_of_a_wrong_shape_is_refused() -> None:
    layer = Layer()
    with pytest.raises(UnsupportedError):
        DerivedFakeQuantize(qparams(1.0, 0, INT32), activation=layer.x, weight=layer.w, tensor="b")


def test_every_learnable_parameter_gets_a_gradient() -> None:
    layer = Layer()
    layer(torch.randn(16, 8)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_are_whole(duplicate: Any) -> None:
    layer = Layer()
    layer.w.state = "calibrate_quantized"
    other = duplicate(layer)
    x = torch.randn(3, 8)
    assert torch.equal(other(x), layer(x))
    assert other.w.state == "calibrate_quantized"
    with torch.no_grad():
        other.x.scale.mul_(2)
    assert other.b.activation is other.x
    assert other.b.weight is other.w
    assert not np.array_equal(other.b.qparams().scale, layer.b.qparams().scale)


def test_state_dict_loads_strictly_before_the_first_forward() -> None:
    layer, other = Layer(), Layer()
    with torch.no_grad():
        layer.w.scale.mul_(1.5)
        layer.x.zero_point.add_(3)
    other.load_state_dict(layer.state_dict(), strict=True)
    x = torch.randn(3, 8)
    assert torch.equal(other(x), layer(x))


def test_autocast_leaves_quantizers_in_float32() -> None:
    layer = Layer()
    x = torch.randn(16, 8)
    expected = layer.w(layer.weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.w(layer.weight), expected)
        y = layer(x)
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


@dynamo
def test_compile_gives_the_same_bits_and_gradients() -> None:
    layer = Layer()
    x = torch.randn(16, 8)
    layer(x).square().sum().backward()
    expected = {name: p.grad for name, p in layer.named_parameters()}
    layer.zero_grad(set_to_none=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y = compiled(x)
    assert torch.equal(y, layer(x))
    y.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert torch.equal(cast(Tensor, parameter.grad), cast(Tensor, expected[name])), name


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_a_dynamic_batch(strict: bool) -> None:
    layer = Layer().eval()
    x = torch.randn(2, 8)
    batch = torch.export.Dim("batch", min=1, max=4096)
    with torch.no_grad():
        program = torch.export.export(layer, (x,), dynamic_shapes={"x": {0: batch}}, strict=strict)
    x = torch.randn(5, 8)
    assert torch.equal(program.module()(x), layer(x))
    assert not any("fake_quant" in str(node.target) for node in program.graph.nodes)


@dynamo
def test_observing_works_under_compile() -> None:
    q = quantizer()
    q.state = "calibrate_quantized"
    torch.compile(q, fullgraph=True, backend="aot_eager")(torch.tensor([-3.0, 5.0]))
    assert (float(q.observed_min), float(q.observed_max)) == (-3.0, 5.0)


@pytest.mark.parametrize("bits", [1, 2, 7, 8, 16, 23, 24])
def test_a_raised_scale_is_the_next_short_one(bits: int) -> None:
    """Down to the smallest subnormal number, and for scales that training has brought to 0 or below."""
    scale = np.concatenate([2.0 ** np.arange(-149, 127) * factor for factor in (1.0, 1.3, 1.999)]).astype(np.float32)
    wanted = numerics.shorten(scale, bits).astype(np.float32)
    assert np.array_equal(reference.raised(torch.from_numpy(scale), bits).numpy(), wanted)
    assert reference.raised(torch.tensor([0.0, -0.0, -3.0]), bits).tolist() == [reference.SMALLEST_SCALE] * 3
