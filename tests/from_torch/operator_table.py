"""The 62 operators that Knight's manual lists for its quantizer, as torch modules behind a layer that learns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everyone uses

from onnxqat.analysis import dataflow
from onnxqat.from_torch.export import export
from onnxqat.graph import io, qdq, shapes
from onnxqat.insertion.insert import InsertResult, insert_qdq
from tests.from_torch.modules import Call

IMAGE, SIGNAL, ROWS_OF_8, SEQUENCE, TOKENS = (4, 8, 8), (4, 9), (4, 8), (6, 4), (5,)
BATCH = 3


@dataclasses.dataclass(frozen=True)
class Row:
    """One operator.

    Attributes:
        title: as the manual calls it.
        kind: W weights and inputs, A input and output, P passes its grid on, F float, I integers.
        make: a new module for it.
        shape: of an input sample.
        forms: ONNX operators of which at least one is in the export.
    """

    title: str
    kind: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    forms: tuple[str, ...]


class Recurrent(nn.Module):
    """A recurrent layer without its final state as an output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)[0]
        return found


class RoiPool(torch.autograd.Function):
    """RoIPool of the whole image and of its upper left part, which torchvision exports in the same form."""

    SIZE = 2

    @staticmethod
    def forward(ctx: Any, x: Tensor, rois: Tensor) -> Tensor:
        pooled = []
        for index, left, top, right, bottom in rois.round().long().tolist():
            part = x[index, :, top : bottom + 1, left : right + 1]
            pooled.append(F.adaptive_max_pool2d(part, RoiPool.SIZE))
        return torch.stack(pooled)

    @staticmethod
    def symbolic(g: Any, x: Any, rois: Any) -> Any:
        shape = [RoiPool.SIZE, RoiPool.SIZE]
        return g.op("MaxRoiPool", x, rois, pooled_shape_i=shape, spatial_scale_f=1.0)


def roi_pool(x: Tensor) -> Tensor:
    rois = torch.tensor([[0, 0, 0, 7, 7], [1, 0, 0, 3, 5]], dtype=torch.float32)
    found: Tensor = RoiPool.apply(x, rois)
    return found


def call(function: Callable[[Tensor], Any], kind: str, *forms: str, title: str, shape: tuple[int, ...] = IMAGE) -> Row:
    return Row(title, kind, lambda: Call(function), shape, forms)


def layer(
    make: Callable[[], nn.Module], kind: str, *forms: str, title: str = "", shape: tuple[int, ...] = IMAGE
) -> Row:
    return Row(title or type(make()).__name__, kind, make, shape, forms)


