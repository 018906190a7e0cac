"""Segmentation of digits: mean IoU in float, calibrated with 4 bits, and after the recipe `segmentation`.

Each picture holds up to four digits of scikit-learn; the class of a pixel is its digit, or the background.

python tools/bench/digits_segmentation.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import onnxqat
from onnxqat.cli import main as cli

STEPS, BATCH = 300, 32


def pictures(count: int, digits: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    source = load_digits()
    x, y = np.zeros((count, 1, 16, 16), np.float32), np.zeros((count, 16, 16), np.int64)
    for i in range(count):
        for r in (0, 8):
            for c in (0, 8):
                if rng.random() < 0.6:
                    k = rng.choice(digits)
                    image = source.images[k] / 16
                    x[i, 0, r : r + 8, c : c + 8] = image
                    y[i, r : r + 8, c : c + 8] = np.where(image > 0.2, source.target[k] + 1, 0)
    return x + rng.normal(0, 0.05, x.shape).astype(np.float32), y


def network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after, kernel, stride in ((1, 24, 5, 1), (24, 32, 3, 2), (32, 48, 3, 1)):
        convolution = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
    layers += [nn.Conv2d(48, 32, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2, mode="nearest")]
    return nn.Sequential(*layers, nn.Conv2d(32, 11, 3, padding=1))


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    rng = np.random.default_rng(0)
    images, classes = pictures(600, np.arange(1297), rng)
    np.savez("train.npz", image=images, labels=classes)
    np.savez("test.npz", **dict(zip(("image", "labels"), pictures(200, np.arange(1297, 1797), rng), strict=True)))
    torch.manual_seed(0)
    net, x, y = network(), torch.from_numpy(images), torch.from_numpy(classes)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, STEPS)
    for _ in range(STEPS):
        pick = torch.randint(len(x), (BATCH,))
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    names = {"input_names": ["image"], "output_names": ["classes"]}
    onnxqat.export(net.eval(), x[:2], "model.onnx", exporter="torchscript", **names)
    run = "recipes run segmentation model.qdq.onnx --data train.npz --teacher model.onnx -o tuned.onnx"
    cli.run(["insert-qdq", "model.onnx", "--bits", "4,4", "-c", "train.npz", "--fast", "-o", "model.qdq.onnx"])
    cli.run(run.split())
    for file in ("model.qdq.onnx", "tuned.onnx"):
        report = onnxqat.validate("model.onnx", file, "test.npz", score="miou", use_torch=False)
        print(file, next(verdict.reason for verdict in report.verdicts if verdict.name == "accuracy"))


if __name__ == "__main__":
    main()
