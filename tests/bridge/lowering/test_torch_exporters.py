"""Every operator of the torch operator table, exported by both of torch's exporters, against onnxruntime."""

import io
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that everyone uses

from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import parity
from tests.repetitions import pairs
from tests.torch_releases import since_2_7


class Call(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x):
        return self.function(*x)


class Recurrent(nn.Module):
    """A recurrent layer without its final state as an output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Affine(nn.Module):
    """``function(x, weight)`` with a weight of a given shape."""

    def __init__(self, function, *shape):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(*shape))

    def forward(self, x):
        return self.function(x, self.weight)


IMAGE = (4, 8, 8)
ROWS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "01 Conv2d": (nn.Conv2d(4, 6, 3, 2, 1, bias=False), IMAGE),
    "01 Conv1d": (nn.Conv1d(4, 6, 3, dilation=2, groups=2), (4, 9)),
    "02 ConvTranspose2d": (nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2), IMAGE),
    "02 ConvTranspose1d": (nn.ConvTranspose1d(4, 6, 3, 2), (4, 9)),
    "03 Linear": (nn.Linear(8, 5), (4, 8)),
    "03 Linear 2d": (nn.Sequential(nn.Flatten(), nn.Linear(32, 5)), (4, 8)),
    "04 MaxPool2d": (nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    "04 MaxPool1d": (nn.MaxPool1d(2), (4, 9)),
    "05 AdaptiveAvgPool": (nn.AdaptiveAvgPool2d(1), IMAGE),
    "05 AdaptiveAvgPool 2": (nn.AdaptiveAvgPool2d(2), IMAGE),
    "06 BatchNorm2d": (nn.BatchNorm2d(4).eval(), IMAGE),
    "06 BatchNorm1d": (nn.BatchNorm1d(4).eval(), (4, 9)),
    "07 ReLU": (nn.ReLU(), IMAGE),
    "08 PReLU": (nn.PReLU(4), IMAGE),
    "09 Upsample nearest": (nn.Upsample(scale_factor=2), IMAGE),
    "09 Upsample bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "09 Upsample align": (nn.Upsample(size=(13, 11), mode="bilinear", align_corners=True), IMAGE),
    "09 Upsample bicubic": (nn.Upsample(size=(13, 11), mode="bicubic"), IMAGE),
    "10 AvgPool": (nn.AvgPool2d(3, 2, 1), IMAGE),
    "10 AvgPool ceil": (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), IMAGE),
    "11 LeakyReLU": (nn.LeakyReLU(0.1), IMAGE),
    "12 Tanh": (nn.Tanh(), IMAGE),
    "13 Sigmoid": (nn.Sigmoid(), IMAGE),
    "14 ReLU6": (nn.ReLU6(), IMAGE),
    "15 ELU": (nn.ELU(0.7), IMAGE),
    "16 SELU": (nn.SELU(), IMAGE),
    "17 flatten": (Call(lambda x: x.flatten(2)), IMAGE),
    "18 Softmax": (nn.Softmax(1), IMAGE),
    "18 LogSoftmax": (nn.LogSoftmax(-1), IMAGE),
    "19 RNN": (Recurrent(nn.RNN(4, 5, batch_first=True)), (6, 4)),
    "20 LSTM": (Recurrent(nn.LSTM(4, 5, batch_first=True, bidirectional=True)), (6, 4)),
    "21 GRU": (Recurrent(nn.GRU(4, 5, batch_first=True, num_layers=2)), (6, 4)),
    "22 cat": (Call(lambda x: torch.cat([x, x * 2], 1)), IMAGE),
    "23 split": (Call(lambda x: x.split([1, 3], 1)[1]), IMAGE),
    "24 repeat": (Call(lambda x: x.repeat(1, 2, 1, 3)), IMAGE),
    "25 add": (Call(lambda x: x + x.mean((2, 3), keepdim=True)), IMAGE),
    "26 mul": (Call(lambda x: x * 0.3 * x), IMAGE),
    "27 abs": (Call(torch.abs), IMAGE),
    "28 sqrt": (Call(lambda x: torch.sqrt(x.abs() + 1)), IMAGE),
    "29 exp": (Call(torch.exp), IMAGE),
    "30 pow": (Call(lambda x: x**2 + x.abs() ** 0.7), IMAGE),
    "31 log": (Call(lambda x: torch.log(x.abs() + 1)), IMAGE),
    "32 sin": (Call(torch.sin), IMAGE),
    "33 cos": (Call(torch.cos), IMAGE),
    "34 slicing": (Call(lambda x: x[:, 1:3, ::2, -3:]), IMAGE),
    "34 indexing": (Call(lambda x: x[:, 1, :, [0, 2]]), IMAGE),
    "35 transpose": (Call(lambda x: x.transpose(1, 3)), IMAGE),
    "36 view": (Call(lambda x: x.reshape(x.shape[0], -1)), IMAGE),
    "37 squeeze": (Call(lambda x: x.mean(2, keepdim=True).squeeze(2)), IMAGE),
    "38 unsqueeze": (Call(lambda x: x.unsqueeze(1)), IMAGE),
    "39 GLU": (nn.GLU(1), IMAGE),
    "40 stack": (Call(lambda x: torch.stack([x, -x], 1)), IMAGE),
    "41 chunk": (Call(lambda x: x.chunk(2, 1)[0]), IMAGE),
    "42 mean": (Call(lambda x: x.mean((1, 2))), IMAGE),
    "43 sub": (Call(lambda x: x - x.amin(1, keepdim=True)), IMAGE),
    "44 min": (Call(lambda x: torch.minimum(x, x.flip(1)) + x.min(1, keepdim=True)[0]), IMAGE),
    "45 max": (Call(lambda x: torch.maximum(x, -x) + x.amax(1, keepdim=True)), IMAGE),
    "46 PixelShuffle": (nn.PixelShuffle(2), IMAGE),
    "47 LayerNorm": (nn.LayerNorm(8), IMAGE),
    "48 Hardswish": (nn.Hardswish(), IMAGE),
    "49 Hardsigmoid": (nn.Hardsigmoid(), IMAGE),
    "50 clamp": (Call(lambda x: x.clamp(-0.5, 0.7).clamp(min=0)), IMAGE),
    "51 argmax": (Call(lambda x: x.argmax(1)), IMAGE),
    "52 Embedding": (Call(lambda x: F.embedding((x > 0).long(), torch.arange(6.0).reshape(2, 3))), (5,)),
    "53 SiLU": (nn.SiLU(), IMAGE),
    "55 matmul": (Call(lambda x: x @ x.transpose(-1, -2)), IMAGE),
    "55 matmul weight": (Affine(torch.matmul, 8, 3), IMAGE),
    "56 GELU": (nn.GELU(), IMAGE),
    "56 GELU tanh": (nn.GELU("tanh"), IMAGE),
    "57 PixelUnshuffle": (nn.PixelUnshuffle(2), IMAGE),
    "58 tile": (Call(lambda x: torch.tile(x, (1, 2))), IMAGE),
    "59 to": (Call(lambda x: (x * 3).to(torch.int32).to(torch.float32)), IMAGE),
    "60 permute": (Call(lambda x: x.permute(0, 2, 3, 1)), IMAGE),
    "61 reshape": (Call(lambda x: x.reshape(x.shape[0], 2, 2, -1)), IMAGE),
    "62 roll": (Call(lambda x: torch.roll(x, (1, -2), (2, 3))), IMAGE),
    "GroupNorm": (nn.GroupNorm(2, 4), IMAGE),
    "InstanceNorm": (nn.InstanceNorm2d(4, affine=True), IMAGE),
    "Softplus, Mish": (nn.Sequential(nn.Softplus(), nn.Mish()), IMAGE),
    "CELU": (nn.CELU(0.7), IMAGE),
    "norm": (Call(lambda x: x / x.norm(dim=1, keepdim=True)), IMAGE),
    "cumsum": (Call(lambda x: x.cumsum(1)), IMAGE),
    "rounding": (Call(lambda x: (x * 3).round() + x.floor() - x.ceil() + x.sign()), IMAGE),
    "triu": (Call(lambda x: x.triu(1) + x.tril(-1)), IMAGE),
    "topk": (Call(lambda x: x.topk(3, 1)[0]), IMAGE),
    "where": (Call(lambda x: torch.where(x > 0, x, x * 0.1)), IMAGE),
    "gather": (Call(lambda x: x.gather(1, (x > 0).long())), IMAGE),
    "einsum": (Call(lambda x: torch.einsum("bchw,bkhw->bck", x, x)), IMAGE),
    "expand": (Call(lambda x: x[:, :1].expand(-1, 3, -1, -1)), IMAGE),
    "pad": (Call(lambda x: F.pad(F.pad(x, (1, 2, 0, 1)), (2, 1, 1, 1), mode="reflect")), IMAGE),
    "arange": (Call(lambda x: x + torch.arange(x.shape[-1]).to(x.dtype)), IMAGE),
    "remainder": (Call(lambda x: torch.remainder(x, 0.7) + torch.fmod(x, 0.3)), IMAGE),
    "attention": (Call(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)), (2, 6, 8)),
}


class Together(nn.Module):
    """Several rows on one input: torch's newer exporter takes seconds a call, however small the module."""

    def __init__(self, rows: list[str]) -> None:
        super().__init__()
        self.rows = nn.ModuleList(ROWS[row][0] for row in rows)

    def forward(self, x):
        return tuple(row(x) for row in self.rows)


