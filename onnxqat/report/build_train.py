"""The report of ``onnxqat train``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxqat.compat.backend_type import table_name
from onnxqat.graph import io
from onnxqat.report import build_profile
from onnxqat.report.following import hand_off
from onnxqat.report.model import Figure, Report

if TYPE_CHECKING:
    from onnxqat.compat.classification.run import Result
    from onnxqat.compat.classification.settings import Settings


def report(result: Result, settings: Settings) -> Report:
    """Build the report of a run of the demo trainer.

    Args:
        result: of the run.
        settings: its arguments.
    """
    from onnxqat.compat.classification.material import validation_data
    from onnxqat.compat.classification.network import image_input

    scores = result.scores
    figures = [
        Figure("top1", "Acc@1", scores.top1 / 100, "share", f"of {scores.samples} validation samples"),
        Figure("top5", "Acc@5", scores.top5 / 100, "share"),
        Figure("loss", "validation loss", scores.loss, "number"),
    ]
    if result.start is not None:
        figures.insert(0, Figure("start_top1", "Acc@1 before training", result.start / 100, "share"))
    shipped = result.file
    if result.best is not None and (shipped is None or shipped.samples != scores.samples):
        figures.append(Figure("best_top1", "Acc@1 of the best epoch", result.best / 100, "share"))
    if shipped is not None:  # the one figure of what is shipped; that of its module may be a tie away
        of = f"in onnxruntime, of {shipped.samples} samples"
        best = "file_top1" if settings.evaluate else "best_top1"
        whole = shipped.samples == scores.samples
        figures.append(
            Figure(
                best if whole else "file_top1",
                "Acc@1 of the file" if settings.evaluate else "Acc@1 of the best epoch's file",
                shipped.top1 / 100,
                "share",
                of,
            )
        )
    files = tuple(map(str, result.written))
    models = [name for name in files if name.endswith("_bestonnx_quantization.onnx")]
    following = ""
    if models:
        info = image_input(io.load(models[0]))
        data, line = validation_data(settings.data, info, settings.preprocess, settings.image_size)
        following = hand_off(models[0], table_name(settings.backend), data=data, preprocess=line)
    return Report(
        kind="train",
        title="Evaluated" if settings.evaluate else "Trained",
        figures=tuple(figures),
        tables=() if result.profile is None else build_profile.from_profile(result.profile).tables,
        files=files,
        next_command=following,
    )
