"""Attention and its relatives against ONNX's reference evaluator, and as torch modules."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import one_node, parity

RANDOM = np.random.default_rng(0)
DYNAMIC = torch.export.Dim.DYNAMIC


def normal(*shape, dtype=np.float32):
    return RANDOM.standard_normal(shape).astype(dtype)


def check(model, inputs, rtol=1e-5, atol=1e-6):
    given = one_node.feeds(model, inputs)
    found = parity.run_module(to_torch(model), given)
    for f, w in zip(found, ReferenceEvaluator(model).run(None, given), strict=True):
        assert (f.shape, f.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(f, w, rtol, atol)


def gradients(model, inputs):
    given = one_node.feeds(model, inputs)
    leaves = [torch.from_numpy(a) for a in given.values()]
    floats = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
    result = to_torch(model)(*leaves)
    (result[0] if isinstance(result, tuple) else result).square().sum().backward()
    return [leaf.grad for leaf in floats]


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("mask", [None, "float", "bool", "short"])
@pytest.mark.parametrize("past", [0, 3])
def test_attention_follows_the_reference(causal, softcap, mask, past) -> None:
    total = 5 + past
    masks = {
        None: None,
        "float": normal(2, 1, 4, total),
        "bool": RANDOM.random((4, 4, total)) < 0.7,
        "short": RANDOM.random((4, total - 2)) < 0.7,
    }
    inputs = {"q": normal(2, 4, 32), "k": normal(2, 5, 16), "v": normal(2, 5, 12), "mask": masks[mask]}
    inputs |= {"past_k": normal(2, 2, past, 8) if past else None, "past_v": normal(2, 2, past, 6) if past else None}
    names = {"y": 1, "present_k": 1, "present_v": 1} if past else {"y": 1}
    model = one_node.make(
        "Attention", inputs, outputs=names, opset=24, is_causal=causal, softcap=softcap, q_num_heads=4, kv_num_heads=2
    )
    check(model, inputs)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_scores_are_given_in_every_mode(mode, dtype) -> None:
    inputs = {name: normal(2, 2, 4, 8, dtype=dtype) for name in "qkv"} | {"mask": normal(4, 4, dtype=dtype)}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = {"y": kind, "scores": kind}
    model = one_node.make("Attention", inputs, outputs=outputs, opset=24, qk_matmul_output_mode=mode)
    model.graph.node[0].output[:] = ["y", "", "", "scores"]
    check(model, inputs, *((1e-5, 1e-6) if dtype is np.float32 else (1e-3, 1e-6)))


def test_mode_0_is_the_raw_product_also_with_softcap() -> None:
    # The text says so; the reference evaluator gives the capped scores.
    inputs = {name: normal(1, 1, 3, 4) for name in "qkv"}
    model = one_node.make("Attention", inputs, outputs={"y": 1, "scores": 1}, opset=24, softcap=1.0)
    model.graph.node[0].output[:] = ["y", "", "", "scores"]
    found = parity.run_module(to_torch(model), inputs)[1]
    np.testing.assert_allclose(found, inputs["q"] @ inputs["k"].swapaxes(-1, -2) / 2, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_a_query_that_sees_nothing_has_zeros_and_finite_gradients(softcap) -> None:
    mask = np.ones((4, 4), bool)
    mask[1] = False
    inputs = {name: normal(2, 2, 4, 8) for name in "qkv"} | {"mask": mask}
    model = one_node.make("Attention", inputs, opset=23, softcap=softcap)
    check(model, inputs)
    assert not parity.run_module(to_torch(model), inputs)[0][:, :, 1].any()
    for gradient in gradients(model, inputs):
        assert torch.isfinite(gradient).all()
        assert gradient.any()


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_exports_and_compiles_with_dynamic_batch_and_sequence(causal) -> None:
    inputs = {name: normal(2, 6, 16) for name in "qkv"} | {"mask": normal(2, 1, 6, 6)}
    shapes = dict.fromkeys("qkv", ("batch", "sequence", 16)) | {"mask": ("batch", 1, "sequence", "sequence")}
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    model = one_node.make("Attention", inputs, opset=23, shapes=shapes, is_causal=causal, **heads)
    module = to_torch(model)
    given = tuple(map(torch.from_numpy, inputs.values()))
    axes = (*[{0: DYNAMIC, 1: DYNAMIC}] * 3, {0: DYNAMIC, 2: DYNAMIC, 3: DYNAMIC})
    exported = torch.export.export(module, given, dynamic_shapes=axes, strict=False)
    other = [torch.randn(3, 9, 16) for _ in range(3)] + [torch.randn(3, 1, 9, 9)]
    torch.testing.assert_close(exported.module()(*other), module(*other))
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(*other), module(*other))


def test_integer_masks_are_refused() -> None:
    inputs = {name: normal(1, 1, 2, 4) for name in "qkv"} | {"mask": np.ones((2, 2), np.int64)}
    with pytest.raises(UnsupportedError, match="neither boolean"):
        to_torch(one_node.make("Attention", inputs, opset=23))


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_has_gradients_in_every_rule(rule) -> None:
    inputs = {
        "q": normal(2, 3, 16),
        "k": normal(2, 3, 8) / 4,
        "v": normal(2, 3, 12),
        "past": normal(2, 2, 4, 6),
        "decay": -np.abs(normal(2, 3, 8)) if "gated" in rule else None,
        "beta": np.abs(normal(2, 3, 1)) if "delta" in rule else None,
    }
    options = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule}
    model = one_node.make("LinearAttention", inputs, outputs={"y": 1, "state": 1}, opset=27, **options)
    check(model, inputs)
    assert all(g is not None and torch.isfinite(g).all() and g.any() for g in gradients(model, inputs))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [0, 4])
def test_rotary_embedding_has_gradients(interleaved, width) -> None:
    angles = normal(10, (width or 8) // 2)
    inputs = {"x": normal(2, 5, 24), "cos": np.cos(angles), "sin": np.sin(angles)}
    inputs["ids"] = RANDOM.integers(0, 10, (2, 5))
    options = {"interleaved": interleaved, "rotary_embedding_dim": width, "num_heads": 3}
    model = one_node.make("RotaryEmbedding", inputs, opset=23, constants=("cos", "sin"), **options)
    check(model, inputs)
    assert gradients(model, inputs)[0].any()


def guarded_softmax() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"]),
        helper.make_node("IsNaN", ["p"], ["empty"]),
        helper.make_node("Where", ["empty", "zero", "p"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 3)) for name in "xy"]
    zero = helper.make_tensor("zero", TensorProto.FLOAT, (), [0.0])
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_softmax_behind_which_exporters_catch_masked_rows_has_finite_gradients() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [-torch.inf] * 3], requires_grad=True)
    y = to_torch(guarded_softmax())(x)
    assert not y[1].any()
    y.square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad[0].any()
    assert not x.grad[1].any()