def by_shape() -> dict[tuple[int, ...], list[str]]:
    groups: dict[tuple[int, ...], list[str]] = {}
    for row, (_, shape) in ROWS.items():
        groups.setdefault(shape, []).append(row)
    return groups


def example(shape: tuple[int, ...], batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, *shape)).astype(np.float32)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("row", ROWS)
def test_operator_of_the_torchscript_exporter(row: str, opset: int) -> None:
    module, shape = ROWS[row]
    buffer = io.BytesIO()
    try:
        torch.onnx.export(
            module.eval(),
            (torch.from_numpy(example(shape, 2)),),
            buffer,
            dynamo=False,
            opset_version=opset,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )
    except torch.onnx.errors.UnsupportedOperatorError as error:
        pytest.skip(f"torch does not export it: {str(error)[:120]}")
    model = onnx.load_from_string(buffer.getvalue())
    for batch in (1, 3):
        parity.check(model, {"x": example(shape, batch)})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("shape", "opset"), pairs([*by_shape()], [20, 18]), ids=str)
@since_2_7
def test_operators_of_the_dynamo_exporter(shape: tuple[int, ...], opset: int) -> None:
    if opset == 20 and shape == (6, 4):
        pytest.skip("recurrent layers take the exporter ten seconds each and do not change after opset 18")
    rows = by_shape()[shape]
    x = torch.from_numpy(example(shape, 2))
    shapes = ({0: torch.export.Dim("batch")},)
    with torch.no_grad():
        program = torch.onnx.export(
            Together(rows).eval(), (x,), dynamo=True, opset_version=opset, dynamic_shapes=shapes, verbose=False
        )
    model = program.model_proto
    module, runner = to_torch(model), parity.session(model)
    assert len(module.output_names) == len(rows)
    for batch in (1, 3):
        given = {module.input_names[0]: example(shape, batch)}
        found, wanted = parity.run_module(module, given), runner.run(None, given)
        for row, f, w in zip(rows, found, wanted, strict=True):
            parity.assert_close([f], [w], row)
