"""One optimizer step moves a scale by a small fraction of it, whatever optimizer and learning rate."""

import copy
import dataclasses

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.bridge.quantizers.step_limit import LARGEST_CHANGE
from onnxqat.training import methods

SCALE = 0.02


def qdq_model(*, shared: bool = False) -> onnx.ModelProto:
    """x -> pair -> Gemm with a quantized weight -> y; `shared`: a second pair in front of y reads the same scale."""
    weight = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    held = {
        "s": np.float32(SCALE),
        "z": np.uint8(128),
        "w": weight,
        "ws": (np.abs(weight).max(1) / 127).astype(np.float32),
        "wz": np.zeros(4, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("QuantizeLinear", ["w", "ws", "wz"], ["wq"], axis=0),
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("Gemm", ["xd", "wd"], ["h" if shared else "y"], transB=1),
    ]
    if shared:
        nodes.append(helper.make_node("QuantizeLinear", ["h", "s", "z"], ["hq"]))
        nodes.append(helper.make_node("DequantizeLinear", ["hq", "s", "z"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def scales(module: torch.nn.Module) -> list[torch.Tensor]:
    return [q.scale.detach().clone() for _, q in quantizers(module)]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rate", [1e-2, 1.0])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_step_moves_a_scale_by_a_small_fraction(name: str, rate: float, shared: bool) -> None:
    module = to_torch(qdq_model(shared=shared)).train()
    weights = [p for key, p in module.named_parameters() if not key.endswith(".scale")]
    for weight in weights:
        weight.requires_grad_(False)  # so that only the scales are put to the test
    optimizer = getattr(torch.optim, name)([p for p in module.parameters() if p.requires_grad], lr=rate)
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    for _ in range(5):
        module(x)  # a second forward pass without a step between keeps the graph of the first usable
        loss = module(x).square().sum() * 1e4
        before = scales(module)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        module(x)
        for old, new in zip(before, scales(module), strict=True):
            assert bool((new > 0).all())
            assert bool(((new / old - 1).abs() <= LARGEST_CHANGE * 1.001).all())  # float32 rounding of the bound
    assert not torch.equal(scales(module)[0], torch.tensor(SCALE))


def test_values_that_are_set_are_taken_whole() -> None:
    module = to_torch(qdq_model()).train()
    x = torch.randn(4, 8)
    module(x)
    quantizer = next(q for _, q in quantizers(module) if q.role == "activation")
    wanted = dataclasses.replace(quantizer.qparams(), scale=np.asarray(7.0, np.float32))
    quantizer.set_qparams(wanted)
    module(x)
    assert quantizer.qparams().same(wanted)
    state = {key: value * 3 if key.endswith(".scale") else value for key, value in module.state_dict().items()}
    module.load_state_dict(state)
    module(x)
    assert float(quantizer.scale.detach()) == 21.0


def test_copies_are_limited_too_and_evaluation_changes_nothing() -> None:
    module = copy.deepcopy(to_torch(qdq_model()).train())
    x = torch.randn(4, 8)
    module(x)
    with torch.no_grad():
        for _, q in quantizers(module):
            q.scale.mul_(2.0)
    moved = scales(module)
    module.eval()(x)
    assert all(torch.equal(a, b) for a, b in zip(moved, scales(module), strict=True))
    module.train()(x)
    for before, now in zip(moved, scales(module), strict=True):
        torch.testing.assert_close(now, before / 2 * (1 + LARGEST_CHANGE))


def test_a_loop_in_evaluation_mode_is_limited_too() -> None:
    """A module comes in that mode, and nothing tells a loop that leaves it there."""
    module = to_torch(qdq_model())
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    for _ in range(3):
        before = scales(module)
        optimizer.zero_grad()
        module(torch.ones(4, 8)).square().sum().backward()
        optimizer.step()
        for old, new in zip(before, scales(module), strict=True):
            assert bool(((new / old - 1).abs() <= LARGEST_CHANGE * 1.001).all())
    assert not torch.equal(scales(module)[0], torch.tensor(SCALE))


@pytest.mark.parametrize("name", [None, "lsq", "lsq_plus"])
def test_the_last_step_is_limited_too(name: str | None) -> None:
    model = qdq_model()
    module = to_torch(model, quantizer_factory=None if name is None else methods.factory(name)).train()
    before = scales(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    (module(torch.ones(4, 8)).square().sum() * 1e4).backward()
    optimizer.step()
    for old, new in zip(before, scales(module), strict=True):
        assert bool(((new / old - 1).abs() <= LARGEST_CHANGE * 1.001).all())
    assert write_back(module.eval(), model) != model


def test_methods_of_a_loop_that_guards_scales_itself_have_no_limit() -> None:
    module = to_torch(qdq_model(), quantizer_factory=methods.factory("lsq", limit_steps=False))
    assert all(q.limit is None for _, q in quantizers(module))


def test_gradients_of_the_default_are_those_of_lsq() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    found = []
    for factory in (None, methods.factory("lsq")):
        module = to_torch(qdq_model(), quantizer_factory=factory).train()
        module(x).square().sum().backward()
        found.append([q.scale.grad for _, q in quantizers(module)])
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)
