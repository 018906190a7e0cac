"""Check of the promises that every callback makes, on short runs of a small quantized network."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from onnxqat import extension
from onnxqat.graph import io
from onnxqat.graph.staging import scratch
from onnxqat.insertion.examples import quantized_examples
from onnxqat.pipeline.numbers import random_feeds
from onnxqat.promises import BrokenError, ExtensionCheck, try_each
from onnxqat.runtime.session import Session
from onnxqat.training.callbacks import _found
from onnxqat.training.config import CheckpointConfig, ScoreConfig
from onnxqat.training.finetune import FinetuneResult, finetune
from onnxqat.training.loop.loop import Report

SAMPLES, BATCH, EPOCHS = 16, 4, 2
STOPPED = 3
"""Step behind which a run is stopped, to be resumed: within an epoch, so that counters of both kinds are tried."""

_CLOCK = itertools.count()
"""A score that rises with every call, so that the last weights are those that are written."""

CLOSE = 1e-4
"""Relative difference of whole networks between torch and onnxruntime, where no code differs."""


class _StoppedError(Exception):
    """The run was stopped on purpose."""


@dataclasses.dataclass(frozen=True)
class _Runs:
    """Runs of one network, each with new callbacks.

    Attributes:
        name: of the callback.
        model: the network.
        data: its inputs.
    """

    name: str
    model: onnx.ModelProto
    data: dict[str, np.ndarray[Any, Any]]

    def run(
        self, checkpoints: CheckpointConfig | None = None, *, with_it: bool = True, stop: int | None = None
    ) -> FinetuneResult[onnx.ModelProto]:
        """Train, with the callback or without.

        Args:
            checkpoints: files on the way.
            with_it: use the callback.
            stop: raise behind this step.
        """

        def progress(report: Report) -> None:
            if report.step == stop:
                raise _StoppedError

        return finetune(
            self.model,
            self.data,
            epochs=EPOCHS,
            batch_size=BATCH,
            callbacks=[self.name] if with_it else [],
            score=ScoreConfig(evaluate=lambda module: float(next(_CLOCK))),
            checkpoints=checkpoints,
            progress=progress,
            device="cpu",
        )

    @functools.cached_property
    def plain(self) -> FinetuneResult[onnx.ModelProto]:
        """The run without the callback."""
        return self.run(with_it=False)

    @functools.cached_property
    def whole(self) -> FinetuneResult[onnx.ModelProto]:
        """The run with it."""
        return self.run()


def check(name: str) -> ExtensionCheck:
    """Try a callback: the path of its file, or its name.

    1. ``runs``: a run of some steps ends, and its losses and weights are finite, or it would not; the others are not
       tried where it does not.
    2. ``second run``: a new object gives the same weights, bit for bit.
    3. ``resume``: a run that was stopped within an epoch and resumed ends with the bits of one that was not: what changes
       from step to step is in ``state_dict``.
    4. ``alone``: a run without the callback is the same before and after, so nothing of it stays behind.
    5. ``file``: onnxruntime computes from the written file what the module computes.

    Raises:
        UsageError: there is no such callback.
    """
    _found.made([name])
    model = quantized_examples()[1]
    runs = _Runs(name, model, random_feeds(model, 0, size=SAMPLES))
    _ = runs.plain  # before the callback is in use
    ends = try_each({"runs": lambda: _runs(runs)})
    if not ends[0].passed:
        return ExtensionCheck(extension.key_of(name), ends)
    trials: dict[str, Callable[[], str | None]] = {
        "second run": lambda: _same(runs.run(), runs.whole, "a second run"),
        "resume": lambda: _resumed(runs),
        "alone": lambda: _same(runs.run(with_it=False), runs.plain, "a run without the callback, behind one with it,"),
        "file": lambda: _file(runs),
    }
    tried = f"tried in runs of {runs.plain.steps} steps on {model.graph.name!r}"
    return ExtensionCheck(extension.key_of(name), (*ends, *try_each(trials)), tried)


def _runs(runs: _Runs) -> None:
    if runs.whole.steps != runs.plain.steps:
        raise BrokenError(f"{runs.whole.steps} steps were done instead of {runs.plain.steps}")


def _same(one: FinetuneResult[onnx.ModelProto], other: FinetuneResult[onnx.ModelProto], what: str) -> None:
    for (name, left), (_, right) in zip(_constants(one), _constants(other), strict=True):
        if not np.array_equal(left, right, equal_nan=True):
            raise BrokenError(f"{what} writes another {name!r}")
    if one.losses != other.losses:
        raise BrokenError(f"{what} has the losses {one.losses} instead of {other.losses}")


def _resumed(runs: _Runs) -> str | None:
    with scratch() as folder:
        checkpoints = CheckpointConfig(folder, save_every=1, resume=True)
        stopped = _stopped(runs, checkpoints)
        if not stopped:
            return f"the run ends before step {STOPPED}"
        _same(runs.run(checkpoints), runs.run(CheckpointConfig(_made(folder / "whole"), save_every=1)), "a resumed run")
    return None


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _stopped(runs: _Runs, checkpoints: CheckpointConfig) -> bool:
    try:
        runs.run(checkpoints, stop=STOPPED + 1)  # a step is told before it is saved: the last one saved is STOPPED
    except _StoppedError:
        return True
    return False


@torch.no_grad()
def _file(runs: _Runs) -> None:
    result = runs.whole
    inputs = [torch.from_numpy(runs.data[info.name]) for info in runs.model.graph.input if info.name in runs.data]
    found: Sequence[Any] = _as_tuple(result.module(*inputs))
    wanted = Session(io.load(result.model), optimize=False).run(runs.data)
    for name, output, expected in zip((o.name for o in runs.model.graph.output), found, wanted.values(), strict=True):
        if not np.allclose(output.numpy(), expected, rtol=CLOSE, atol=CLOSE * float(np.abs(expected).max())):
            raise BrokenError(f"output {name!r} of the written file is not what the module computes")


def _as_tuple(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, (tuple, list)) else (outputs,)


def _constants(result: FinetuneResult[onnx.ModelProto]) -> list[tuple[str, np.ndarray[Any, Any]]]:
    return [(tensor.name, onnx.numpy_helper.to_array(tensor)) for tensor in result.model.graph.initializer]
