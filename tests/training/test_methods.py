"""Training methods: what they change, and that every one of them obeys the base class."""

import copy
import pickle
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from onnxqat import numerics
from onnxqat.bridge.kernels import fastest
from onnxqat.bridge.quantizers.derived_fake_quantize import DerivedFakeQuantize
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.errors import UsageError
from onnxqat.graph.quantizer import Quantizer
from onnxqat.training import methods
from onnxqat.types import QParams, QType, Role

NAMES = methods.names()
INT32 = QType("int32", -(2**31), 2**31 - 1)


def qparams(scale: Any = 0.05, zero_point: int = 0, qtype: QType | None = None, axis: int | None = None) -> QParams:
    scale = np.asarray(scale, np.float32)
    return QParams(scale, np.full(scale.shape, zero_point, np.int64), qtype or QType.of(8, signed=True), axis)


def make(name: str, *arguments: Any, role: Role = "activation", **keywords: Any) -> FakeQuantize:
    return methods.method(name)(qparams(*arguments, **keywords), tensor="x", role=role)


def described(q: QParams, role: Role) -> Quantizer:
    value = ir.Value(name="x")
    return Quantizer(value, (ir.Value(name="y"),), None, None, (), q, role)


def test_names() -> None:
    assert {
        "fixed",
        "ema",
        "lsq",
        "lsq_plus",
        "pact",
        "dorefa",
        "dorefa_affine",
        "dsq",
        "tqt",
        "qdrop",
        "adaround",
    } == set(NAMES)
    with pytest.raises(UsageError, match="lsq-pluss") as error:
        methods.method("lsq-pluss")
    assert error.value.code == "name-unknown"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", [None, 1])
def test_every_method_computes_the_same_function(name: str, axis: int | None) -> None:
    q = make(name, 0.05 if axis is None else [0.1, 0.05, 0.02], 4, axis=axis).eval()
    x = torch.randn(5, 3, 7)
    expected = numerics.fake_quantize(x.numpy(), q.qparams())
    assert np.array_equal(q(x).detach().numpy().view(np.int32), expected.view(np.int32))
    q.state = "float"
    assert torch.equal(q(x), x)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("zero_point", [0, 4])
def test_every_learnable_parameter_of_every_method_learns(name: str, zero_point: int) -> None:
    q = make(name, zero_point=zero_point)
    q(8 * torch.randn(64, requires_grad=True)).square().sum().backward()  # some values are clipped
    for key, parameter in q.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)) is parameter.requires_grad, key


@pytest.mark.parametrize("name", NAMES)
def test_every_method_takes_parameters_and_copies(name: str) -> None:
    q = make(name, [0.125, 2.0], axis=0)
    new = qparams([0.25, 0.5], 5, axis=0)
    q.set_qparams(new)
    for other in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert other.qparams().same(new)


@pytest.mark.parametrize("name", NAMES)
def test_factory_builds_weights_and_biases(name: str) -> None:
    build = methods.factory(name)
    activation = build(described(qparams(), "activation"), None)
    weight = build(described(qparams([0.1, 0.2], axis=0), "weight"), None)
    assert isinstance(activation, methods.method(name))
    assert isinstance(weight, FakeQuantize)
    bias = build(described(qparams([0.005, 0.01], 0, INT32, 0), "bias"), (activation, weight))
    assert isinstance(bias, DerivedFakeQuantize)
    assert bias.activation is activation
    alone = build(described(qparams([0.005, 0.01], 0, INT32, 0), "bias"), None)
    assert not any(p.requires_grad for p in alone.parameters()), "there is nothing to learn on the grid of a bias"


@pytest.mark.parametrize(
    ("shape", "axis", "role", "features"),
    [
        ((8, 3, 5, 5), None, "weight", 600),
        ((8, 3, 5, 5), 0, "weight", 75),
        ((8, 3, 5, 5), 1, "weight", 200),
        ((8, 3, 5, 5), None, "activation", 75),
        ((8, 3, 5, 5), 1, "activation", 25),
        ((9,), None, "activation", 9),
    ],
)
def test_lsq_gradient_scale(shape: tuple[int, ...], axis: int | None, role: Role, features: int) -> None:
    scale = 0.05 if axis is None else np.full(shape[axis], 0.05)
    lsq = make("lsq", scale, axis=axis, role=role)
    x, weight = torch.randn(shape), torch.randn(shape)
    (lsq(x) * weight).sum().backward()
    plain = lsq.scale.detach().clone().requires_grad_()
    (fastest.apply(x, plain, lsq.zero_point, lsq.quant_min, lsq.quant_max, axis, 1.0) * weight).sum().backward()
    assert lsq.scale.grad is not None
    assert plain.grad is not None
    torch.testing.assert_close(lsq.scale.grad, plain.grad / (features * 127) ** 0.5)


@pytest.mark.parametrize(
    ("qtype", "zero_point", "levels"),
    [
        (QType.of(4, signed=True), 0, 7),
        (QType.of(4, signed=False), 0, 15),
        (QType.of(8, signed=False), 128, 127),
        (QType.of(8, signed=True), -128, 255),
    ],
)
def test_lsq_counts_the_codes_above_zero(qtype: QType, zero_point: int, levels: int) -> None:
    x = torch.zeros(2, 10)
    assert make("lsq", 0.1, zero_point, qtype).gradient_scale(x) == pytest.approx((10 * levels) ** -0.5)


# Dynamo instantiates the class itself when it traces an autograd function.
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning")
def test_lsq_compiles_with_dynamic_shapes() -> None:
    torch.compiler.reset()
    q = make("lsq")
    compiled = torch.compile(q, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((4, 6), (5, 8), (7, 3)):
        q.zero_grad(set_to_none=True)
        x = torch.randn(shape)
        q(x).square().sum().backward()
        expected = q.scale.grad
        q.zero_grad(set_to_none=True)
        compiled(x).square().sum().backward()
        assert expected is not None
        assert q.scale.grad is not None
        torch.testing.assert_close(q.scale.grad, expected)
