"""The command that follows one that wrote a QDQ file: validate, with what was given and what the file records."""

from __future__ import annotations

from pathlib import Path

from onnxqat.graph import io, provenance
from onnxqat.report.build import DATA
from onnxqat.shell import command


def validate(
    model: Path, written: str, *, original: str | None = None, data: str | None = None, preprocess: str | None = None
) -> str:
    """``onnxqat validate`` for `written`, which a command made of the QDQ file `model`.

    Args:
        model: the QDQ file; what it records of its origin fills the gaps.
        written: the file to validate.
        original: float model to compare with; None: the one that `model` records, where its file is found.
        data: as it was given to the command; None: nothing where validate finds the recorded data by itself.
        preprocess: as it was given to the command; None: validate takes the recorded line.
    """
    loaded = io.load(model)
    if original is None:
        found = provenance.find_float(loaded, model)
        original = str(found) if found is not None else "MODEL.onnx"
    if data is None and provenance.find(provenance.of(loaded).data, model) is None:
        data = DATA
    return command("validate", original, written, data=data, preprocess=preprocess)
