"""Quantizers that repeat the one in front are left out of the training view: same outputs, same gradients."""

import onnx
import pytest
import torch
from onnx import parser

import onnxqat
from onnxqat.bridge.speed.redundant_quantizers import skip_repeated
from onnxqat.placement.table_overrides import Overrides
from onnxqat.training import methods

TEXT = """<ir_version: 8, opset_import: ["" : 18]>
g (float[n, 2, 8, 8] x) => (float[n, 64] y) <int64[1] start = {1}, int64[1] stop = {9}, int64[1] axis = {2}> {
    r = Relu (x)
    p = MaxPool <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1]> (r)
    s = Slice (p, start, stop, axis)
    d = Add (s, s)
    y = Flatten (d)
}"""
X = torch.linspace(-4, 4, 3 * 2 * 8 * 8).reshape(3, 2, 8, 8)


def quantized() -> onnx.ModelProto:
    """The network with pairs on every tensor."""
    model = onnxqat.insert_qdq(parser.parse_model(TEXT), "onnxruntime-cpu", data=X.numpy(), overrides=Overrides()).model
    assert isinstance(model, onnx.ModelProto)
    return model


def quantizer_calls(module: torch.nn.Module) -> list[str]:
    assert isinstance(module, torch.fx.GraphModule)
    return [str(n.target) for n in module.graph.nodes if n.op == "call_module"]


def run(module: torch.nn.Module, view: torch.nn.Module) -> list[torch.Tensor]:
    """Output, gradient of the input, and gradients of all scales of `module`, by `view`."""
    module.zero_grad()
    x = X.clone().requires_grad_()
    y = view(x)
    (y * torch.linspace(1, 2, y.numel()).reshape(y.shape)).sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *[p.grad for p in module.parameters() if p.grad is not None]]


def test_repeated_quantizers_go_and_nothing_changes() -> None:
    module = onnxqat.to_torch(quantized(), quantizer_factory=methods.factory("lsq"))
    view = skip_repeated(module)
    gone = set(quantizer_calls(module)) - set(quantizer_calls(view))
    assert gone == {"p_quantizer", "s_quantizer", "y_QuantizeLinear_Input_quantizer"}
    before, after = run(module, module), run(module, view)
    assert len(before) == len(after) > 2
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    for one, other in zip(before[2:], after[2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_another_scale_stays() -> None:
    module = onnxqat.to_torch(quantized(), quantizer_factory=methods.factory("lsq"))
    for path in quantizer_calls(module):
        quantizer = module.get_submodule(path)
        assert isinstance(quantizer.scale, torch.Tensor)
        quantizer.scale = torch.nn.Parameter(quantizer.scale.detach().clone())
    assert skip_repeated(module) is module


@pytest.mark.parametrize("method", ["pact", "qdrop"])
def test_methods_with_a_kernel_of_their_own_keep_theirs(method: str) -> None:
    module = onnxqat.to_torch(quantized(), quantizer_factory=methods.factory(method))
    assert skip_repeated(module) is module


def test_other_modules_are_left_alone() -> None:
    other = torch.nn.Identity()
    assert skip_repeated(other) is other