TABLE: dict[int, tuple[Row, ...]] = {
    1: (
        layer(lambda: nn.Conv2d(4, 6, 3, 2, 1), "W", "Conv"),
        layer(lambda: nn.Conv1d(4, 6, 3, groups=2), "W", "Conv", shape=SIGNAL),
    ),
    2: (
        layer(lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, groups=2), "W", "ConvTranspose"),
        layer(lambda: nn.ConvTranspose1d(4, 6, 3, 2), "W", "ConvTranspose", shape=SIGNAL),
    ),
    3: (layer(lambda: nn.Linear(8, 5), "W", "Gemm", "MatMul", shape=ROWS_OF_8),),
    4: (
        layer(lambda: nn.MaxPool2d(3, 2, 1), "P", "MaxPool"),
        layer(lambda: nn.MaxPool1d(2), "P", "MaxPool", shape=SIGNAL),
    ),
    5: (layer(lambda: nn.AdaptiveAvgPool2d(1), "A", "GlobalAveragePool", "ReduceMean", title="AdaptiveAvgPool"),),
    6: (
        layer(lambda: nn.BatchNorm2d(4), "folded", "Conv"),
        layer(lambda: nn.BatchNorm1d(4), "folded", "Conv", shape=SIGNAL),
    ),
    7: (layer(nn.ReLU, "A", "Relu"),),
    8: (layer(lambda: nn.PReLU(4), "A", "PRelu"),),
    9: (
        layer(lambda: nn.Upsample(scale_factor=2), "P", "Resize", title="Upsample"),
        call(lambda x: F.interpolate(x, (5, 7), mode="bilinear"), "A", "Resize", title="interpolate"),
    ),
    10: (layer(lambda: nn.AvgPool2d(2), "A", "AveragePool"),),
    11: (layer(lambda: nn.LeakyReLU(0.1), "A", "LeakyRelu"),),
    12: (layer(nn.Tanh, "A", "Tanh"),),
    13: (layer(nn.Sigmoid, "A", "Sigmoid"),),
    14: (layer(nn.ReLU6, "A", "Clip"),),
    15: (layer(nn.ELU, "A", "Elu"),),
    16: (layer(nn.SELU, "A", "Selu"),),
    17: (call(lambda x: x.flatten(2), "P", "Flatten", "Reshape", title="flatten"),),
    18: (layer(lambda: nn.Softmax(1), "A", "Softmax"),),
    19: (layer(lambda: Recurrent(nn.RNN(4, 5, batch_first=True)), "W", "RNN", title="RNN", shape=SEQUENCE),),
    20: (
        layer(
            lambda: Recurrent(nn.LSTM(4, 5, batch_first=True, bidirectional=True)),
            "W",
            "LSTM",
            title="LSTM",
            shape=SEQUENCE,
        ),
    ),
    21: (
        layer(lambda: Recurrent(nn.GRU(4, 5, batch_first=True, num_layers=2)), "W", "GRU", title="GRU", shape=SEQUENCE),
    ),
    22: (call(lambda x: torch.cat([x, x * 0.5], 1), "A", "Concat", title="cat"),),
    23: (call(lambda x: x.split([1, 3], 1)[1], "P", "Split", "Slice", title="split"),),
    24: (call(lambda x: x.repeat(1, 2, 1, 1), "P", "Tile", title="repeat"),),
    25: (call(lambda x: x + x.flip(1), "A", "Add", title="add"),),
    26: (call(lambda x: x * x.flip(1), "A", "Mul", title="mul"),),
    27: (call(torch.abs, "A", "Abs", title="abs"),),
    28: (call(lambda x: torch.sqrt(x.abs() + 1), "F", "Sqrt", title="sqrt"),),
    29: (call(torch.exp, "F", "Exp", title="exp"),),
    30: (call(lambda x: x**2, "F", "Pow", "Mul", title="pow"),),
    31: (call(lambda x: torch.log(x.abs() + 1), "F", "Log", title="log"),),
    32: (call(torch.sin, "A", "Sin", title="sin"),),
    33: (call(torch.cos, "A", "Cos", title="cos"),),
    34: (call(lambda x: x[:, 1:3, ::2, -3:], "P", "Slice", title="[:, :]"),),
    35: (call(lambda x: x.transpose(1, 3), "P", "Transpose", title="transpose"),),
    36: (call(lambda x: x.view(x.shape[0], -1), "P", "Reshape", title="view"),),
    37: (call(lambda x: x[:, :1].squeeze(1), "P", "Squeeze", title="squeeze"),),
    38: (call(lambda x: x.unsqueeze(1), "P", "Unsqueeze", title="unsqueeze"),),
    39: (layer(lambda: nn.GLU(1), "A", "Sigmoid"),),
    40: (call(lambda x: torch.stack([x, x.flip(1)], 1), "A", "Concat", title="stack"),),
    41: (call(lambda x: x.chunk(2, 1)[0], "P", "Split", "Slice", title="chunk"),),
    42: (call(lambda x: x.mean((2, 3)), "A", "ReduceMean", title="mean"),),
    43: (call(lambda x: x - x.flip(1), "A", "Sub", title="sub"),),
    44: (call(lambda x: torch.minimum(x, x.flip(1)) + x.amin(1, keepdim=True), "A", "Min", "ReduceMin", title="min"),),
    45: (call(lambda x: torch.maximum(x, x.flip(1)) + x.amax(1, keepdim=True), "A", "Max", "ReduceMax", title="max"),),
    46: (layer(lambda: nn.PixelShuffle(2), "P", "DepthToSpace"),),
    47: (layer(lambda: nn.LayerNorm(8), "A", "LayerNormalization"),),
    48: (layer(nn.Hardswish, "A", "HardSwish", "HardSigmoid"),),
    49: (layer(nn.Hardsigmoid, "A", "HardSigmoid"),),
    50: (call(lambda x: x.clamp(-0.5, 0.7), "A", "Clip", title="clamp"),),
    51: (call(lambda x: (x, x.argmax(1)), "I", "ArgMax", title="argmax"),),
    52: (layer(lambda: nn.Embedding(7, 8), "W", "Gather", shape=TOKENS),),
    53: (layer(nn.SiLU, "A", "Sigmoid"),),
    54: (call(roi_pool, "P", "MaxRoiPool", title="RoIPool"),),
    55: (call(lambda x: x @ x.transpose(-1, -2), "A", "MatMul", title="matmul"),),
    56: (layer(nn.GELU, "A", "Erf", "Gelu"),),
    57: (layer(lambda: nn.PixelUnshuffle(2), "P", "Transpose", "SpaceToDepth"),),
    58: (call(lambda x: torch.tile(x, (1, 2)), "P", "Tile", title="tile"),),
    59: (call(lambda x: x.to(torch.float64).to(torch.float32), "F", "Cast", title="Tensor.to"),),
    60: (call(lambda x: x.permute(0, 2, 3, 1), "P", "Transpose", title="permute"),),
    61: (call(lambda x: x.reshape(x.shape[0], 2, 2, -1), "P", "Reshape", title="reshape"),),
    62: (call(lambda x: torch.roll(x, 2, 3), "P", "Slice", "Concat", title="roll"),),
}
ROWS: dict[str, Row] = {f"{n:02} {row.title}": row for n, rows in TABLE.items() for row in rows}


