"""Random numbers: shapes, types and distributions; the values are torch's."""

import numpy as np
import pytest
import torch
from onnx import TensorProto

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import lowering_checks, one_node

TYPES = {TensorProto.FLOAT: torch.float32, TensorProto.DOUBLE: torch.float64, TensorProto.FLOAT16: torch.float16}
LIKE = np.zeros((40, 50), np.float32)


def draw(operator, inputs, kind=TensorProto.FLOAT, **options):
    model = one_node.make(operator, inputs, outputs={"y": kind}, rank=2, **options)
    torch.manual_seed(0)
    return to_torch(model)(*lowering_checks.tensors(model, inputs))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("like", [False, True])
def test_normal_and_uniform_numbers(dtype, like) -> None:
    inputs = {"x": LIKE} if like else {}
    shape = {} if like else {"shape": [40, 50]}
    normal, uniform = ("RandomNormalLike", "RandomUniformLike") if like else ("RandomNormal", "RandomUniform")
    y = draw(normal, inputs, dtype, dtype=dtype, mean=3.0, scale=2.0, **shape)
    assert (y.dtype, y.shape) == (TYPES[dtype], (40, 50))
    assert abs(float(y.double().mean()) - 3) < 0.2
    assert abs(float(y.double().std()) - 2) < 0.2
    y = draw(uniform, inputs, dtype, dtype=dtype, low=-1.0, high=3.0, **shape)
    assert (y.dtype, y.shape) == (TYPES[dtype], (40, 50))
    assert -1 <= float(y.min()) < -0.9 < 2.9 < float(y.max()) <= 3


def test_like_takes_the_type_of_its_input_where_none_is_given() -> None:
    assert draw("RandomNormalLike", {"x": LIKE.astype(np.float64)}, TensorProto.DOUBLE).dtype is torch.float64
    with pytest.raises(UnsupportedError, match="random numbers of type INT64"):
        draw("RandomUniformLike", {"x": LIKE.astype(np.int64)})


@pytest.mark.parametrize("dtype", [None, TensorProto.BOOL, TensorProto.INT64])
def test_bernoulli(dtype) -> None:
    x = np.repeat(np.array([0.0, 0.25, 1.0], np.float32)[:, None], 2000, 1)
    y = draw("Bernoulli", {"x": x}, dtype or TensorProto.FLOAT, dtype=dtype, opset=15)
    assert y.dtype is {None: torch.float32, TensorProto.BOOL: torch.bool, TensorProto.INT64: torch.int64}[dtype]
    share = y.double().mean(1)
    assert (share[0], share[2]) == (0, 1)
    assert abs(float(share[1]) - 0.25) < 0.05


@pytest.mark.parametrize("dtype", [None, TensorProto.INT64])
def test_multinomial(dtype) -> None:
    x = np.log(np.array([[0.0, 3.0, 1.0], [1.0, 0.0, 0.0]], np.float32) + 1e-30)
    y = draw("Multinomial", {"x": x}, dtype or TensorProto.INT32, dtype=dtype, sample_size=4000)
    assert (y.dtype, y.shape) == (torch.int64 if dtype else torch.int32, (2, 4000))
    assert set(y[0].tolist()) == {1, 2}
    assert set(y[1].tolist()) == {0}
    assert abs(float((y[0] == 1).double().mean()) - 0.75) < 0.05


def test_torch_s_seed_repeats_the_numbers_and_each_call_draws_new_ones() -> None:
    model = one_node.make("RandomNormal", {}, shape=[5], rank=1, seed=3.0)
    module = to_torch(model)
    torch.manual_seed(7)
    first, second = module(), module()
    torch.manual_seed(7)
    assert module().equal(first)
    assert not first.equal(second)
