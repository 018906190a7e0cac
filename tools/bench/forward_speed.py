"""Forward time of imported models against the hand-written torch modules that they were exported from, as a table.

    python tools/bench/forward_speed.py [--filter TEXT] [--rounds N] [--exporter dynamo|torchscript|both]

Both run interleaved in one process on one thread with the same weights; the figure is the median over the rounds of
CPU time of ours divided by theirs, below 1.0 where ours is faster. ``worst`` is the largest difference of the results.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from onnxqat.bridge.importing.importer import to_torch


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut that pads channels with a 1x1 convolution where they change."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        same = inner == outer and stride == 1
        self.shortcut = nn.Sequential() if same else nn.Conv2d(inner, outer, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, inner, h, w) -> (batch, outer, h / stride, w / stride)."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet20(nn.Module):
    """ResNet-20 for 32 x 32 images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        widths = [(16, 16, 1), (16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1)]
        widths += [(32, 64, 2), (64, 64, 1), (64, 64, 1)]
        self.blocks = nn.Sequential(*(BasicBlock(*w) for w in widths))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        y = self.blocks(self.stem(x))
        return self.head(torch.flatten(functional.adaptive_avg_pool2d(y, 1), 1))


class InvertedResidual(nn.Module):
    """Expand, depthwise, project."""

    def __init__(self, inner: int, outer: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inner * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers += [nn.Conv2d(inner, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()]
        layers += [
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(),
        ]
        layers += [nn.Conv2d(hidden, outer, 1, bias=False), nn.BatchNorm2d(outer)]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inner == outer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """MobileNetV2, width 1."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
        inner = 32
        rows = [
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ]
        for expand, outer, count, stride in rows:
            for index in range(count):
                layers.append(InvertedResidual(inner, outer, stride if index == 0 else 1, expand))
                inner = outer
        layers += [nn.Conv2d(inner, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.classifier(self.features(x).mean((2, 3)))


class Double(nn.Sequential):
    """Two convolutions with GroupNorm and SiLU."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__(
            nn.Conv2d(inner, outer, 3, padding=1),
            nn.GroupNorm(8, outer),
            nn.SiLU(),
            nn.Conv2d(outer, outer, 3, padding=1),
            nn.GroupNorm(8, outer),
            nn.SiLU(),
        )


class UNet(nn.Module):
    """Two levels down and up, bilinear upsampling, skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = Double(3, 16), Double(16, 32), Double(32, 64)
        self.up2, self.up1 = Double(96, 32), Double(48, 16)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Per-pixel logits."""
        first = self.down1(x)
        second = self.down2(functional.max_pool2d(first, 2))
        deep = self.middle(functional.max_pool2d(second, 2))
        up = self.up2(torch.cat([second, functional.interpolate(deep, scale_factor=2.0, mode="bilinear")], 1))
        up = self.up1(torch.cat([first, functional.interpolate(up, scale_factor=2.0, mode="bilinear")], 1))
        return self.head(up)


class Attention(nn.Module):
    """Self-attention with separate or joint projections."""

    def __init__(self, width: int, heads: int, *, joint: bool) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.ModuleList(
            [nn.Linear(width, 3 * width)] if joint else [nn.Linear(width, width) for _ in "qkv"]
        )
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """(batch, length, width) -> the same; `mask` is added to the scores."""
        batch, length, width = x.shape
        if len(self.projections) == 1:
            parts = self.projections[0](x).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            parts = tuple(p(x).view(batch, length, self.heads, -1).transpose(1, 2) for p in self.projections)
        y = functional.scaled_dot_product_attention(*parts, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """A transformer layer, normalization before (ViT) or after (BERT)."""

    def __init__(self, width: int, heads: int, *, before: bool) -> None:
        super().__init__()
        self.before = before
        self.attention = Attention(width, heads, joint=before)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """(batch, length, width) -> the same."""
        if self.before:
            x = x + self.attention(self.norm1(x), mask)
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.mlp(x))


class Bert(nn.Module):
    """A small BERT encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.norm = nn.Embedding(1000, 256), nn.Embedding(128, 256), nn.LayerNorm(256)
        self.layers = nn.ModuleList(Layer(256, 4, before=False) for _ in range(4))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(batch, length) ids and 0/1 mask -> (batch, length, 256)."""
        x = self.norm(self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)))
        added = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, added)
        return x


