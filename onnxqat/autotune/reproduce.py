"""Command lines that make an attempt again."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from onnxqat.autotune.variants import Variant
from onnxqat.placement.override_options import options_of
from onnxqat.shell import command

MODEL, DATA = "MODEL.onnx", "DATA"
"""Words for what has no name on a command line."""

CALIBRATED = "calibrated.qdq.onnx"
"""Name of what the first command writes."""


@dataclasses.dataclass(frozen=True)
class Sources:
    """Model and data of a search as the user gave them.

    Attributes:
        model, data: objects of Python have no form on a command line, so that words stand for them.
        backend: name of a backend table, or path of one.
        learned: part of the data that is learned from, such as ``#without-every-5``; empty where that is all.
        calibrated: part of that again that ranges are taken from.
        options: others that every command takes, such as ``preprocess``.
        placing: others that ``insert-qdq`` takes.
    """

    model: Any
    data: Any
    backend: str
    learned: str = ""
    calibrated: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    placing: dict[str, Any] = dataclasses.field(default_factory=dict)

    def insert(self, variant: Variant, *, batch_norm: str, limit: int | None = None) -> str:
        """``insert-qdq`` with the arguments of `variant` and at most `limit` samples; writes :data:`CALIBRATED`."""
        return command(
            "insert-qdq",
            self._model,
            backend=self.backend,
            calibration=f"{self._data}{self.learned}{self.calibrated}",
            **self.options,
            **self.placing,
            limit=limit,
            **options_of(variant.overrides),
            rounding=None if variant.rounding == "auto" else variant.rounding,
            equalize=",".join(variant.equalize) if isinstance(variant.equalize, tuple) else None,
            batch_norm=batch_norm,
            o=CALIBRATED,
        )

    def learn(self, name: str, start: str, written: str, **options: Any) -> str:
        """``finetune`` or ``reconstruct`` of the file `start` against the float model, into the file `written`."""
        data = f"{self._data}{self.learned}"
        return command(name, start, data=data, **self.options, teacher=self._model, **options, o=written)

    @property
    def _model(self) -> str:
        return os.fspath(self.model) if isinstance(self.model, (str, os.PathLike)) else MODEL

    @property
    def _data(self) -> str:
        return os.fspath(self.data) if isinstance(self.data, (str, os.PathLike)) else DATA
