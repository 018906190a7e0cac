"""``onnxqat finetune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxqat.cli import _options


def run(
    model: Annotated[Path, typer.Argument(help="QDQ ONNX file, of this or any other tool.")],
    data: _options.Data = None,
    preprocess: _options.PreprocessLine = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write [MODEL.tuned.onnx].")] = None,
    teacher: Annotated[Path | None, typer.Option(help="Float ONNX file to imitate.", show_default=False)] = None,
    method: Annotated[str, typer.Option(help="How scales learn: lsq or fixed.")] = "lsq",
    epochs: Annotated[int | None, typer.Option(help="Passes over the data [1].", show_default=False)] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop after so many steps.", show_default=False)] = None,
    batch_size: _options.BatchSize = 32,
    optimizer: Annotated[str, typer.Option(help="sgd, adam or adamw.")] = "adamw",
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", help="Of weights.", show_default=False)
    ] = None,
    scale_learning_rate: Annotated[float | None, typer.Option(help="Of scales.", show_default=False)] = None,
    weight_decay: Annotated[float, typer.Option(help="Of weights; scales and biases have none.")] = 0.0,
    alpha: Annotated[float, typer.Option(help="Share of the teacher in the loss, where there are labels too.")] = 0.5,
    temperature: Annotated[float, typer.Option(help="Of the teacher's softmax.")] = 4.0,
    ema: Annotated[float | None, typer.Option(help="Decay of a moving average of weights.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Of sample order and torch.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu or cuda [cuda where there is one].")] = None,
    checkpoint_dir: Annotated[Path | None, typer.Option(help="Folder for checkpoints.", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint.")] = False,
    html: _options.Html = None,
    as_json: _options.Json = False,
) -> None:
    """Train scales and weights of a QDQ model and write them back into it.

    Learns from labels, from a teacher or from both; with neither, from the model with its quantizers off.

    Example: onnxqat finetune model.qdq.onnx --data images/ --teacher model.onnx -o tuned.qdq.onnx
    """
    from onnxqat.cli import _output
    from onnxqat.errors import DataError
    from onnxqat.report import build

    _options.need("torch", "train")
    if data is None:
        raise DataError("data-missing", "there is no training data", hint="give --data")
    from onnxqat.training.finetune import finetune
    from onnxqat.training.losses import Loss

    with _options.progress("train", quiet=as_json) as progress:
        result = finetune(
            model,
            data,
            preprocess=preprocess,
            teacher=teacher,
            method=method,
            epochs=epochs,
            max_steps=max_steps,
            batch_size=batch_size,
            optimizer=optimizer,
            learning_rate=learning_rate,
            scale_learning_rate=scale_learning_rate,
            weight_decay=weight_decay,
            loss=Loss(alpha=alpha, temperature=temperature),
            ema=ema,
            seed=seed,
            device=device,
            output=output or _options.beside(model, ".tuned.onnx"),
            checkpoint_dir=checkpoint_dir,
            resume=resume,
            progress=lambda report: progress(report.step, report.total_steps),
        )
    source = str(teacher) if teacher else None
    _output.show(build.from_finetune(result, source=source), as_json=as_json, html_path=html)
