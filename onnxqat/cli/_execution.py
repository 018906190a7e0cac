"""Options of ``onnxqat finetune`` about how a step is computed, and what is written on the way."""

from __future__ import annotations

from typing import Any

import click

from onnxqat.cli import _options

options = _options.Group(
    "execution",
    click.option("--precision", default="float32", help="Of the model's layers: float32, bfloat16 or float16."),
    click.option("--accumulate", type=int, default=1, help="Batches that make one step."),
    click.option("--compile", is_flag=True, help="Through torch.compile."),
    click.option("--compile-backend", metavar="NAME", help="Through this backend of torch.compile."),
    click.option("--channels-last", is_flag=True, help="Channels last in memory."),
    click.option("--recompute", is_flag=True, help="Compute activations again in the backward pass, to save memory."),
    click.option("--recompute-segments", type=int, metavar="N", help="In so many segments [square root of operators]."),
    click.option(
        "--rematerialize/--no-rematerialize", default=None, help="Compute quantized tensors again there [on CUDA]."
    ),
    click.option("--checkpoint-dir", type=_options.PATH, help="Folder for checkpoints."),
    click.option("--save-every", type=int, metavar="N", help="Steps between checkpoints within an epoch."),
    click.option("--resume", is_flag=True, help="Go on from the last checkpoint."),
    click.option("--black-box", type=_options.PATH, help="Folder for a step that is not finite [OUTPUT.black_box]."),
    click.option("--skip-non-finite", type=int, default=0, metavar="N", help="Leave out so many such steps."),
    click.option("--log-dir", type=_options.PATH, help="Folder for log.jsonl."),
    click.option("--log-every", type=int, default=10, metavar="N", help="Steps between its lines."),
    click.option("--tensorboard", is_flag=True, help="Event files for TensorBoard there, too."),
)


def keywords(execution: dict[str, Any]) -> dict[str, Any]:
    """Keywords of :func:`onnxqat.finetune`."""
    rest = dict(execution)
    backend, segments = rest.pop("compile_backend"), rest.pop("recompute_segments")
    rest["compile"] = rest["compile"] if backend is None else backend
    rest["recompute"] = rest["recompute"] if segments is None else segments
    return rest
