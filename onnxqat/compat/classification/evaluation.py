"""Loss and top-1 and top-5 accuracy of a module on the validation data."""

from __future__ import annotations

import dataclasses
import itertools
import time

import torch
from torch import nn
from torch.nn import functional

from onnxqat.compat.classification.meters import Meters, Timed, correct
from onnxqat.errors import DataError
from onnxqat.training.data.batches import Batches
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.loop.step import call


@dataclasses.dataclass(frozen=True)
class Scores:
    """Mean cross entropy and accuracies in percent of one pass over the validation data."""

    loss: float = 0.0
    top1: float = 0.0
    top5: float = 0.0
    samples: int = 0


@torch.no_grad()
def measure(module: nn.Module, batches: Batches, place: torch.device, world: ProcessContext, meters: Meters) -> Scores:
    """Score `module` in evaluation mode; batches are dealt to the processes in turn, and the scores are of all of them.

    Raises:
        DataError: ``data-labels`` where the data have none.
    """
    training = module.training
    module.eval()
    total = torch.zeros(4, dtype=torch.float64, device=place)
    timed = Timed(batches)
    start = time.perf_counter()
    for batch in itertools.islice(timed.epoch(0), world.rank, None, world.size):
        if batch.labels is None or batch.labels.ndim != 1:
            raise DataError("data-labels", "the validation data have no class labels")
        here = batch.to(place)
        assert here.labels is not None
        outputs = call(module, here, getattr(module, "input_names", None))[0].float()
        samples = len(here.labels)
        loss = functional.cross_entropy(outputs, here.labels)
        top1, top5 = correct(outputs, here.labels)
        total += torch.stack([loss.double() * samples, top1.double(), top5.double(), loss.new_tensor(samples).double()])
        now = time.perf_counter()
        meters.batch(
            seconds=now - start,
            data=timed.waited[-1],
            loss=float(loss),
            top1=100 * float(top1) / samples,
            top5=100 * float(top5) / samples,
            samples=samples,
        )
        start = now
    module.train(training)
    loss_sum, top1_sum, top5_sum, count = world.total(total).tolist()
    count = max(count, 1.0)
    return Scores(loss_sum / count, 100 * top1_sum / count, 100 * top5_sum / count, int(count))
