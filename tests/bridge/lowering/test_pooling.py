"""Pooling: indices, padding of every kind, norms and unpooling."""

import pickle

import numpy as np
import pytest
import torch
from onnx import TensorProto

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import lowering_checks, one_node, parity

RANDOM = np.random.default_rng(0)
BOTH = {"y": TensorProto.FLOAT, "index": TensorProto.INT64}
WINDOWS = {
    "line": {"shape": [9], "kernel_shape": [3], "strides": [2], "pads": [2, 0], "dilations": [1]},
    "plain": {"shape": [6, 7], "kernel_shape": [2, 3], "strides": [1, 2], "pads": [0] * 4, "dilations": [1, 1]},
    "unequal": {"shape": [6, 7], "kernel_shape": [3, 2], "strides": [2, 1], "pads": [2, 0, 1, 1], "dilations": [1, 1]},
    "dilated": {"shape": [8, 8], "kernel_shape": [3, 2], "strides": [1, 3], "pads": [1, 1, 0, 0], "dilations": [2, 3]},
    "volume": {
        "shape": [5, 4, 6],
        "kernel_shape": [2] * 3,
        "strides": [2, 1, 1],
        "pads": [1, 0, 0, 0, 1, 1],
        "dilations": [1] * 3,
    },
}


def image(shape, dtype=np.float32):
    """Values with ties, since the first of equal ones counts."""
    return np.round(RANDOM.standard_normal((2, 2, *shape)) * 2).astype(dtype)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_max_pool_indices_equal_onnxruntime(window, order, ceil) -> None:
    options = dict(WINDOWS[window])
    x = image(options.pop("shape"))
    options |= {"storage_order": order, "ceil_mode": ceil, "opset": 12}
    parity.check(one_node.make("MaxPool", {"x": x}, outputs=BOTH, **options), {"x": x})


