"""Networks of DARTS in torch: the published genotype for CIFAR-10, and a cell as it is while it is searched.

Liu, Simonyan, Yang, "DARTS: Differentiable Architecture Search", ICLR 2019: eight operations (section 3.1), the cells
learned on CIFAR-10 by the second-order search (figures 4 and 5), reduction at a third and two thirds of the depth.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

NORMAL = (
    (("sep_conv_3x3", 0), ("sep_conv_3x3", 1)),
    (("sep_conv_3x3", 0), ("sep_conv_3x3", 1)),
    (("sep_conv_3x3", 1), ("skip_connect", 0)),
    (("skip_connect", 0), ("dil_conv_3x3", 2)),
)
REDUCE = (
    (("max_pool_3x3", 0), ("max_pool_3x3", 1)),
    (("skip_connect", 2), ("max_pool_3x3", 1)),
    (("max_pool_3x3", 0), ("skip_connect", 2)),
    (("skip_connect", 2), ("max_pool_3x3", 1)),
)
"""Operation and source of the two edges into each of the four nodes; sources 0 and 1 are the cells before."""

PRIMITIVES = (
    "none",
    "max_pool_3x3",
    "avg_pool_3x3",
    "skip_connect",
    "sep_conv_3x3",
    "sep_conv_5x5",
    "dil_conv_3x3",
    "dil_conv_5x5",
)


def convolution(inputs: int, outputs: int, size: int, stride: int, *, dilation: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size of an image but for its stride."""
    pad = dilation * (size // 2)
    return nn.Conv2d(inputs, outputs, size, stride, pad, dilation, groups, bias=False)


def depthwise(channels: int, size: int, stride: int, dilation: int = 1) -> list[nn.Module]:
    """Relu, depthwise and pointwise convolution, BatchNormalization."""
    return [
        nn.ReLU(),
        convolution(channels, channels, size, stride, dilation=dilation, groups=channels),
        convolution(channels, channels, 1, 1),
        nn.BatchNorm2d(channels),
    ]


class FactorizedReduce(nn.Module):
    """Halves an image by two convolutions of stride 2, of which one starts a place later, side by side."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs // 2, 1, 2, bias=False)
        self.second = nn.Conv2d(inputs, outputs - outputs // 2, 1, 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Compute both."""
        x = torch.relu(x)
        joined: Tensor = self.norm(torch.cat([self.first(x), self.second(x[:, :, 1:, 1:])], 1))
        return joined


class Zero(nn.Module):
    """The operation ``none``."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Zeros in the size of the other operations."""
        return x[:, :, :: self.stride, :: self.stride] * 0.0


def operation(name: str, channels: int, stride: int) -> nn.Module:
    """The operation `name`; in a search pools have a BatchNormalization behind them, which folds nowhere."""
    if name == "none":
        return Zero(stride)
    if name == "skip_connect":
        return nn.Identity() if stride == 1 else FactorizedReduce(channels, channels)
    if name == "max_pool_3x3":
        return nn.MaxPool2d(3, stride, 1)
    if name == "avg_pool_3x3":
        return nn.AvgPool2d(3, stride, 1, count_include_pad=False)
    size = int(name[-1])
    if name.startswith("dil"):
        return nn.Sequential(*depthwise(channels, size, stride, 2))
    return nn.Sequential(*depthwise(channels, size, stride), *depthwise(channels, size, 1))


class Cell(nn.Module):
    """Four nodes, each the sum of two operations; the result joins them."""

    def __init__(self, before: tuple[int, int], channels: int, *, reduces: bool, reduced: bool) -> None:
        super().__init__()
        self.first: nn.Module = (
            FactorizedReduce(before[0], channels)
            if reduced
            else nn.Sequential(nn.ReLU(), convolution(before[0], channels, 1, 1), nn.BatchNorm2d(channels))
        )
        self.second = nn.Sequential(nn.ReLU(), convolution(before[1], channels, 1, 1), nn.BatchNorm2d(channels))
        self.edges = REDUCE if reduces else NORMAL
        self.operations = nn.ModuleList(
            operation(name, channels, 2 if reduces and source < 2 else 1)
            for node in self.edges
            for name, source in node
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Compute the nodes in order."""
        states = [self.first(a), self.second(b)]
        for index, node in enumerate(self.edges):
            left, right = (self.operations[2 * index + k](states[source]) for k, (_, source) in enumerate(node))
            states.append(left + right)
        return torch.cat(states[2:], 1)


class Network(nn.Module):
    """A stem, cells, the mean of each image and a linear layer."""

    def __init__(self, channels: int = 16, cells: int = 8, classes: int = 10) -> None:
        super().__init__()
        width = 3 * channels
        self.stem = nn.Sequential(convolution(3, width, 3, 1), nn.BatchNorm2d(width))
        before, reduced, made = (width, width), False, []
        for index in range(cells):
            reduces = index in (cells // 3, 2 * cells // 3)
            channels *= 2 if reduces else 1
            made.append(Cell(before, channels, reduces=reduces, reduced=reduced))
            before, reduced = (before[1], 4 * channels), reduces
        self.cells = nn.ModuleList(made)
        self.head = nn.Linear(before[1], classes)

    def forward(self, image: Tensor) -> Tensor:
        """Logits."""
        a = b = self.stem(image)
        for cell in self.cells:
            a, b = b, cell(a, b)
        logits: Tensor = self.head(b.mean((2, 3)))
        return logits


class MixedOp(nn.Module):
    """All operations of an edge, weighted by a softmax."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.linspace(-1.0, 1.0, len(PRIMITIVES)))
        self.operations = nn.ModuleList(operation(name, channels, 1) for name in PRIMITIVES)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the weighted sum."""
        weights = torch.softmax(self.alpha, 0)
        total: Tensor = sum((weights[i] * op(x) for i, op in enumerate(self.operations)), torch.zeros_like(x))
        return total


class SearchCell(nn.Module):
    """A stem, two edges of a search into one node, and a classifier."""

    def __init__(self, channels: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, channels, 3, 2), nn.BatchNorm2d(channels))
        self.edges = nn.ModuleList([MixedOp(channels), MixedOp(channels)])
        self.head = nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        """Logits."""
        x = self.stem(image)
        logits: Tensor = self.head(torch.relu(self.edges[0](x) + self.edges[1](x)).mean((2, 3)))
        return logits
