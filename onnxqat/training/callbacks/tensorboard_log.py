"""The log of a run for TensorBoard: its graph, curves, and how the scales are spread."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.errors import UsageError
from onnxqat.training.callbacks.callback import Callback, Run, StepRecord
from onnxqat.training.callbacks.tensorboard_graph import graph_of
from onnxqat.training.distributed.tensors import whole


class TensorBoardLog(Callback):
    """Writes event files: the graph at the start; loss, norm of gradients and rates by step; score, and each scale, by epoch.

    A scale per tensor is a curve, scales per channel are a histogram; ``scales/log2`` is the histogram of all of them.

    Args:
        folder: where the files go; ``tensorboard --logdir`` reads them.
        every: steps between two points of a curve.

    Raises:
        UsageError: ``dependency-missing`` without the package tensorboard.
    """

    name = "tensorboard_log"

    def __init__(self, folder: Path, every: int = 10) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError(
                "dependency-missing",
                "logs for TensorBoard need tensorboard, which is not installed",
                hint="pip install 'onnxqat[tensorboard]'",
            )
        self._folder, self._every = folder, every
        self._writer: Any = None

    def start(self, run: Run) -> None:
        """See the base class."""
        self._run = run
        if run.world.writer:
            from torch.utils.tensorboard import SummaryWriter

            step = run.standing.step
            self._writer = SummaryWriter(str(self._folder), purge_step=step + 1 if step else None)
            graph = graph_of(run.module)
            if graph is not None:
                self._writer.file_writer.add_onnx_graph(graph)

    def checked(self, records: Sequence[StepRecord]) -> None:
        """See the base class."""
        for record in records if self._writer is not None else ():
            if record.step % self._every == 0:
                self._writer.add_scalar("train/loss", record.loss, record.step)
                self._writer.add_scalar("train/gradient_norm", record.gradient_norm, record.step)
                for name, rate in record.rates.items():
                    self._writer.add_scalar(f"rate/{name}", rate, record.step)

    def after_epoch(self, epoch: int, loss: float, score: float) -> None:
        """See the base class."""
        held = [(q.tensor, q.effective_scale()) for _, q in quantizers(self._run.module) if not q.derived]
        scales = [(tensor, whole(scale.detach()).float().cpu()) for tensor, scale in held]
        if self._writer is None:
            return
        step = self._run.standing.step
        self._writer.add_scalar("epoch/loss", loss, step)
        self._writer.add_scalar("epoch/score", score, step)
        self._writer.add_scalar("epoch/limited_scales", self._run.standing.limited_scales, step)
        for tensor, scale in scales:
            if scale.numel() == 1:
                self._writer.add_scalar(f"scale/{tensor}", float(scale), step)
            else:
                self._writer.add_histogram(f"scale/{tensor}", scale, step)
        if scales:
            every = torch.cat([scale.abs().flatten() for _, scale in scales])
            self._writer.add_histogram("scales/log2", every.log2(), step)

    def finish(self) -> None:
        """See the base class."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
