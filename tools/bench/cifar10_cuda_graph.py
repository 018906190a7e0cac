"""QAT of ResNet-20 on one GPU with the whole training step as one CUDA graph: the bridge module under another trainer.

    python tools/bench/cifar10_cuda_graph.py --bits 4,4 --seconds 160 --output runs/cifar10/w4a4_gpu.onnx

For networks this small an eager step spends its time launching kernels; a replayed graph launches one. Images,
augmentation, teacher, student, optimizer, schedule and moving average all live in the graph. The length of the run is
set in seconds of training: the cosine schedule is laid out once the time of a step is known. Starts from
``resnet20_cifar10_bn.onnx`` alone; nothing here is scored.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared
import cifar10_resnet20 as bench

from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.graph import io
from onnxqat.training import methods
from onnxqat.training.finetune import freeze_constants
from onnxqat.training.objective.losses import Loss
from onnxqat.training.optim import optimizers

CROP = 4  # pixels of padding on each side
SAVE_INTERVAL = 20.0  # seconds


class Samples:
    """The training set on the device, in a new order each epoch; :meth:`draw` is made of device operations alone."""

    def __init__(self, images: Tensor, labels: Tensor, batch_size: int) -> None:
        self.images = nn.functional.pad(images, (CROP, CROP, CROP, CROP)).permute(0, 2, 3, 1).contiguous()
        self.labels, self.batch_size = labels, batch_size
        self.steps = len(labels) // batch_size
        self.order = torch.randperm(len(labels), device=images.device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=images.device)
        self._span = torch.arange(32, device=images.device)
        self._batch = torch.arange(batch_size, device=images.device)

    def shuffle(self) -> None:
        """Begin an epoch."""
        self.order.copy_(torch.randperm(len(self.order), device=self.order.device))
        self.cursor.zero_()

    def draw(self) -> tuple[Tensor, Tensor]:
        """The next batch: random crop and flip, (N, 3, 32, 32) and (N,)."""
        chosen = self.order[self.cursor + self._batch]
        self.cursor += self.batch_size
        count, device = self.batch_size, self.order.device
        rows = torch.randint(0, 2 * CROP + 1, (count, 1), device=device) + self._span
        columns = torch.randint(0, 2 * CROP + 1, (count, 1), device=device)
        columns = columns + torch.where(torch.rand((count, 1), device=device) < 0.5, self._span.flip(0), self._span)
        images = self.images[chosen[:, None, None], rows[:, :, None], columns[:, None, :]]
        return images.permute(0, 3, 1, 2).contiguous(), self.labels[chosen]


class Step:
    """One training step, all of it on the device."""

    def __init__(self, module: nn.Module, teacher: nn.Module, samples: Samples, arguments: argparse.Namespace) -> None:
        self.module, self.teacher, self.samples = module, teacher, samples
        self.loss_function = Loss(alpha=arguments.alpha, temperature=arguments.temperature)
        groups = optimizers.parameter_groups(
            module,
            learning_rate=arguments.learning_rate,
            weight_decay=arguments.weight_decay,
            relative_scales=True,
        )
        device = samples.order.device
        for group in groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        self.base = [group["lr"].clone() for group in groups]
        self.optimizer = torch.optim.AdamW(groups, capturable=device.type == "cuda", foreach=device.type == "cuda")
        self.guard = optimizers.ScaleGuard(module)
        self.trained: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
        self.average = [p.detach().clone() for p in self.trained]
        self.share = 1.0 - arguments.ema
        self.warm_up = arguments.warm_up
        self.done = torch.zeros((), device=device)
        self.total = torch.tensor(1e6, device=device)
        self.loss = torch.zeros((), device=device)

    def __call__(self) -> None:
        """Draw, forward, backward, update."""
        factor = torch.clamp(self.done / (self.total * self.warm_up), max=1.0)
        factor = factor * (0.5 + 0.5 * torch.cos(math.pi * torch.clamp(self.done / self.total, max=1.0)))
        for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
            group["lr"].copy_(base * factor)
        images, labels = self.samples.draw()
        with torch.no_grad():
            target = self.teacher(images)
        loss = self.loss_function([self.module(images)], labels, [target])
        loss.backward()
        self.guard.before()
        self.optimizer.step()
        self.guard.after()
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.trained, self.share)
            self.loss.mul_(0.99).add_(loss.detach(), alpha=0.01)
            self.done += 1

    def captured(self) -> Callable[[], None]:
        """The step as a CUDA graph; on another device the step itself."""
        if self.samples.order.device.type != "cuda":
            return self._eager
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(4):
                self.optimizer.zero_grad(set_to_none=True)
                self()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self()
        return graph.replay

    def _eager(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self()


def save(step: Step, start: Path, output: Path) -> None:
    """Write the moving average into the file."""
    kept = [p.detach().clone() for p in step.trained]
    with torch.no_grad():
        for parameter, average in zip(step.trained, step.average, strict=True):
            parameter.copy_(average)
        write_back(step.module, start, output, metadata={"onnxqat.method": "lsq"})
        for parameter, value in zip(step.trained, kept, strict=True):
            parameter.copy_(value)


def train(step: Step, start: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Replay until the time is over; the file is written every few seconds and at the end."""
    samples, replay = step.samples, step.captured()
    began = saved = time.perf_counter()
    total, number = 0, 0
    while not total or number < total:
        if number % samples.steps == 0:
            samples.shuffle()
        replay()
        number += 1
        if number == arguments.probe:
            float(step.loss)
            speed = (time.perf_counter() - began) / number
            total = max(number + 1, int(arguments.seconds / speed))
            step.total.fill_(float(total))
            print(json.dumps({"seconds a step": speed, "steps": total, "epochs": total / samples.steps}), flush=True)
        if number % 100 == 0:
            loss = float(step.loss)  # waits for the device, so that the queue stays short
            if number % 2000 == 0:
                print(number, total, round(loss, 4), round(time.perf_counter() - began), flush=True)
        if time.perf_counter() - saved > SAVE_INTERVAL:
            save(step, start, arguments.output)
            saved = time.perf_counter()
    save(step, start, arguments.output)
    return {"steps": number, "epochs": round(number / samples.steps, 1), "loss": round(float(step.loss), 4)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", default="4,4")
    parser.add_argument("--start", type=Path, help="QDQ file to start from; made by PTQ when left out")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=160.0)
    parser.add_argument("--probe", type=int, default=100, help="steps after which the time of a step is taken")
    parser.add_argument("--batch-size", type=int, default=125)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--alpha", type=float, default=0.4)
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--warm-up", type=float, default=0.02)
    parser.add_argument("--sheets", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    began = time.perf_counter()
    start = arguments.start or bench.insert("academic", arguments.output.with_suffix(".start.onnx"), arguments.bits)
    scorer = _shared.scorer()
    images, labels = scorer.cifar10("train", range(1, arguments.sheets + 1))
    data = torch.from_numpy(scorer.PREPROCESS["cifar10"](images)).to(arguments.device)
    samples = Samples(data, torch.as_tensor(labels, dtype=torch.int64, device=arguments.device), arguments.batch_size)
    graph = io.load(start)
    module = to_torch(graph, quantizer_factory=methods.factory("lsq", limit_steps=False))
    freeze_constants(module, graph)
    step = Step(
        module.to(arguments.device).train(), to_torch(bench.FLOAT).eval().to(arguments.device), samples, arguments
    )
    print("ready after", round(time.perf_counter() - began, 1), "s", flush=True)
    result = train(step, start, arguments)
    print(json.dumps({**result, "file": str(arguments.output), "wall_seconds": round(time.perf_counter() - began)}))


if __name__ == "__main__":
    main()
