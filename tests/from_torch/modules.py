"""Small modules to export."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Call(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class Block(nn.Module):
    """Two convolutions with BatchNormalization whose parameters are still what they start as, equal to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(4, 2)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(self.second(self.first(image)).mean((2, 3))))
        return logits


def image(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 6, 6, generator=torch.Generator().manual_seed(batch))
