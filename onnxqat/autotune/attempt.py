"""One quantized model that a search has tried."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from onnxqat.autotune.reproduce import CALIBRATED
from onnxqat.autotune.variants import Variant


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One quantized model that was tried.

    Attributes:
        name: how it was made.
        drop: what it loses on the held-out samples; see :class:`onnxqat.autotune.scoring.Judge`.
        seconds: wall time, judging included.
        value: its score; None where none was asked for.
        commands: that make it of the float model.
        written: name of the file that the last of them writes.
    """

    name: str
    drop: float
    seconds: float
    value: float | None = None
    commands: tuple[str, ...] = ()
    written: str = CALIBRATED


@dataclasses.dataclass(frozen=True)
class Tried:
    """An attempt with its file.

    Attributes:
        attempt: see above.
        path: of the file.
        variant: arguments of ``insert_qdq`` where that made it; None for what was trained or reconstructed.
    """

    attempt: Attempt
    path: Path
    variant: Variant | None = None

    @property
    def drop(self) -> float:
        """Loss on the held-out samples."""
        return self.attempt.drop
