"""``.half()`` and ``.to(torch.bfloat16)``: forward, backward, checkpoints, write-back; quantizers stay float32."""

import copy

import numpy as np
import pytest
import torch

from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.errors import QatError
from tests.bridge import one_node
from tests.bridge.test_write_back import STYLES, Style, constants, qdq_model

HALVES = [torch.float16, torch.bfloat16]
RANDOM = np.random.default_rng(0)


def numbers(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def small(style=None):
    """The model of the tests of write-back, with a bias that a half float holds."""
    model = qdq_model(style)
    for tensor in [*model.graph.initializer, *(n.attribute[0].t for n in model.graph.node if n.op_type == "Constant")]:
        if tensor.name == "b_codes":
            tensor.ClearField("int32_data")
            tensor.raw_data = np.asarray([100, -7, 20, 0], np.int32).tobytes()
    return model


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("style", STYLES, ids=str)
def test_a_quantized_module(style, dtype) -> None:
    model = small(style)
    module = to_torch(model)
    half = copy.deepcopy(module).to(dtype)
    assert {q.scale.dtype for _, q in quantizers(half) if not q.derived} == {torch.float32}
    x = torch.from_numpy(numbers(3, 8)).to(dtype).requires_grad_()
    found, wanted = half(x), module(x.detach().float())
    assert found.dtype is dtype
    torch.testing.assert_close(found.float(), wanted, rtol=0.02, atol=0.02)
    found.float().square().sum().backward()
    assert x.grad is not None
    for leaf in [x, *half.parameters()]:
        assert leaf.grad is not None
        assert leaf.grad.dtype is leaf.dtype
        assert torch.isfinite(leaf.grad).all()
        assert leaf.grad.any()
    other = to_torch(model).to(dtype)
    other.load_state_dict(half.state_dict(), strict=True)
    assert torch.equal(other(x), found)
    stored = constants(write_back(half, model))
    for name, array in constants(model).items():
        if "scale" in name or name.endswith("codes"):  # half floats are nearer to the codes than half a step
            np.testing.assert_array_equal(stored[name], array)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_codes_are_those_of_float32(dtype) -> None:
    quantizer = next(q for _, q in quantizers(to_torch(qdq_model())) if q.role == "activation")
    with torch.no_grad():
        quantizer.scale.fill_(1e-7)  # a float16 holds it with one bit, and its reciprocal not at all
    x = (torch.arange(-200, 200) * 2.5e-8).to(dtype)
    wanted = quantizer(x.float()).to(dtype)
    converted = copy.deepcopy(quantizer).to(dtype)
    assert torch.equal(converted(x), wanted)
    converted.state = "calibrate"
    converted(x)
    assert converted.observed_min.dtype is torch.float32
    converted.apply_observed()
    assert converted.scale.item() > 0


def test_a_module_moves_with_its_scales() -> None:
    module = to_torch(qdq_model()).to("meta", torch.float16)
    assert {p.device.type for p in module.parameters()} == {"meta"}
    assert {p.dtype for name, p in module.named_parameters() if name.endswith("scale")} == {torch.float32}


def test_a_stored_weight_that_is_not_finite_is_refused() -> None:
    model = qdq_model(Style(stored=True))  # its bias of 2^24 steps is beyond the largest float16
    with pytest.raises(QatError, match="b_codes") as error:
        write_back(to_torch(model).half(), model)
    assert error.value.code == "training-diverged"


X = numbers(2, 3, 8, 8)
LAYERS = {
    "Conv": ({"x": X, "w": numbers(4, 3, 3, 3), "b": numbers(4)}, {}),
    "BatchNormalization": ({"x": X, "s": numbers(3), "b": numbers(3), "m": numbers(3), "v": numbers(3) ** 2 + 1}, {}),
    "LayerNormalization": ({"x": X, "s": numbers(8), "b": numbers(8)}, {}),
    "InstanceNormalization": ({"x": X, "s": numbers(3), "b": numbers(3)}, {}),
    "LSTM": (
        {"x": numbers(5, 2, 6), "w": numbers(1, 16, 6), "r": numbers(1, 16, 4), "b": numbers(1, 32)},
        {"hidden_size": 4},
    ),
    "GRU": ({"x": numbers(5, 2, 6), "w": numbers(1, 12, 6), "r": numbers(1, 12, 4)}, {"hidden_size": 4}),
    "Resize": ({"x": X, "roi": None, "scales": np.array([1, 1, 1.5, 1.5], np.float32)}, {"mode": "linear"}),
    "Attention": ({"q": numbers(2, 2, 5, 8), "k": numbers(2, 2, 5, 8), "v": numbers(2, 2, 5, 8)}, {"opset": 23}),
    "Softmax": ({"x": X}, {}),
    "ReduceL2": ({"x": X}, {"keepdims": 0}),
    "Pow": ({"x": numbers(3, 4) ** 2 + 0.5, "e": numbers(4)}, {}),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("op_type", LAYERS)
def test_a_plain_layer(op_type, dtype) -> None:
    inputs, options = LAYERS[op_type]
    held = [name for name in inputs if name not in ("x", "q", "k", "v") or (name == "v" and op_type[0] == "B")]
    module = to_torch(one_node.make(op_type, inputs, constants=held, **options))
    given = [torch.from_numpy(array) for name, array in inputs.items() if array is not None and name not in held]
    wanted = module(*given)
    half = copy.deepcopy(module).to(dtype)
    leaves = [g.to(dtype).requires_grad_() for g in given]
    found = half(*leaves)
    assert found.dtype is dtype
    torch.testing.assert_close(found.float(), wanted, rtol=0.1, atol=0.1)
    found.float().square().sum().backward()
    for leaf in [*leaves, *half.parameters()]:
        assert leaf.grad is None or (leaf.grad.dtype is leaf.dtype and torch.isfinite(leaf.grad).all())
    assert leaves[0].grad is not None
