"""com.microsoft's attention operators against onnxruntime."""

import numpy as np
import pytest
import torch
from onnx import TensorProto

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import one_node, parity

RANDOM = np.random.default_rng(0)
MS = "com.microsoft"
FLOAT = TensorProto.FLOAT
DYNAMIC = torch.export.Dim.DYNAMIC


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def integers(*values):
    return np.asarray(values, np.int32)


def ranked(model, *ranks):
    """The model with other ranks of its outputs."""
    for value, rank in zip(model.graph.output, ranks, strict=True):
        del value.type.tensor_type.shape.dim[:]
        for _ in range(rank):
            value.type.tensor_type.shape.dim.add()
    return model


def check(model, inputs, *ranks):
    if ranks:
        ranked(model, *ranks)
    return parity.check(model, one_node.feeds(model, inputs))


def masks(kind, batch, queries, keys):
    padding = np.ones((batch, keys), np.int32)
    padding[0, keys - 2 :] = 0
    return {
        "none": None,
        "lengths": integers(keys - 2, keys),
        "ends and starts": integers(keys, keys, 1, 0),
        "padding": padding,
        "each query": RANDOM.integers(0, 2, (batch, queries, keys)).astype(np.int32),
        "nothing": np.zeros((batch, keys), np.int32),
    }[kind]


MASKS = ["none", "lengths", "ends and starts", "padding", "each query", "nothing"]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("past", [0, 3])
def test_attention(mask, unidirectional, past) -> None:
    inputs = {"x": normal(2, 5, 12), "w": normal(12, 48), "b": normal(48), "mask": masks(mask, 2, 5, 5 + past)}
    inputs["past"] = normal(2, 2, 4, past, 4) if past else None
    outputs = {"y": FLOAT, "present": FLOAT} if past else {"y": FLOAT}
    options = {"num_heads": 4, "unidirectional": unidirectional}
    model = one_node.make("Attention", inputs, constants=["w", "b"], outputs=outputs, domain=MS, **options)
    check(model, inputs, *((3, 5) if past else (3,)))


def test_attention_with_other_sizes_a_scale_and_a_bias() -> None:
    inputs = {"x": normal(2, 5, 12), "w": normal(12, 16 + 16 + 24), "b": normal(56), "mask": None, "past": None}
    inputs["bias"] = normal(1, 4, 5, 5)
    options = {"num_heads": 4, "qkv_hidden_sizes": [16, 16, 24], "scale": 0.3}
    module = check(one_node.make("Attention", inputs, constants=["w", "b"], domain=MS, **options), inputs)
    x, bias = (torch.from_numpy(inputs[name]).requires_grad_() for name in ("x", "bias"))
    module(x, bias).square().sum().backward()
    assert all(leaf.grad is not None and leaf.grad.any() for leaf in (x, bias, *module.parameters()))


def test_attention_exports_and_compiles_with_dynamic_batch_and_sequence() -> None:
    inputs = {"x": normal(2, 5, 12), "w": normal(12, 48), "b": normal(48), "mask": masks("padding", 2, 5, 5)}
    shapes = {"x": ("batch", "sequence", 12), "mask": ("batch", "sequence")}
    options = {"num_heads": 4, "unidirectional": 1}
    model = one_node.make("Attention", inputs, constants=["w", "b"], domain=MS, shapes=shapes, **options)
    module = to_torch(model)
    given = (torch.from_numpy(inputs["x"]), torch.from_numpy(inputs["mask"]))
    exported = torch.export.export(module, given, dynamic_shapes=({0: DYNAMIC, 1: DYNAMIC},) * 2, strict=False)
    other = (torch.randn(3, 7, 12), torch.ones(3, 7, dtype=torch.int32))
    torch.testing.assert_close(exported.module()(*other), module(*other))
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(*other), module(*other))


@pytest.mark.parametrize("mask", ["none", "lengths", "padding"])
@pytest.mark.parametrize("per_column", [False, True])
def test_q_attention(mask, per_column) -> None:
    inputs = {
        "x": RANDOM.integers(0, 256, (2, 5, 12)).astype(np.uint8),
        "w": RANDOM.integers(-64, 64, (12, 48)).astype(np.int8),
        "b": normal(48),
        "x_scale": np.float32(0.02) * np.ones((), np.float32),
        "w_scale": RANDOM.random(48).astype(np.float32) / 50 if per_column else np.asarray(0.01, np.float32),
        "mask": masks(mask, 2, 5, 5),
        "x_zero": np.asarray(120, np.uint8),
        "w_zero": np.zeros(48, np.int8) if per_column else np.asarray(3, np.int8),
    }
    constants = [name for name in inputs if name not in ("x", "mask")]
    check(one_node.make("QAttention", inputs, constants=constants, domain=MS, num_heads=4), inputs)


