"""``onnxqat replay``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("folder", type=_options.PATH)
@click.argument("model", type=_options.PATH)
@_options.html
@_options.as_json
def run(folder: Path, model: Path, html: Path | None, as_json: bool) -> None:
    """Do a training step again that was not finite, and name the first value that is not.

    FOLDER is the black box that finetune wrote, MODEL the QDQ file that it trained.

    Leaves with status 1 when another value is the first, or none.

    Example: onnxqat replay tuned.qdq.onnx.black_box model.qdq.onnx
    """
    from onnxqat.cli import _output
    from onnxqat.report import build_replay

    _options.need("torch", "train")
    from onnxqat.training.loop.black_box import replay

    _output.show(build_replay.from_replay(replay(folder, model)), as_json=as_json, html_path=html)
