"""``onnxqat generate``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("model", type=_options.PATH)
@click.argument("other", type=_options.PATH, required=False)
@click.option("--data", required=True, help="Token sequences of one length: an .npz or .npy file with input_ids.")
@click.option("--tokens", type=_options.COUNT, default=32, help="Number of new tokens.")
@_options.batch_size
@_options.limit
@click.option(
    "--optimize/--as-written", default=True, help="Run with onnxruntime's graph optimizations, or the graph as written."
)
@click.option(
    "-o",
    "--output",
    type=_options.FOLDER,
    help="New folder for what MODEL was fed at each step: data for the other commands.",
)
@_options.html
@_options.as_json
def run(
    model: Path,
    other: Path | None,
    data: str,
    tokens: int,
    batch_size: int,
    limit: int | None,
    optimize: bool,
    output: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Continue token sequences with a decoder, and say where a second model continues them otherwise.

    MODEL and OTHER read input_ids and past_key_values, and give logits and present.

    Example: onnxqat generate decoder.onnx decoder.qdq.onnx --data tokens.npz --tokens 100
    """
    from onnxqat.cli import _output
    from onnxqat.generation.generate import generate
    from onnxqat.report.build_generate import from_comparison

    found = generate(
        model,
        data,
        other,
        tokens=tokens,
        limit=limit,
        batch_size=batch_size,
        optimize=optimize,
        samples=output,
    )
    _output.show(
        from_comparison(found, str(model), None if other is None else str(other), output),
        as_json=as_json,
        html_path=html,
    )
