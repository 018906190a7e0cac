"""Commands that change a verdict: they carry over models, data and preprocessing of the command that was run."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Literal

from onnxqat.graph import bundles, provenance
from onnxqat.shell import command

if TYPE_CHECKING:
    from onnxqat.data.recorded import Recorded

DATA, BACKEND = "DATA", "BACKEND"
"""Words for the user to fill in, where nothing is given and the file records nothing that is found."""


@dataclasses.dataclass(frozen=True)
class Given:
    """Models, data and target of the command that was run, for the commands that a verdict names.

    Attributes:
        original: the float model.
        quantized: the QDQ file.
        data: data on the command line, or those that the file records; None where they are Python objects.
        preprocess: preprocessing line.
        trained: the file has been trained already.
        target: the backend that the user means to deploy to; None: that of the file.
        calibration: data that the file was calibrated on, for commands that learn: what judges is not trained on. None:
            `data`.
    """

    original: str
    quantized: str
    data: str | os.PathLike[str] | None = None
    preprocess: str | None = None
    trained: bool = False
    target: str | None = None
    calibration: str | os.PathLike[str] | None = None

    @property
    def _learned(self) -> str | os.PathLike[str]:
        return self.calibration or self.data or DATA

    @property
    def options(self) -> dict[str, Any]:
        """``--data`` and ``--preprocess``."""
        return {"data": self.data or DATA, "preprocess": self.preprocess}

    def improve(self) -> str:
        """Training, or after that a look at what costs most."""
        if self.trained:
            return self.look()
        written = named(self.quantized, "tuned")
        options = {**self.options, "data": self._learned}
        return command("finetune", self.quantized, **options, teacher=self.original, o=written)

    def look(self) -> str:
        """The quantizers that cost most."""
        return command("profile", self.original, self.quantized, **self.options)

    def place(self, *, backend: str | None, kind: Literal["exact", "safe-range"] | None = None) -> str:
        """Another file of the float model.

        Args:
            backend: table of the target.
            kind: with scales for which torch and onnxruntime give the same bits (``exact``), or for which products of
                8 bits do not saturate (``safe-range``): the option of that name.
        """
        options = {"calibration": self._learned, "preprocess": self.preprocess}
        written = named(self.quantized, kind or backend or "placed")
        text = command("insert-qdq", self.original, backend=backend, **options, o=written)
        return f"{text} --{kind}" if kind else text

    def compile_it(self, backend: str | None) -> str:
        """The hand-off to a target."""
        return command("handoff", self.quantized, backend=backend or BACKEND, o="bundle/")


def data_of(given: Any, recorded: Recorded) -> str | os.PathLike[str] | None:
    """`given`, where it has a form on the command line, or for None the data that a file records, where they are found."""
    if given is None:
        return provenance.find(recorded.provenance.data, recorded.near)
    return given if isinstance(given, (str, os.PathLike)) else None


def calibration_of(recorded: Recorded) -> str | os.PathLike[str] | None:
    """Return the data that a file was calibrated on: where they are found, else a word for them; None: it records none."""
    name = recorded.provenance.data
    return (provenance.find(name, recorded.near) or DATA) if name else None


def named(path: str, word: str) -> str:
    """A file beside `path`, or the bundle that it lies in, that says what was done."""
    return str(bundles.outside(path)).removesuffix(".onnx").removesuffix(".qdq") + f".{word}.qdq.onnx"