@pytest.mark.parametrize("padding", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_max_pool_indices_with_automatic_padding_equal_onnxruntime(padding) -> None:
    x = image([6, 7])
    options = {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": padding, "opset": 12}
    parity.check(one_node.make("MaxPool", {"x": x}, outputs=BOTH, **options), {"x": x})


def test_where_all_is_minus_infinity_the_index_is_not_that_of_padding() -> None:
    x = np.full((1, 1, 4, 5), -np.inf, np.float32)
    options = {"kernel_shape": [2, 3], "pads": [1, 2, 0, 0], "dilations": [1, 2], "opset": 12}
    y, index = parity.run_module(to_torch(one_node.make("MaxPool", {"x": x}, outputs=BOTH, **options)), {"x": x})
    assert (y == -np.inf).all()
    # First element of each window inside: rows 0 0 1 2, columns 0 1 0 (dilated past the padding).
    assert index[0, 0].tolist() == [[0, 1, 0], [0, 1, 0], [5, 6, 5], [10, 11, 10]]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pool_of_bytes_with_unequal_pads_equals_onnxruntime(dtype) -> None:
    x = RANDOM.integers(0, 256, (1, 2, 6, 7)).astype(np.uint8).view(dtype)
    options = {"kernel_shape": [2, 3], "pads": [0, 2, 1, 1], "strides": [1, 2], "opset": 12}
    kind = TensorProto.INT8 if dtype is np.int8 else TensorProto.UINT8
    model = one_node.make("MaxPool", {"x": x}, outputs={"y": kind}, **options)
    parity.check(model, {"x": x})


def test_max_pool_indices_export() -> None:
    options = {"kernel_shape": [2, 3], "pads": [0, 1, 1, 2], "storage_order": 1, "opset": 12, "outputs": BOTH}
    lowering_checks.exports("MaxPool", {"x": image([7, 8])}, {"x": (0, 2, 3)}, {"x": image([5, 9])[:1]}, **options)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool_equals_onnxruntime(window, p) -> None:
    options = dict(WINDOWS[window])
    x = image(options.pop("shape"))
    parity.check(one_node.make("LpPool", {"x": x}, opset=18, p=p, **options), {"x": x})
    parity.check(one_node.make("GlobalLpPool", {"x": x}, opset=18, p=p), {"x": x})


def test_the_first_versions_take_the_norm_s_order_as_a_float() -> None:
    x = image([4, 5])
    for operator, options in (("LpPool", {"kernel_shape": [2, 2]}), ("GlobalLpPool", {})):
        old = one_node.make(operator, {"x": x}, opset=1, p=3.0, rank=4, **options)
        new = one_node.make(operator, {"x": x}, opset=18, p=3, **options)
        np.testing.assert_array_equal(*(parity.run_module(to_torch(m), {"x": x})[0] for m in (old, new)))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_nothing_have_finite_gradients(p) -> None:
    x = image([4, 4])
    x[0] = 0
    for operator, options in (("LpPool", {"kernel_shape": [2, 2]}), ("GlobalLpPool", {})):
        model = one_node.make(operator, {"x": x}, opset=18, p=p, **options)
        leaf = torch.from_numpy(x.copy()).requires_grad_()
        to_torch(model)(leaf).sum().backward()
        assert torch.isfinite(leaf.grad).all()
        assert leaf.grad[1].abs().sum() > 0


def test_max_unpool_inverts_max_pool_as_in_onnxruntime() -> None:
    x = RANDOM.standard_normal((2, 3, 2, 3)).astype(np.float32)
    index = RANDOM.permutation(2 * 3 * 4 * 6)[: x.size].reshape(x.shape)
    for opset in (9, 11, 21):
        options = {"kernel_shape": [2, 2], "strides": [2, 2], "opset": opset}
        parity.check(one_node.make("MaxUnpool", {"x": x, "index": index}, **options), {"x": x, "index": index})


def test_max_unpool_into_a_stated_shape_fills_up_with_zeros() -> None:
    inputs = {
        "x": np.array([[[[5, 6], [7, 8]]]], np.float32),
        "index": np.array([[[[5, 7], [13, 15]]]]),
        "shape": np.array([1, 1, 5, 5]),
    }
    model = one_node.make("MaxUnpool", inputs, kernel_shape=[2, 2], strides=[2, 2], rank=4)
    lowering_checks.equals_reference(model, inputs)


def test_unpooling_exports_and_has_gradients() -> None:
    def inputs(batch):
        index = RANDOM.permutation(batch * 48)[: batch * 12].reshape(batch, 2, 2, 3)
        return {"x": RANDOM.standard_normal((batch, 2, 2, 3)).astype(np.float32), "index": index}

    options = {"kernel_shape": [2, 2], "strides": [2, 2]}
    lowering_checks.exports("MaxUnpool", inputs(3), {"x": (0,), "index": (0,)}, inputs(2), **options)
    given = inputs(2)
    gradient = lowering_checks.gradients(one_node.make("MaxUnpool", given, **options), given)[0]
    torch.testing.assert_close(gradient, 2 * torch.from_numpy(given["x"]))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_module_that_takes_maxima_pickles(rank) -> None:
    x = image([5] * rank)
    module = to_torch(one_node.make("MaxPool", {"x": x}, kernel_shape=[2] * rank, opset=12))
    given = torch.from_numpy(x)
    assert torch.equal(pickle.loads(pickle.dumps(module))(given), module(given))


def test_the_largest_of_an_empty_batch_is_empty() -> None:
    empty = np.zeros((0, 0, 0, 0), np.float32)  # what a Loop of no iterations gives
    parity.check(one_node.make("GlobalMaxPool", {"x": empty}, shapes={"x": [None] * 4}), {"x": empty})


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool", "LpPool"])
def test_a_stride_that_torch_cannot_count_is_refused(op_type) -> None:
    model = one_node.make(op_type, {"x": image([4, 4])}, kernel_shape=[2, 2], strides=[2**40, 1])
    with pytest.raises(UnsupportedError, match="an attribute above 2147483647"):
        to_torch(model)
