"""The command that follows another one, with what was given and what the file records of its origin."""

from __future__ import annotations

from collections.abc import Mapping
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


def calibrate(model: str, metadata: Mapping[str, str]) -> str:
    """``onnxqat insert-qdq`` for a float model; one that was made of a QDQ file records backend, data and preprocessing.

    Args:
        model: its path.
        metadata: its metadata.
    """
    recorded = provenance.read(metadata)
    data = provenance.find(recorded.data, model)
    return command(
        "insert-qdq",
        model,
        backend=metadata.get("onnxqat.backend"),
        calibration=data or DATA,
        preprocess=recorded.preprocess if data is not None else None,
    )


def hand_off(model: str, backend: str, *, data: Path | None, preprocess: str | None = None) -> str:
    """``onnxqat handoff`` for a QDQ file that a trainer wrote.

    Args:
        model: its path.
        backend: table of the target.
        data: validation data; None where there are none on the disk.
        preprocess: their preprocessing line.
    """
    return command("handoff", model, backend=backend, data=data or DATA, preprocess=preprocess, o="bundle/")
