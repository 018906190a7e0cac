"""Request of the user, and the parts of the data, as a search gets them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from onnxqat import metrics
from onnxqat.autotune.reproduce import Sources
from onnxqat.data.data import Data
from onnxqat.errors import DataError
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import Remark

SHARE = 5
"""One sample in :data:`SHARE` is held out for judging."""

CALIBRATION_SAMPLES = 512


@dataclasses.dataclass(frozen=True)
class Task:
    """Request of the user, as a search gets it.

    Attributes:
        original: float model.
        file: its file; None for one that is in memory alone.
        backend: name of a backend table, or path of one.
        overrides: user choices that win over the table.
        target_drop: largest accepted loss; None: what the measure has by default.
        score: metric or function that judges in place of the outputs.
        labels: file or folder of labels, for a metric that reads one.
        seed: of training.
        device: of training.
        sources: model and data as the user gave them, for commands.
        tell: called with a line at the beginning of each phase.
    """

    original: ir.Model
    file: Path | None
    backend: str
    overrides: Overrides
    target_drop: float | None
    score: metrics.ScoreSource | None
    labels: str | os.PathLike[str] | None
    seed: int
    device: str | None
    sources: Sources
    tell: Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Parts:
    """Samples to learn from, to calibrate on, and to judge on.

    Attributes:
        training: all but every :data:`SHARE`-th sample.
        calibration: at most :data:`CALIBRATION_SAMPLES` of them, from all over.
        held: the others.
        learned: name of the part `training`, for a command; empty where there is only one part.
        calibrated: name of the part of it that `calibration` is, behind the other.
        remarks: what is worth knowing.
    """

    training: Data
    calibration: Data
    held: Data
    learned: str = ""
    calibrated: str = ""
    remarks: tuple[Remark, ...] = ()

    @classmethod
    def of(cls, data: Data) -> Parts:
        """Split `data`; fewer than :data:`SHARE` batches serve as all parts.

        Raises:
            DataError: as reading does.
        """
        training, held = data.split(SHARE)
        try:
            next(iter(training))
            next(iter(held))
        except DataError as error:
            if error.code not in ("data-missing", "data-shape"):
                raise
            text = f"{data.name} gives fewer than {SHARE} batches: what learns from them is judged on them, too"
            return cls(data, data.first(CALIBRATION_SAMPLES), data, remarks=(Remark(text, source="auto"),))
        calibration, step = training, 1
        samples = training.samples
        if samples is not None and samples >= 2 * CALIBRATION_SAMPLES:
            step = samples // CALIBRATION_SAMPLES
            calibration = training.split(step)[1]
        return cls(
            training,
            calibration.first(CALIBRATION_SAMPLES),
            held,
            learned=f"#without-every-{SHARE}",
            calibrated=f"#every-{step}" if step > 1 else "",
        )
