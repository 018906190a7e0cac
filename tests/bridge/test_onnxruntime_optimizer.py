"""What onnxruntime's transformer optimizer, quantizer and graph optimizations make of a small BERT."""

import logging
import math
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from torch import nn
from torch.nn import functional

from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import parity

HIDDEN, HEADS, WORDS, PLACES = 32, 4, 100, 16
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
DYNAMIC = torch.export.Dim.DYNAMIC


class Block(nn.Module):
    """A transformer layer, spelled as the optimizer expects it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.inner, self.outer = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)

    def split(self, x):
        return x.view(x.size(0), x.size(1), HEADS, HIDDEN // HEADS).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(HIDDEN // HEADS)
        mixed = torch.matmul(torch.softmax(scores + mask, -1), v).permute(0, 2, 1, 3).contiguous()
        x = self.first(self.out(mixed.view(mixed.size(0), mixed.size(1), HIDDEN)) + x)
        return self.second(self.outer(functional.gelu(self.inner(x))) + x)


class Bert(nn.Module):
    """Two layers behind the embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.types = (nn.Embedding(n, HIDDEN) for n in (WORDS, PLACES, 2))
        self.norm, self.blocks = nn.LayerNorm(HIDDEN), nn.ModuleList([Block(), Block()])
        self.register_buffer("order", torch.arange(PLACES)[None])

    def forward(self, ids, mask, types):
        added = (1.0 - mask[:, None, None, :].to(torch.float32)) * -10000.0
        x = self.norm(self.words(ids) + self.types(types) + self.places(self.order[:, : ids.size(1)]))
        for block in self.blocks:
            x = block(x, added)
        return x


def feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    mask = np.ones((batch, length), np.int64)
    mask[0, length - 3 :] = 0
    return dict(zip(INPUTS, (random.integers(0, WORDS, (batch, length)), mask, np.zeros_like(mask)), strict=True))


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    axes = {name: {0: "batch", 1: "sequence"} for name in (*INPUTS, "y")}
    given = tuple(torch.from_numpy(a) for a in feeds(2, 8).values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Bert().eval(),
            given,
            str(path),
            opset_version=14,
            input_names=list(INPUTS),
            output_names=["y"],
            dynamic_axes=axes,
            dynamo=False,
        )
    return path


def optimized(bert: Path, **options) -> Path:
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    chosen = FusionOptions("bert")
    for name, value in options.items():
        setattr(chosen, name, value)
    model = optimizer.optimize_model(
        str(bert), model_type="bert", num_heads=HEADS, hidden_size=HIDDEN, optimization_options=chosen, opt_level=0
    )
    path = bert.parent / f"{'_'.join(options) or 'optimized'}.onnx"
    model.save_model_to_file(str(path))
    return path


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node if node.domain == "com.microsoft"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"EmbedLayerNormalization", "Attention", "SkipLayerNormalization", "BiasGelu"}),
        ({"use_multi_head_attention": True}, {"MultiHeadAttention", "SkipLayerNormalization"}),
        ({"enable_gelu_approximation": True}, {"FastGelu", "Attention"}),
        ({"enable_embed_layer_norm": False}, {"Attention", "BiasGelu"}),
    ],
)
def test_optimized_models_train_export_and_compile(bert, options, expected) -> None:
    path = optimized(bert, **options)
    assert expected <= operators(path)
    for batch, length in ((1, 8), (3, 11)):
        module = parity.check(str(path), feeds(batch, length))
    given = tuple(torch.from_numpy(a) for a in feeds(2, 6).values())
    module(*given).square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in module.parameters())
    shapes = ({0: DYNAMIC, 1: DYNAMIC},) * 3
    exported = torch.export.export(module, given, dynamic_shapes=shapes, strict=False)
    other = tuple(torch.from_numpy(a) for a in feeds(3, 9).values())
    torch.testing.assert_close(exported.module()(*other), module(*other))
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(*other), module(*other))


@pytest.mark.parametrize("fused", [False, True])
def test_dynamically_quantized_models(bert, fused) -> None:
    # 7 bits, as processors without VNNI add pairs of larger products in 16 bits.
    source = optimized(bert) if fused else bert
    path = bert.parent / "dynamic.onnx"
    quiet(quantize_dynamic, str(source), str(path), reduce_range=True, extra_options={"DefaultTensorType": 1})
    assert not fused or {"QAttention", "QEmbedLayerNormalization"} <= operators(path)
    assert_near(path)
    saved = saved_by_session(path)
    assert {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"} & operators(saved)
    assert_near(saved)


def test_the_form_with_quantized_operators(bert) -> None:
    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [feeds(2, 8)]

        def get_next(self):
            return self.left.pop() if self.left else None

    path = bert.parent / "static.onnx"
    options = {"quant_format": QuantFormat.QOperator, "reduce_range": True}
    quiet(quantize_static, str(bert), str(path), Reader(), **options)
    assert {"QLinearAdd", "QLinearMul", "QLinearSoftmax"} <= operators(path)
    assert_near(path)


def assert_near(path: Path) -> None:
    """Like onnxruntime, but that rounding in float operators between the integer ones may move a code by one."""
    given = feeds(2, 8)
    found, wanted = parity.run_module(to_torch(path), given)[0], parity.session(str(path)).run(None, given)[0]
    assert found.shape == wanted.shape
    step = np.abs(wanted).max() / 127
    assert np.abs(found - wanted).max() < 3 * step
    assert np.abs(found - wanted).mean() < step / 4


def quiet(function, *arguments, **options) -> None:
    """Call a quantizer of onnxruntime, which recommends preprocessing in warnings."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*arguments, **options)
    finally:
        logging.disable(logging.NOTSET)


def saved_by_session(path: Path) -> Path:
    """The model as onnxruntime's extended optimizations leave it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path.with_suffix(".saved.onnx"))
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return path.with_suffix(".saved.onnx")
