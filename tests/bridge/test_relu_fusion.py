"""Relu in the kernel of the quantizer behind it: the same numbers from fewer passes."""

import copy
from typing import cast

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, fx

import onnxqat
from onnxqat.bridge.quantizers.state import quantizers, set_state
from onnxqat.bridge.speed.relu_fusion import fuse_relu
from onnxqat.training import methods


def network() -> onnx.ModelProto:
    """Two convolutions with Relu; the second Relu has two readers."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.standard_normal((4, 3, 3, 3)),
        "w2": random.standard_normal((4, 4, 1, 1)),
        "w3": random.standard_normal((4, 4, 1, 1)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "c1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "r1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "c2"),
        helper.make_node("Relu", ["c2"], ["r2"], "r2"),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], "c3"),
        helper.make_node("Add", ["c3", "r2"], ["y"], "add"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, 6, 6])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4, 6, 6])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def module(method: str = "lsq") -> fx.GraphModule:
    data = {"x": np.random.default_rng(1).standard_normal((8, 3, 6, 6)).astype(np.float32)}
    made = onnxqat.insert_qdq(network(), "academic", data=data).model
    return onnxqat.to_torch(made, quantizer_factory=methods.factory(method))


def view(plain: fx.GraphModule) -> fx.GraphModule:
    return cast(fx.GraphModule, fuse_relu(copy.deepcopy(plain)))


def relus(graph: fx.GraphModule) -> int:
    return sum(node.target is torch.relu for node in graph.graph.nodes)


def step(of: fx.GraphModule, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    of.zero_grad(set_to_none=True)
    y = of(x)
    y.square().sum().backward()
    return y.detach(), {key: p.grad for key, p in of.named_parameters() if p.grad is not None}


def test_numbers_stay_and_the_relu_goes() -> None:
    plain = module()
    fused = view(plain)
    assert relus(plain) == 2, "the module itself is not changed"
    assert relus(fused) == 1, "one Relu has a second reader"
    assert fuse_relu(fused) is fused
    x = torch.randn(5, 3, 6, 6)
    expected, wanted = step(plain, x)
    found, gradients = step(fused, x)
    assert torch.equal(found, expected)
    assert gradients.keys() == wanted.keys()
    assert all(torch.equal(gradients[key], wanted[key]) for key in wanted)
    with torch.no_grad():
        assert torch.equal(fused(x), expected)
    assert fused.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("state", ["float", "calibrate", "calibrate_quantized"])
def test_other_states_see_the_result_of_the_relu(state: str) -> None:
    plain = module()
    fused = view(plain)
    x = torch.randn(5, 3, 6, 6)
    for made in (plain, fused):
        set_state(made, state)
    assert torch.equal(fused(x), plain(x))
    for (_, a), (_, b) in zip(quantizers(plain), quantizers(fused), strict=True):
        assert torch.equal(a.observed_min, b.observed_min)


def test_less_is_saved_for_backward() -> None:
    plain = module()
    fused = view(plain)
    sizes = []
    for made in (plain, fused):
        saved: dict[int, Tensor] = {}

        def pack(tensor: Tensor, saved: dict[int, Tensor] = saved) -> Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            made(torch.randn(5, 3, 6, 6))
        sizes.append(sum(t.numel() for t in saved.values()))
    assert sizes[1] <= sizes[0]


def test_methods_with_a_kernel_of_their_own_keep_the_relu() -> None:
    for kept in (module("pact"), torch.nn.Linear(2, 2)):
        assert fuse_relu(kept) is kept


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*should not be instantiated:DeprecationWarning")
def test_the_view_compiles_and_trains_the_module() -> None:
    plain = module()
    fused = fuse_relu(plain)
    x = torch.randn(5, 3, 6, 6)
    assert torch.equal(torch.compile(fused, fullgraph=True, backend="aot_eager")(x), plain(x))
    fused(x).sum().backward()
    assert all(p.grad is not None for p in plain.parameters() if p.requires_grad)
