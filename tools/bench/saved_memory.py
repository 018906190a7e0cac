"""Memory of a training step, counted: what a QAT step keeps for backward, and its peak, beside those of a float step.

    python tools/bench/saved_memory.py                                       # ResNet-50, 224x224, BatchNormalization kept
    python tools/bench/saved_memory.py --rematerialize off --precision float32
    python tools/bench/saved_memory.py --backend onnxruntime-cpu              # every tensor quantized

Every allocation of torch on the CPU is counted, in the order in which it happens, so that the numbers are the same on
each run and on each machine with the same kernels. Time is not measured, and no GPU is needed: the tensors that are
kept are those that it would keep, without the workspaces of cuDNN and what its allocator rounds up.

* ``kept``: what is alive when forward has returned the loss that was not before: the tensors saved for backward.
* ``peak``: parameters, buffers, state of the optimizer, gradients and inputs, and the most that a step adds to them.

What a step allocates is a constant and a part for each image of the batch. Two batches give both, and so the numbers of
``--batch``; they have to be so large that a step peaks where the large one does. One line of JSON a combination.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent))
import step_speed
from step_speed import Side, allocations


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Of a step: kept for backward, and at most alive."""

    kept: float
    peak: float

    def at(self, other: Bytes, batch: float) -> Bytes:
        """Of `batch` times the batch of `self`, where `other` is a step with twice that batch."""
        more = batch - 1
        return Bytes(self.kept + more * (other.kept - self.kept), self.peak + more * (other.peak - self.peak))


def static(run: Side, *inputs: torch.Tensor) -> int:
    """Bytes of parameters, buffers, state of the optimizer and `inputs`."""
    states = [v for state in run.optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    tensors = [*run.module.parameters(), *run.module.buffers(), *states, *inputs]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def measured(run: Side, arguments: argparse.Namespace, batch: int) -> Bytes:
    """Of a step of `batch` images."""
    x, labels = step_speed.batch(argparse.Namespace(**{**vars(arguments), "batch": batch}))
    run.step(x, labels)  # the state of the optimizer is there from now on
    run.optimizer.zero_grad(set_to_none=True)

    def forward() -> torch.Tensor:
        return functional.cross_entropy(run.output(x).float(), labels)

    kept = allocations(forward)[-1]
    peak = max(allocations(lambda: run.step(x, labels)))
    run.optimizer.zero_grad(set_to_none=True)
    return Bytes(kept, static(run, x, labels) + peak)


def row(paths: tuple[Path, Path], arguments: argparse.Namespace, precision: str) -> dict[str, Any]:
    """The numbers of one combination, in MB."""
    found = []
    small = arguments.measured_batch
    for path in paths:
        run = step_speed.side(path, arguments, compiled=False, autocast=precision == "bf16")
        once, twice = (measured(run, arguments, batch) for batch in (small, 2 * small))
        whole = once.at(twice, arguments.batch / small)
        least = whole.kept + static(run, *step_speed.batch(arguments))  # at the end of forward
        found.append(dataclasses.replace(whole, peak=max(whole.peak, least)))
    plain, quantized = found
    return {
        "precision": precision,
        "float_kept_mb": round(plain.kept / 1e6, 1),
        "qat_kept_mb": round(quantized.kept / 1e6, 1),
        "kept_ratio": round(quantized.kept / plain.kept, 3),
        "float_peak_mb": round(plain.peak / 1e6, 1),
        "qat_peak_mb": round(quantized.peak / 1e6, 1),
        "peak_ratio": round(quantized.peak / plain.peak, 3),
    }


def main() -> None:
    """Print the rows; see the module."""
    made = step_speed.parser(__doc__)
    made.add_argument("--measured-batch", type=int, default=4, help="the smaller of two batches that are run")
    made.set_defaults(model="resnet50", bits="8,8", precision="float32,bf16", batch_norm="keep", rematerialize="on")
    arguments = made.parse_args()
    arguments.size = arguments.size or (224 if arguments.model == "resnet50" else 32)
    torch.set_num_threads(arguments.threads)
    shown = {
        key: getattr(arguments, key)
        for key in ("backend", "bits", "method", "batch_norm", "rematerialize", "size", "batch")
    }
    with tempfile.TemporaryDirectory() as folder:
        paths = step_speed.files(arguments, Path(folder))
        for precision in arguments.precision.split(","):
            print(
                json.dumps({"model": Path(arguments.model).stem, **shown, **row(paths, arguments, precision)}),
                flush=True,
            )


if __name__ == "__main__":
    main()