class ViT(nn.Module):
    """A small vision transformer on 64 x 64 images."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 192, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 192))
        self.position = nn.Parameter(torch.randn(1, 65, 192))
        self.layers = nn.ModuleList(Layer(192, 3, before=True) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1) + self.position
        for layer in self.layers:
            y = layer(y)
        return self.head(self.norm(y)[:, 0])


def image(side: int) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Makes batches of random images."""
    return lambda batch: (torch.randn(batch, 3, side, side),)


def text(batch: int) -> tuple[torch.Tensor, ...]:
    """Random ids and a mask."""
    return torch.randint(0, 1000, (batch, 64)), torch.ones(batch, 64, dtype=torch.int64)


MODELS: dict[str, tuple[type[nn.Module], Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "resnet20": (ResNet20, image(32)),
    "mobilenetv2": (MobileNetV2, image(96)),
    "unet": (UNet, image(64)),
    "bert": (Bert, text),
    "vit": (ViT, image(64)),
}


def exported(module: nn.Module, inputs: tuple[torch.Tensor, ...], exporter: str, path: pathlib.Path) -> None:
    """Write `module` with a dynamic batch."""
    names = [f"input{i}" for i in range(len(inputs))]
    if exporter == "dynamo":
        shapes = tuple({0: torch.export.Dim("batch")} for _ in inputs)
        torch.onnx.export(module, inputs, path, dynamo=True, dynamic_shapes=shapes, input_names=names, verbose=False)
    else:
        axes = {name: {0: "batch"} for name in names}
        torch.onnx.export(module, inputs, path, dynamo=False, opset_version=17, dynamic_axes=axes, input_names=names)


def seconds(module: nn.Module, inputs: tuple[torch.Tensor, ...], repeats: int) -> float:
    """CPU time of this thread for `repeats` calls."""
    start = time.thread_time()
    for _ in range(repeats):
        module(*inputs)
    return time.thread_time() - start


def measure(name: str, exporter: str, rounds: int) -> list[str]:
    """Cells of one row: model, exporter, ratios at batch 1 and 8, milliseconds of theirs, largest difference."""
    torch.manual_seed(0)
    make, batch_of = MODELS[name]
    theirs = make()
    with torch.no_grad():
        for _ in range(5):  # running statistics as of a trained network, so that differences show
            theirs.train()(*batch_of(4))
    theirs.eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = pathlib.Path(folder) / f"{name}.onnx"
        exported(theirs, batch_of(2), exporter, path)
        ours = to_torch(path).eval()
    cells, worst = [name, exporter, str(sum(n.op not in ("placeholder", "get_attr") for n in ours.graph.nodes))], 0.0
    with torch.no_grad():
        for batch in (1, 8):
            inputs = batch_of(batch)
            worst = max(worst, float((ours(*inputs) - theirs(*inputs)).abs().max()))
            repeats = max(1, int(0.02 / max(seconds(theirs, inputs, 2) / 2, 1e-5)))
            pairs = [(seconds(ours, inputs, repeats), seconds(theirs, inputs, repeats)) for _ in range(rounds)]
            ratio = statistics.median(a / b for a, b in pairs)
            cells.append(f"{ratio:.2f} ({statistics.median(b for _, b in pairs) / repeats * 1e3:.2f} ms)")
    return [*cells, f"{worst:.1e}"]


def main() -> None:
    """Print the table; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--exporter", choices=("dynamo", "torchscript", "both"), default="both")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| model | exporter | calls | batch 1 (eager) | batch 8 (eager) | worst |\n|---|---|---|---|---|---|")
    for name in MODELS:
        for exporter in ("dynamo", "torchscript"):
            if options.filter in name and options.exporter in (exporter, "both"):
                print("|", " | ".join(measure(name, exporter, options.rounds)), "|", flush=True)


if __name__ == "__main__":
    main()
