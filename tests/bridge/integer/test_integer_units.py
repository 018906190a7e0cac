"""A module that computes on codes gives what onnxruntime's default session gives, bit for bit, and trains."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import pytest
import torch

from onnxqat import to_torch, write_back
from onnxqat.bridge.integer import sums
from onnxqat.bridge.integer.unit import Unit
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.state import quantizers, set_state
from onnxqat.errors import UsageError
from tests.bridge.integer import networks
from tests.bridge.integer.one_operator import between_pairs


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return networks.quantized(networks.kinds(), networks.images())


def integer(model: onnx.ModelProto) -> OnnxModule:
    return to_torch(model, arithmetic="onnxruntime")


def units(module: OnnxModule) -> list[str]:
    return sorted(type(m).__name__ for m in module.modules() if isinstance(m, Unit))


def same_as_session(module: torch.nn.Module, model: onnx.ModelProto, seed: int = 9) -> None:
    x = networks.images(16, seed)
    with torch.no_grad():
        found = module(torch.from_numpy(x))
    for mine, theirs in zip(found, networks.session(model, x), strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs)


def test_every_kind_gives_the_bits_of_the_default_session(model: onnx.ModelProto) -> None:
    module = integer(model)
    layers = ["Convolution"] * 3 + ["GlobalAverage", "Matrix"]
    assert units(module) == ["Average", *layers, "Product", "Sigmoid", "Sigmoid", "Sum"]
    same_as_session(module, model)
    x = networks.images(16, 9)
    assert not np.array_equal(to_torch(model)(torch.from_numpy(x))[0].detach().numpy(), networks.session(model, x)[0])


def test_what_is_trained_is_what_the_session_computes(model: onnx.ModelProto) -> None:
    module = integer(model).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    x = torch.from_numpy(networks.images(8, 4))
    for _ in range(10):
        optimizer.zero_grad()
        logits, shares = module(x)
        (logits.square().mean() + shares.mean()).backward()
        optimizer.step()
    tuned = write_back(module.eval(), model)
    assert tuned != model
    same_as_session(module, tuned)


def test_gradients_are_those_of_float_simulation(model: onnx.ModelProto) -> None:
    x = torch.from_numpy(networks.images(8, 5))
    found = []
    for module in (to_torch(model).train(), integer(model).train()):
        logits, shares = module(x)
        (logits.square().mean() + shares.square().mean()).backward()
        found.append({name: p.grad for name, p in module.named_parameters() if p.requires_grad})
    floating, exact = found
    assert floating.keys() == exact.keys()
    for name, gradient in floating.items():
        assert gradient is not None
        # A code that falls the other way at a tie moves what is behind it by a step.
        torch.testing.assert_close(exact[name], gradient, rtol=0.05, atol=0.02 * float(gradient.abs().max()) + 1e-9)


@pytest.mark.parametrize("state", ["float", "calibrate"])
def test_other_states_are_those_of_the_float_module(model: onnx.ModelProto, state: str) -> None:
    x = torch.from_numpy(networks.images(8, 6))
    outputs = []
    for module in (to_torch(model), integer(model)):
        set_state(module, state)  # type: ignore[arg-type]
        outputs.append(module(x))
    for mine, theirs in zip(*outputs, strict=True):
        assert torch.equal(mine, theirs)


def test_one_quantizer_that_is_off_takes_its_units_with_it(model: onnx.ModelProto) -> None:
    module, plain = integer(model), to_torch(model)
    for each in (module, plain):
        set_state(each, "float", tensors=["second"])
    x = torch.from_numpy(networks.images(8, 6))
    for mine, theirs in zip(module(x), plain(x), strict=True):
        torch.testing.assert_close(mine, theirs, atol=0.1, rtol=0)


def test_state_dict_and_names_are_those_of_the_float_module(model: onnx.ModelProto) -> None:
    module, plain = integer(model), to_torch(model)
    assert list(module.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in quantizers(module)] == [name for name, _ in quantizers(plain)]
    names = {node.name for node in module.graph.nodes}
    assert set(module.tensor_nodes.values()) <= names
    assert "logits" in module.tensor_nodes
    assert write_back(module, model) == model


def test_copies_compute_alike_and_follow_their_own_quantizers(model: onnx.ModelProto) -> None:
    module = integer(model)
    x = torch.from_numpy(networks.images(4, 7))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x)[0], module(x)[0])
        set_state(other, "float")
        assert not torch.equal(other(x)[0], module(x)[0])
        assert units(other) == units(module)


def test_exported_and_compiled_modules_give_the_same_bits(model: onnx.ModelProto) -> None:
    module = integer(model)
    x = torch.from_numpy(networks.images(4, 7))
    expected = module(x)
    with torch.no_grad():
        exported = torch.export.export(module, (x,)).module()(x)
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
    for found in (exported, compiled):
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.equal(mine, theirs)


WIDE = """
<ir_version: 8, opset_import: ["" : 17]>
wide (float[N, 1200, 2, 2] x) => (float[N, 4, 2, 2] y)
<float[4, 1200, 1, 1] w>
{
    c = Conv (x, w)
    y = Relu (c)
}"""


def test_sums_beyond_float32_are_exact() -> None:
    float_model = networks.with_weights(WIDE)
    rng = np.random.default_rng(1)
    weight = rng.uniform(0.5, 1, (4, 1200, 1, 1)).astype(np.float32)
    float_model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    data = rng.uniform(0.5, 1, (6, 1200, 2, 2)).astype(np.float32)
    model = networks.quantized(float_model, data)
    module = integer(model)
    x = torch.from_numpy(data)
    np.testing.assert_array_equal(module(x).detach().numpy(), networks.session(model, data)[0])
    module(x).sum().backward()


def test_unknown_arithmetic(model: onnx.ModelProto) -> None:
    with pytest.raises(UsageError, match="there is no arithmetic named 'integers'"):
        to_torch(model, arithmetic="integers")


def test_products_with_added_biases_are_integer_layers() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> rows (float[N, T, 12] x) => (float[N, T, 10] y)
    <float[12, 24] w, float[24] b, float[24, 10] v, float[10] c> {
        h = MatMul(x, w) s = Add(h, b) r = Relu(s) g = MatMul(r, v) y = Add(c, g) }"""
    x = np.random.default_rng(2).standard_normal((6, 5, 12)).astype(np.float32)
    made = networks.quantized(networks.with_weights(text), x)
    module = integer(made)
    assert units(module) == ["Matrix", "Matrix"]
    with torch.no_grad():
        np.testing.assert_array_equal(module(torch.from_numpy(x)).numpy(), networks.session(made, x)[0])
    module(torch.from_numpy(x)).square().mean().backward()
    assert all(p.grad is not None for name, p in module.named_parameters() if name in ("w", "b", "v", "c"))


