"""The log of a run as JSON lines: one object every few steps and one an epoch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.errors import ModelError
from onnxqat.graph import files_read, io
from onnxqat.training.callbacks.callback import Callback, Run, StepRecord
from onnxqat.training.callbacks.turning_codes import TurningCodes
from onnxqat.training.distributed.tensors import whole

FILE = "log.jsonl"


class JsonLog(Callback):
    """Writes ``log.jsonl``; a resumed run goes on in it, and lines of steps that are done again are dropped.

    Each line has ``event``, ``step`` (steps done), ``epoch`` (epochs done), ``loss`` and ``seconds`` (since this call
    began). ``"step"`` lines have the mean loss since the line before, ``gradient_norm`` of the last step, ``rates`` by
    parameter group and ``samples_per_second``; ``"epoch"`` lines ``score``, ``limited_scales``, ``skipped`` steps, the
    mean scale of each quantizer as ``scales``, and as ``oscillating`` the share of weights whose code turned back between
    lines, null where processes hold parts of the weights.
    On a GPU, steps are known some steps later, so lines may be that much further apart.

    Args:
        folder: where the file goes; made where it is missing.
        every: steps between two lines.
    """

    name = "json_log"

    def __init__(self, folder: Path, every: int = 10) -> None:
        self._folder, self._every = folder, every
        self._file: IO[str] | None = None
        self._held: list[StepRecord] = []
        self._codes: TurningCodes | None = None

    def start(self, run: Run) -> None:
        """See the base class."""
        self._run, self._start = run, time.perf_counter()
        self._last = self._start
        self._codes = TurningCodes.of(run.module)
        if run.world.writer:
            self._file = _opened(self._folder / FILE, run.standing.step)

    def checked(self, records: Sequence[StepRecord]) -> None:
        """See the base class."""
        for record in records:
            self._held.append(record)
        if self._held and self._held[-1].step // self._every > (self._held[0].step - 1) // self._every:
            now = time.perf_counter()
            last = self._held[-1]
            self._write(
                event="step",
                step=last.step,
                epoch=last.epoch,
                loss=sum(record.loss for record in self._held) / len(self._held),
                gradient_norm=last.gradient_norm,
                rates=dict(last.rates),
                seconds=now - self._start,
                samples_per_second=sum(record.samples for record in self._held) / max(now - self._last, 1e-9),
            )
            self._held, self._last = [], now
            if self._codes is not None:
                self._codes.look()

    def after_epoch(self, epoch: int, loss: float, score: float) -> None:
        """See the base class."""
        standing = self._run.standing
        held = [(q.tensor, q.effective_scale()) for _, q in quantizers(self._run.module) if not q.derived]
        scales = {tensor: float(whole(scale.detach()).float().mean()) for tensor, scale in held}
        self._write(
            event="epoch",
            step=standing.step,
            epoch=epoch,
            loss=loss,
            score=score,
            limited_scales=standing.limited_scales,
            skipped=standing.skipped,
            scales=scales,
            oscillating=None if self._codes is None else self._codes.share(),
            seconds=time.perf_counter() - self._start,
        )

    def finish(self) -> None:
        """See the base class."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, **line: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def _opened(path: Path, step: int) -> IO[str]:
    """The file, open for more lines, without those of steps after `step`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            files_read.check(path)
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            if lines and all(map(math.isinf, map(_step_of, lines))):
                raise ModelError("output-not-writable", f"{path}: holds something else than the log of a run")
            kept = [line for line in lines if _step_of(line) <= step and step]
            io.write_atomic(path, "".join(f"{line}\n" for line in kept).encode())
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise ModelError("output-not-writable", f"{path}: {error.strerror}") from None


def _step_of(line: str) -> float:
    """Steps done at a line of the log; infinity for what is none, such as a line that was cut off."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
