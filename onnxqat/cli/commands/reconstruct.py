"""``onnxqat reconstruct``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from onnxqat.cli import _headings, _options


@click.command(cls=_headings.Headed)
@click.argument("model", type=_options.PATH)
@_headings.under(
    "Data",
    _options.data,
    _options.preprocess,
    click.option(
        "--limit",
        "--samples",
        "limit",
        type=_options.COUNT,
        default=512,
        help="Largest number of samples to use; --samples is its former name.",
    ),
    _options.batch_size,
)
@_headings.under(
    "Training",
    click.option(
        "--teacher", type=_options.PATH, help="Float ONNX file whose tensors to imitate [the one MODEL was made from]."
    ),
    click.option(
        "--recipe",
        type=click.Choice(["adaround", "brecq", "qdrop", "lsq"]),
        default="qdrop",
        help="Method: adaround, roundings layer by layer; brecq, block by block; qdrop, as brecq with some activations in "
        "float; lsq, weights and all scales block by block.",
    ),
    click.option(
        "--worst-blocks", type=_options.COUNT, help="Number of blocks to learn, those that add most error [all]."
    ),
    click.option("--iterations", type=_options.COUNT, default=1000, help="Number of training steps for each block."),
    click.option(
        "--learning-rate", "--lr", type=_options.POSITIVE, default=0.01, help="Learning rate of roundings or weights."
    ),
    click.option(
        "--scale-learning-rate",
        type=_options.NOT_NEGATIVE,
        default=0.001,
        help="Learning rate of scales, relative to each.",
    ),
    click.option("--seed", type=_options.SEED, default=0, help="Random seed of the choice of samples and torch."),
    _options.device,
)
@_headings.under(
    "Output",
    click.option("-o", "--output", type=_options.OUTPUT, help="File to write [MODEL.reconstructed.onnx]."),
    _options.html,
    _options.as_json,
)
def run(
    model: Path,
    data: str | None,
    preprocess: str | None,
    teacher: Path | None,
    output: Path | None,
    recipe: str,
    worst_blocks: int | None,
    limit: int,
    batch_size: int,
    iterations: int,
    learning_rate: float,
    scale_learning_rate: float,
    seed: int,
    device: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Learn how to round the weights of a QDQ model, block by block, from a few hundred samples.

    MODEL is a calibrated QDQ ONNX file with float weights, as insert-qdq writes it. No labels are needed.

    Example: onnxqat reconstruct model.qdq.onnx --data images/ -o reconstructed.qdq.onnx
    """
    from onnxqat.cli import _output
    from onnxqat.report import build_reconstruct, following

    _options.need("torch", "train")
    from onnxqat.training.reconstruction.reconstruct import reconstruct

    with _options.progress("reconstruct", quiet=as_json) as progress:
        result = reconstruct(
            model,
            data,
            preprocess=preprocess,
            teacher=teacher,
            recipe=cast(Any, recipe),  # reconstruct refuses others by name
            worst_blocks=worst_blocks,
            limit=limit,
            batch_size=batch_size,
            iterations=iterations,
            learning_rate=learning_rate,
            scale_learning_rate=scale_learning_rate,
            seed=seed,
            device=device,
            output=output or _options.beside(model, ".reconstructed.onnx"),
            progress=progress,
        )
    next_step = following.validate(model, str(result.model), data=data, preprocess=preprocess)
    _output.show(build_reconstruct.from_reconstruct(result, following=next_step), as_json=as_json, html_path=html)