@pytest.mark.parametrize("mask", ["none", "lengths", "padding", "each query", "nothing"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_multi_head_attention(mask, bias, unidirectional) -> None:
    inputs = {"q": normal(2, 5, 16), "k": normal(2, 7, 16), "v": normal(2, 7, 24), "b": normal(56) if bias else None}
    inputs["mask"] = masks(mask, 2, 5, 7)
    if unidirectional:
        inputs |= {"k": normal(2, 5, 16), "v": normal(2, 5, 24), "mask": masks(mask, 2, 5, 5)}
    options = {"num_heads": 4, "unidirectional": unidirectional}
    check(one_node.make("MultiHeadAttention", inputs, constants=["b"], domain=MS, **options), inputs)


def test_multi_head_attention_with_past_and_a_bias_of_the_scores() -> None:
    inputs = {"q": normal(2, 5, 16), "k": normal(2, 5, 16), "v": normal(2, 5, 16), "b": normal(48), "mask": None}
    inputs |= {"bias": normal(1, 4, 5, 8), "past_k": normal(2, 4, 3, 4), "past_v": normal(2, 4, 3, 4)}
    outputs = {"y": FLOAT, "present_k": FLOAT, "present_v": FLOAT}
    model = one_node.make("MultiHeadAttention", inputs, outputs=outputs, domain=MS, num_heads=4, scale=0.7)
    module = check(model, inputs, 3, 4, 4)
    leaves = [torch.from_numpy(a).requires_grad_() for a in one_node.feeds(model, inputs).values()]
    module(*leaves)[0].square().sum().backward()
    assert all(leaf.grad is not None and leaf.grad.any() for leaf in leaves)


@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention_over_keys_with_heads(bias) -> None:
    inputs = {
        "q": normal(2, 5, 16),
        "k": normal(2, 4, 7, 4),
        "v": normal(2, 4, 7, 4),
        "b": normal(48) if bias else None,
    }
    check(one_node.make("MultiHeadAttention", inputs, domain=MS, num_heads=4), inputs)


def test_packed_inputs_are_the_separate_ones() -> None:
    # onnxruntime has these forms on the GPU only.
    q, k, v = normal(2, 5, 16), normal(2, 5, 16), normal(2, 5, 16)
    wanted = parity.run_module(
        to_torch(one_node.make("MultiHeadAttention", given := {"q": q, "k": k, "v": v}, domain=MS, num_heads=4)), given
    )
    packed = {"qkv": np.stack([a.reshape(2, 5, 4, 4) for a in (q, k, v)], 3)}
    model = one_node.make("MultiHeadAttention", packed, domain=MS, num_heads=4, rank=3)
    parity.assert_close(parity.run_module(to_torch(model), packed), wanted)
    packed = {"q": q, "kv": np.stack([a.reshape(2, 5, 4, 4) for a in (k, v)], 3)}
    model = one_node.make("MultiHeadAttention", packed, domain=MS, num_heads=4)
    parity.assert_close(parity.run_module(to_torch(model), packed), wanted)


def caches(length=16, size=8):
    angles = normal(length, size // 2)
    return {"cos": np.cos(angles), "sin": np.sin(angles)}


def group(batch, queries, past, capacity, *, packed=False, last=None, **more):
    """Inputs of GroupQueryAttention with 4 heads, 2 of them for keys, of 16 features."""
    total = past + queries
    inputs = {"q": normal(batch, queries, 64), "k": normal(batch, queries, 32), "v": normal(batch, queries, 32)}
    if packed:
        inputs |= {"q": normal(batch, queries, 128), "k": None, "v": None}
    cached = (batch, 2, capacity, 16)
    inputs |= {"past_k": normal(*cached) if capacity else None, "past_v": normal(*cached) if capacity else None}
    inputs |= {"last": integers(*(last or [total - 1] * batch)), "total": np.asarray(total, np.int32)}
    return inputs | more


GROUP_OUTPUTS = {"y": FLOAT, "present_k": FLOAT, "present_v": FLOAT}


def check_group(inputs, valid=None, **options):
    model = one_node.make(
        "GroupQueryAttention", inputs, outputs=GROUP_OUTPUTS, domain=MS, num_heads=4, kv_num_heads=2, **options
    )
    ranked(model, 3, 4, 4)
    given = one_node.feeds(model, inputs)
    found, wanted = parity.run_module(to_torch(model), given), parity.session(model).run(None, given)
    for sample, last in enumerate(inputs["last"]):
        rows = found[0].shape[1] if valid is None else valid[sample]
        parity.assert_close([found[0][sample, :rows]], [wanted[0][sample, :rows]], "output")
        for index in (1, 2):
            assert found[index].shape == wanted[index].shape
            pair = [f[index][sample, :, : last + 1] for f in (found, wanted)]
            parity.assert_close(pair[:1], pair[1:], "cache")


@pytest.mark.parametrize("window", [-1, 1, 3])
@pytest.mark.parametrize(("queries", "past", "capacity"), [(5, 0, 0), (5, 0, 9), (1, 6, 6), (1, 6, 12), (3, 4, 4)])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_group_query_attention(queries, past, capacity, window, softcap) -> None:
    batch = 1 if past and queries > 1 else 2
    check_group(group(batch, queries, past, capacity), local_window_size=window, softcap=softcap)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("queries", "past", "capacity"), [(5, 0, 0), (1, 6, 6)])
def test_group_query_attention_rotates(queries, past, capacity, packed, interleaved) -> None:
    inputs = group(2, queries, past, capacity, packed=packed, **caches(size=16))
    check_group(inputs, do_rotary=1, rotary_interleaved=interleaved)


def test_group_query_attention_with_prompts_and_caches_of_different_lengths() -> None:
    check_group(group(2, 5, 0, 0, last=[2, 4], **caches(size=16)), valid=[3, 5], do_rotary=1)
    check_group(group(2, 1, 6, 10, last=[3, 6], **caches(size=16)), do_rotary=1)


@pytest.mark.parametrize(("queries", "past"), [(5, 0), (1, 6)])
def test_group_query_attention_with_a_bias_and_a_sink(queries, past) -> None:
    empty = dict.fromkeys(("cos", "sin", "ids"))
    bias = normal(1, 4, queries, queries + past)
    check_group(group(2, queries, past, past, **empty, bias=bias), scale=0.4, softcap=3.0)
    check_group(group(2, queries, past, past, **empty, bias=None, sink=normal(4)))
    check_group(group(2, queries, past, past), smooth_softmax=1)


def test_group_query_attention_in_both_directions() -> None:
    check_group(group(2, 5, 0, 0, last=[2, 4]), valid=[3, 5], causal=0)


def test_group_query_attention_has_gradients() -> None:
    inputs = group(2, 3, 0, 0, **caches(size=16))
    constants = ("last", "total", "cos", "sin")
    options = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    model = one_node.make("GroupQueryAttention", inputs, constants=constants, domain=MS, **options)
    leaves = [torch.from_numpy(inputs[name]).requires_grad_() for name in "qkv"]
    to_torch(model)(*leaves).square().sum().backward()
    assert all(leaf.grad is not None and leaf.grad.any() for leaf in leaves)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("layout", ["tokens", "heads"])
@pytest.mark.parametrize("start", [False, True])
def test_rotary_embedding(interleaved, layout, start) -> None:
    x = normal(2, 5, 24) if layout == "tokens" else normal(2, 3, 5, 8)
    ids = np.asarray([4]) if start else RANDOM.integers(0, 16, (2, 5))
    inputs = {"x": x, "ids": ids, **caches()}
    check(one_node.make("RotaryEmbedding", inputs, domain=MS, interleaved=interleaved), inputs)


def test_rotary_embedding_of_a_part() -> None:
    inputs = {"x": normal(2, 5, 24), "ids": RANDOM.integers(0, 16, (2, 5)), **caches(size=4)}
    check(one_node.make("RotaryEmbedding", inputs, domain=MS, num_heads=3, rotary_embedding_dim=4), inputs)


@pytest.mark.parametrize(
    ("op_type", "options", "message"),
    [
        ("Attention", {"do_rotary": 1}, "do_rotary"),
        ("Attention", {"past_present_share_buffer": 1}, "past_present_share_buffer"),
    ],
)
def test_other_forms_are_refused(op_type, options, message) -> None:
    inputs = {"x": normal(2, 5, 12), "w": normal(12, 48), "b": normal(48)}
    with pytest.raises(UnsupportedError, match=message):
        to_torch(one_node.make(op_type, inputs, domain=MS, num_heads=4, **options))


def test_windowed_caches_are_refused() -> None:
    inputs = group(1, 1, 6, 6)
    options = {"num_heads": 4, "kv_num_heads": 2, "sliding_window_cache": 1, "local_window_size": 6}
    with pytest.raises(UnsupportedError, match="windowed"):
        to_torch(one_node.make("GroupQueryAttention", inputs, domain=MS, **options))


@pytest.mark.parametrize(("queries", "past"), [(5, 0), (1, 6)])
def test_group_query_attention_takes_positions(queries, past) -> None:
    ids = RANDOM.integers(0, 16, (2, queries))
    check_group(group(2, queries, past, past, **caches(size=16), ids=ids), do_rotary=1)
