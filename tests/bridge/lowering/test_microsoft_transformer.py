"""Fused activations, norms and products against onnxruntime, or against the operators that they stand for."""

import numpy as np
import pytest
import torch
from onnx import TensorProto
from torch.nn import functional

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import one_node, parity

RANDOM = np.random.default_rng(0)
MS = "com.microsoft"
DYNAMIC = torch.export.Dim.DYNAMIC


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def check(op_type, inputs, constants=(), **options):
    model = one_node.make(op_type, inputs, constants=constants, domain=MS, **options)
    module = parity.check(model, one_node.feeds(model, inputs))
    leaves = [torch.from_numpy(a) for a in one_node.feeds(model, inputs).values()]
    floats = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
    result = module(*leaves)
    (result[0] if isinstance(result, tuple) else result).square().sum().backward()
    assert all(leaf.grad is not None and leaf.grad.any() for leaf in [*floats, *module.parameters()])
    return module


@pytest.mark.parametrize("op_type", ["Gelu", "FastGelu", "QuickGelu"])
def test_activations(op_type) -> None:
    check(op_type, {"x": normal(2, 3, 8)})


@pytest.mark.parametrize("op_type", ["BiasGelu", "FastGelu"])
def test_activations_with_a_bias(op_type) -> None:
    check(op_type, {"x": normal(2, 3, 8), "b": normal(8)}, constants=["b"])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
def test_skip_layer_normalization(bias, beta, skip) -> None:
    inputs = {"x": normal(2, 3, 8), "skip": normal(*skip), "gamma": normal(8)}
    inputs |= {"beta": normal(8) if beta else None, "bias": normal(8) if bias else None}
    model = one_node.make("SkipLayerNormalization", inputs, domain=MS, outputs={"y": 1, "sum": 1}, epsilon=1e-3)
    model.graph.node[0].output[:] = ["y", "", "", "sum"]
    parity.check(model, one_node.feeds(model, inputs))
    check("SkipLayerNormalization", inputs, constants=["gamma", "beta", "bias"])


@pytest.mark.parametrize("bias", [False, True])
def test_skip_simplified_layer_normalization(bias) -> None:
    inputs = {"x": normal(2, 3, 8), "skip": normal(2, 3, 8), "gamma": normal(8), "bias": normal(8) if bias else None}
    check("SkipSimplifiedLayerNormalization", inputs, constants=["gamma"], epsilon=1e-3)


def test_skip_layer_normalization_exports_and_compiles_with_dynamic_batch_and_sequence() -> None:
    inputs = {"x": normal(2, 3, 8), "skip": normal(2, 3, 8), "gamma": normal(8), "beta": normal(8)}
    shapes = dict.fromkeys(("x", "skip"), ("batch", "sequence", 8))
    model = one_node.make("SkipLayerNormalization", inputs, constants=("gamma", "beta"), domain=MS, shapes=shapes)
    module = to_torch(model)
    given = tuple(torch.from_numpy(inputs[name]) for name in ("x", "skip"))
    exported = torch.export.export(module, given, dynamic_shapes=({0: DYNAMIC, 1: DYNAMIC},) * 2, strict=False)
    other = (torch.randn(3, 5, 8), torch.randn(3, 5, 8))
    torch.testing.assert_close(exported.module()(*other), module(*other))
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(*other), module(*other))


def test_saved_statistics_are_refused() -> None:
    inputs = {"x": normal(2, 3, 8), "skip": normal(2, 3, 8), "gamma": normal(8)}
    with pytest.raises(UnsupportedError, match="saved statistics"):
        to_torch(one_node.make("SkipLayerNormalization", inputs, domain=MS, outputs={"y": 1, "mean": 1}))


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_embed_layer_normalization(segments, mask, positions) -> None:
    def ids(*shape, limit=7):
        return RANDOM.integers(0, limit, shape).astype(np.int32)

    inputs = {
        "ids": ids(2, 4),
        "segments": ids(2, 4, limit=2) if segments else None,
        "words": normal(7, 8),
        "places": normal(9, 8),
        "segment_table": normal(2, 8) if segments else None,
        "gamma": normal(8),
        "beta": normal(8),
        "mask": np.asarray([[1, 1, 1, 0], [1, 0, 0, 0]], np.int32) if mask else None,
        "position_ids": ids(2, 4) if positions else None,
    }
    outputs = {"y": 1, "mask_index": TensorProto.INT32, "sum": 1}
    weights = ["words", "places", "segment_table", "gamma", "beta"]
    model = one_node.make("EmbedLayerNormalization", inputs, constants=weights, domain=MS, outputs=outputs, rank=3)
    del model.graph.output[1].type.tensor_type.shape.dim[1:]
    module = parity.check(model, one_node.feeds(model, inputs))
    module(*map(torch.from_numpy, one_node.feeds(model, inputs).values()))[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("op_type", ["FusedMatMul", "TransposeMatMul"])
def test_fused_mat_mul(trans_a, trans_b, op_type) -> None:
    inputs = {"a": normal(2, *((4, 3) if trans_a else (3, 4))), "b": normal(2, *((5, 4) if trans_b else (4, 5)))}
    check(op_type, inputs, transA=trans_a, transB=trans_b, alpha=0.25)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_fused_mat_mul_with_transposed_batches(trans_a, trans_b) -> None:
    a = normal(4, 2, 3) if trans_a else normal(3, 2, 4)
    inputs = {"a": a, "b": normal(5, 2, 4) if trans_b else normal(4, 2, 5)}
    check("FusedMatMul", inputs, transA=trans_a, transB=trans_b, transBatchA=1, transBatchB=1)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("Relu", []),
        ("Sigmoid", []),
        ("Tanh", []),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.5, 0.5]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
