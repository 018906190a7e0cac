"""Meters of the demo: every few batches a line with last value and running mean, and the same as JSON."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onnxqat.training.data.batches import Batch, Batches

NAMES = ("Time", "Data", "Loss", "Acc@1", "Acc@5")
FORMATS = {"Time": "6.3f", "Data": "6.3f", "Loss": ".4e", "Acc@1": "6.2f", "Acc@5": "6.2f"}


@dataclasses.dataclass
class Meter:
    """The last value of something and its mean, weighted by samples."""

    value: float = 0.0
    total: float = 0.0
    count: float = 0.0

    def update(self, value: float, weight: float = 1.0) -> None:
        """Add a value."""
        self.value = value
        self.total += value * weight
        self.count += weight

    @property
    def mean(self) -> float:
        """The running mean."""
        return self.total / self.count if self.count else 0.0


class Meters:
    """The five meters of an epoch.

    Args:
        title: start of each line, such as ``Epoch: [3]``.
        batches: number of batches, None where that is not known.
        every: number of batches from line to line; the last batch has one too.
        say: prints a line.
    """

    def __init__(self, title: str, batches: int | None, every: int, say: Callable[[str], None]) -> None:
        self.meters = {name: Meter() for name in NAMES}
        self.title, self.batches, self.every, self.say = title, batches, every, say
        self._done = 0

    def batch(self, *, seconds: float, data: float, loss: float, top1: float, top5: float, samples: int) -> None:
        """Add one batch, which is done; accuracies are in percent."""
        self.meters["Time"].update(seconds)
        self.meters["Data"].update(data)
        for name, value in (("Loss", loss), ("Acc@1", top1), ("Acc@5", top5)):
            self.meters[name].update(value, samples)
        if self._done % self.every == 0 or self._done + 1 == self.batches:
            self.say(self.line())
        self._done += 1

    def line(self) -> str:
        """``Epoch: [0][ 10/100]  Time  0.10 ( 0.11)  Data ...  Loss ...  Acc@1 ...  Acc@5 ...``."""
        total = "?" if self.batches is None else str(self.batches)
        where = f"{self.title}[{str(self._done + 1).rjust(len(total))}/{total}]"
        parts = [f"{n} {m.value:{FORMATS[n]}} ({m.mean:{FORMATS[n]}})" for n, m in self.meters.items()]
        return "\t".join([where, *parts])

    @property
    def means(self) -> dict[str, float]:
        """Running means by name."""
        return {name: meter.mean for name, meter in self.meters.items()}


class Log:
    """One JSON object a line, appended: what was printed, for programs."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def write(self, **entry: Any) -> None:
        """Append `entry`."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


class Timed:
    """Batches that are timed: how long each took to come.

    Attributes:
        waited: seconds that each batch of the epoch took, the oldest first; whoever reads them takes them out.
    """

    def __init__(self, source: Batches, offset: int = 0) -> None:
        self.source, self.offset = source, offset
        self.waited: list[float] = []

    @property
    def steps(self) -> int | None:
        """Batches an epoch."""
        return self.source.steps

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number`, counted from the run's first."""
        self.waited = []
        batches = iter(self.source.epoch(number + self.offset))
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            self.waited.append(time.perf_counter() - start)
            yield batch


def correct(outputs: Tensor, labels: Tensor, counts: Sequence[int] = (1, 5)) -> list[Tensor]:
    """Count the labels (N,) that are among the k largest of outputs (N, C): a scalar for each k of `counts`.

    Quantized logits tie often. Of equals the first counts, as in argmax, so that a module and its file agree; ``topk``
    takes any of them.
    """
    classes = outputs.shape[1]
    known = (labels >= 0) & (labels < classes)  # a label to be ignored, -100, is never found
    own = outputs.gather(1, labels.clamp(0, classes - 1)[:, None])
    before = torch.arange(classes, device=labels.device) < labels[:, None]
    # Not <= and so in front where either is NaN: no label with NaN is found.
    rank = (~(outputs <= own) | ((outputs == own) & before)).sum(dim=1)
    return [((rank < min(count, classes)) & known).sum() for count in counts]
