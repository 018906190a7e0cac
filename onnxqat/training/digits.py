"""The float net of the demo: a small residual CNN on scikit-learn's handwritten digits, trained in seconds."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

EPOCHS, BATCH, SEED = 12, 64, 0


class Net(nn.Module):
    """Convolution, one residual block, pooling, convolution, classifier: 8 x 8 images to 10 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
        )
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.pool_all = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Logits (N, 10) of images (N, 1, 8, 8)."""
        x = self.stem(image)
        x = self.pool(torch.relu(x + self.block(x)))
        logits: Tensor = self.classifier(self.pool_all(self.head(x)).flatten(1))
        return logits


def load() -> tuple[dict[str, npt.NDArray[np.float32]], dict[str, npt.NDArray[np.int64]]]:
    """1,797 real digits: images (N, 1, 8, 8) in 0..1 and labels (N,), each split into ``train`` and ``test``."""
    from sklearn.datasets import load_digits

    source = load_digits()
    order = np.random.default_rng(SEED).permutation(len(source.target))
    images = (source.images[order, None] / 16).astype(np.float32)
    labels = source.target[order].astype(np.int64)
    split = {"train": slice(0, 1297), "test": slice(1297, None)}
    return {k: images[s] for k, s in split.items()}, {k: labels[s] for k, s in split.items()}


def write_samples(folder: Path, images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], pictures: int) -> None:
    """Write ``data.npz`` with all images and labels, and the first `pictures` as files of ``images/``, a folder a class."""
    np.savez(folder / "data.npz", image=images, labels=labels)
    for number, (image, label) in enumerate(zip(images[:pictures], labels, strict=False)):
        place = folder / "images" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image[0] * 255).astype(np.uint8)).save(place / f"{number:03}.png")


def train(images: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> Net:
    """A trained float net, in eval mode; the same each time."""
    torch.manual_seed(SEED)
    net = Net()
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    steps = EPOCHS * -(-len(x) // BATCH)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(x))
        for start in range(0, len(x), BATCH):
            batch = order[start : start + BATCH]
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return net.eval()


def export(net: Net, path: Path) -> None:
    """Write the net as ONNX, BatchNormalization kept, batch size dynamic."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter needs no further package, and says that it is not the newest
        torch.onnx.export(
            net,
            (torch.zeros(1, 1, 8, 8),),
            str(path),
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        )