@pytest.mark.parametrize("added", [False, True])
def test_fused_conv(activation, parameters, added) -> None:
    inputs = {"x": normal(2, 3, 6, 6), "w": normal(4, 3, 3, 3) / 4, "b": normal(4)}
    inputs["z"] = normal(2, 4, 6, 6) if added else None
    options = {"activation": activation, "activation_params": parameters or None, "pads": [1, 1, 1, 1]}
    check("FusedConv", inputs, constants=["w", "b"], **options)


@pytest.mark.parametrize(
    ("activation", "options"),
    [
        ("Relu", {}),
        ("LeakyRelu", {"activation_alpha": 0.2}),
        ("Tanh", {}),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
        ("Elu", {"activation_alpha": 0.5}),
    ],
)
def test_fused_gemm(activation, options) -> None:
    inputs = {"a": normal(3, 4), "b": normal(5, 4), "c": normal(5)}
    check("FusedGemm", inputs, constants=["b", "c"], activation=activation, transB=1, alpha=0.5, **options)


def test_unknown_activations_are_refused() -> None:
    inputs = {"a": normal(3, 4), "b": normal(4, 5)}
    with pytest.raises(UnsupportedError, match="activation Sine"):
        to_torch(one_node.make("FusedGemm", inputs, domain=MS, activation="Sine"))


# onnxruntime has these on the GPU only; they are compared with what their text says.


def module_of(op_type, inputs, **options):
    return to_torch(one_node.make(op_type, inputs, domain=MS, **options))(*map(torch.from_numpy, inputs.values()))


def test_bias_add_and_bias_split_gelu() -> None:
    x, bias, skip = map(torch.from_numpy, (normal(2, 3, 8), normal(8), normal(2, 3, 8)))
    found = module_of("BiasAdd", {"x": x.numpy(), "bias": bias.numpy(), "skip": skip.numpy()})
    torch.testing.assert_close(found, x + bias + skip)
    left, right = (x + bias).chunk(2, -1)
    found = module_of("BiasSplitGelu", {"x": x.numpy(), "bias": bias.numpy()})
    torch.testing.assert_close(found, left * functional.gelu(right))


@pytest.mark.parametrize("inner", [0, 1])
def test_bias_softmax(inner) -> None:
    x = normal(2, 3, 4, 5)
    bias = normal(2, 1, 1, 5) if inner else normal(3, 4, 5)
    found = module_of("BiasSoftmax", {"x": x, "bias": bias}, axis=3, is_inner_broadcast=inner)
    torch.testing.assert_close(found, torch.softmax(torch.from_numpy(x + bias), -1))


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("skip", [False, True])
def test_group_norm(last, activation, skip) -> None:
    shape = (2, 3, 5, 8) if last else (2, 8, 3, 5)
    inputs = {"x": normal(*shape), "gamma": normal(8), "beta": normal(8)}
    if skip:
        inputs |= {"skip": normal(2, 8), "bias": normal(8)}
    options = {"channels_last": last, "activation": activation, "groups": 2, "epsilon": 1e-3}
    found = module_of("SkipGroupNorm" if skip else "GroupNorm", inputs, **options)
    first = torch.from_numpy(np.moveaxis(inputs["x"], -1, 1) if last else inputs["x"])
    if skip:
        first = first + torch.from_numpy(inputs["skip"] + inputs["bias"])[..., None, None]
    wanted = functional.group_norm(first, 2, *map(torch.from_numpy, (inputs["gamma"], inputs["beta"])), 1e-3)
    wanted = functional.silu(wanted) if activation else wanted
    torch.testing.assert_close(found, wanted.movedim(1, -1) if last else wanted)


@pytest.mark.parametrize("segments", [False, True])
def test_embeddings_of_codes(segments) -> None:
    def code(*shape):
        return RANDOM.integers(0, 256, shape).astype(np.uint8)

    def wherever(array):
        return array if segments else None

    inputs = {
        "ids": RANDOM.integers(0, 7, (2, 4)).astype(np.int32),
        "segments": wherever(RANDOM.integers(0, 2, (2, 4)).astype(np.int32)),
        "words": code(7, 8),
        "places": code(9, 8),
        "segment_table": wherever(code(2, 8)),
        "gamma": code(8),
        "beta": code(8),
        "mask": np.asarray([[1, 1, 1, 0], [1, 0, 0, 0]], np.int32),
    }
    tables = ("words", "places", "segment_table", "gamma", "beta")
    given = [name for name in tables if inputs[name] is not None]
    inputs |= {
        f"{name}_scale": np.float32(0.01) * np.ones((), np.float32) if name in given else None for name in tables
    }
    inputs |= {
        f"{name}_zero": np.asarray(100 + i, np.uint8) if name in given else None for i, name in enumerate(tables)
    }
    outputs = {"y": 1, "mask_index": TensorProto.INT32}
    constants = [name for name in inputs if name not in ("ids", "segments", "mask")]
    model = one_node.make("QEmbedLayerNormalization", inputs, constants=constants, domain=MS, outputs=outputs, rank=3)
    del model.graph.output[1].type.tensor_type.shape.dim[1:]
    parity.check(model, one_node.feeds(model, inputs))