class Behind(nn.Module):
    """A row behind a layer that learns; an embedding learns itself."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        stems = {
            IMAGE: lambda: nn.Conv2d(4, 4, 1),
            SIGNAL: lambda: nn.Conv1d(4, 4, 1),
            ROWS_OF_8: lambda: nn.Linear(8, 8),
            SEQUENCE: lambda: nn.Linear(4, 4),
            TOKENS: nn.Identity,
        }
        self.stem = stems[row.shape]()
        self.operator = row.make()

    def forward(self, x: Tensor) -> Any:
        return self.operator(self.stem(x))


def example(row: Row, batch: int = BATCH) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    if row.shape == TOKENS:
        return torch.randint(0, 7, (batch, *row.shape), generator=generator)
    return torch.randn(batch, *row.shape, generator=generator)


@functools.cache
def exported(title: str) -> onnx.ModelProto:
    """The float model of a row, written by torch's tracing exporter."""
    torch.manual_seed(0)
    found = export(Behind(ROWS[title]), example(ROWS[title]), exporter="torchscript", input_names=["x"])
    assert isinstance(found, onnx.ModelProto)
    return found


@functools.cache
def quantized(title: str, backend: str) -> InsertResult:
    """The same with pairs, calibrated on the example."""
    calibration = {"x": example(ROWS[title]).numpy()}
    return insert_qdq(exported(title), backend, data=calibration, batch_size=BATCH, equalize=False, fast=True)


def operators(title: str) -> list[str]:
    """The ONNX operators of a row that compute data, without those of its stem."""
    model = io.load(exported(title))
    shapes.infer(model)
    return list(dict.fromkeys(node.op_type for node in _data_nodes(model)))


def told_operators(title: str) -> str:
    """The same for readers."""
    return ", ".join(operators(title)) or "folded into Conv"


def treatment(title: str, backend: str) -> str:
    """What a backend does with the operators of a row: which get pairs, which stay in float."""
    result = quantized(title, backend)
    model = io.load(result.model)
    left = {name for name, _ in result.plan.float_nodes}
    nodes = [n for n in _data_nodes(model) if not qdq.is_of_quantizer(n)]
    float_ones = dict.fromkeys(n.op_type for n in nodes if n.name in left or not _near_a_pair(n))
    others = ", ".join(dict.fromkeys(n.op_type for n in nodes if n.op_type not in float_ones))
    return "; ".join(part for part in (others, f"float: {', '.join(float_ones)}" if float_ones else "") if part) or "-"


def _data_nodes(model: ir.Model) -> list[ir.Node]:
    data = dataflow.data_nodes(model.graph)
    plumbing = ("Identity", "Constant")
    return [n for n in model.graph if n in data and n.op_type not in plumbing and not str(n.name).startswith("/stem/")]


def _near_a_pair(node: ir.Node) -> bool:
    """Whether a node reads a dequantized tensor, or what it makes is quantized."""
    makers = [v.producer() for v in node.inputs if v is not None]
    users = [user for v in node.outputs for user, _ in v.uses()]
    return any(map(qdq.is_dequantize, makers)) or any(user.op_type == "QuantizeLinear" for user in users)