@pytest.mark.parametrize("arithmetic", ["onnxruntime", "fixed-point"])
def test_relu_and_clip_end_symmetric_grids(arithmetic: str) -> None:
    """Codes of int8 with zero point 0 go below what a Relu gives, so the ends of the grid do not stand for it."""
    made = networks.quantized(networks.kinds(), networks.images(), "tensorrt")
    x = torch.from_numpy(networks.images(8, 4))
    plain, module = to_torch(made), to_torch(made, arithmetic=arithmetic)
    names = [f"{name}_DequantizeLinear_Output" for name in ("first", "second", "sum")]
    with torch.no_grad():
        expected, found = (m.capture(names)(x)[1] for m in (plain, module))
    assert found["first_DequantizeLinear_Output"].min() == 0
    step = float(plain.get_submodule(plain.quantizers["first"]).scale.detach())
    assert (
        float((found["first_DequantizeLinear_Output"] - expected["first_DequantizeLinear_Output"]).abs().max())
        < 1.5 * step
    )
    for name, values in expected.items():
        assert float((found[name] != values).float().mean()) < (0.01 if arithmetic == "onnxruntime" else 0.1)


def test_clip_ends_a_grid_that_goes_beyond_it() -> None:
    model = between_pairs("Add(v, v)", "N, 64", scales=(0.1, 0.11), zeros=(128, 128))
    add = next(n for n in model.graph.node if n.op_type == "Add")
    add.output[0] = "whole"
    model.graph.node.insert(3, onnx.helper.make_node("Clip", ["whole", "least", "most"], ["w"]))
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.float32(v), n) for n, v in (("least", -2.0), ("most", 1.7))
    )
    x = torch.linspace(-4, 4, 64 * 5).reshape(5, 64)
    for arithmetic in ("onnxruntime", "fixed-point"):
        module = to_torch(model, arithmetic=arithmetic)
        assert units(module) == ["Sum"]
        found, expected = module(x).detach(), to_torch(model)(x).detach()
        assert int(((found - expected).abs() > 1e-6).sum()) <= 3
        assert found.max() == expected.max()
        assert found.min() == expected.min()


def test_autocast_leaves_codes_alone(model: onnx.ModelProto) -> None:
    module, x = integer(model), torch.from_numpy(networks.images(8, 4))
    expected = module(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module(x)
        found[0].square().mean().backward()
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_other_types_compute_in_float(model: onnx.ModelProto) -> None:
    x = torch.from_numpy(networks.images(8, 4)).double()
    for mine, theirs in zip(integer(model).double()(x), to_torch(model).double()(x), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("reach", "kind"), [(255.0, torch.float32), (256.0, torch.float32), (65535.0, torch.float64)])
def test_products_of_long_steps_are_summed_in_float64(reach: float, kind: torch.dtype) -> None:
    """In float32, torch multiplies them in TF32 or bfloat16 where a user lets it."""
    x, w, bias = torch.ones(2, 3), torch.ones(3, 1), (torch.ones(1, dtype=torch.float64), 1.0)
    seen = []

    def operation(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> torch.Tensor:
        seen.append(a.dtype)
        return a @ b if c is None else a @ b + c

    totals = [sums.in_parts(operation, x, w, given, (1, 0), (reach, 1.0))[0] for given in (None, bias)]
    assert seen == [kind, kind]
    assert [total.unique().tolist() for total in totals] == [[3.0], [4.0]]
