"""Options of ``onnxqat finetune`` about how a step is computed, and what is written on the way."""

from __future__ import annotations

from typing import Any

import click

from onnxqat.cli import _headings, _options

options = _options.Group(
    "execution",
    _headings.under(
        "Precision, speed and memory",
        click.option(
            "--precision",
            type=click.Choice(["float32", "bfloat16", "float16"]),
            default="float32",
            help="Type that the model's layers compute in; quantizers stay float32.",
        ),
        click.option(
            "--accumulate", type=_options.COUNT, default=1, help="Number of batches that make one training step."
        ),
        click.option("--compile", is_flag=True, help="Train through torch.compile."),
        click.option("--compile-backend", metavar="NAME", help="Backend of torch.compile to train through."),
        click.option("--channels-last", is_flag=True, help="Keep images with their channels last in memory."),
        click.option(
            "--recompute", is_flag=True, help="Compute activations again in the backward pass, to save memory."
        ),
        click.option(
            "--recompute-segments",
            type=_options.COUNT,
            metavar="N",
            help="Number of segments of the model to recompute one by one [square root of the number of operators].",
        ),
        click.option(
            "--rematerialize/--no-rematerialize",
            default=None,
            help="Compute quantized tensors again in the backward pass [on CUDA].",
        ),
    ),
    _headings.under(
        "Checkpoints and failures",
        click.option("--checkpoint-dir", type=_options.FOLDER, help="Folder to write checkpoints to."),
        click.option(
            "--save-every",
            type=_options.COUNT,
            metavar="N",
            help="Number of steps between checkpoints, beside those at the end of each epoch.",
        ),
        click.option("--resume", is_flag=True, help="Go on from the last checkpoint in --checkpoint-dir."),
        click.option(
            "--black-box",
            type=_options.FOLDER,
            help="Folder to record a step with NaN or infinity in [OUTPUT.black_box].",
        ),
        click.option(
            "--skip-non-finite",
            type=_options.ANY_COUNT,
            default=0,
            metavar="N",
            help="Number of steps with NaN or infinity to leave out before training stops.",
        ),
    ),
    _headings.under(
        "Logs",
        click.option("--log-dir", type=_options.FOLDER, help="Folder to write log.jsonl to."),
        click.option(
            "--log-every",
            type=_options.COUNT,
            default=10,
            metavar="N",
            help="Number of steps between two lines of log.jsonl.",
        ),
        click.option("--tensorboard", is_flag=True, help="Also write event files for TensorBoard to --log-dir."),
    ),
)


def execution(given: dict[str, Any], **others: Any) -> Any:
    """Return the :class:`onnxqat.training.execution.execution.Execution` of the options above and of `others`."""
    from onnxqat.training.execution.execution import Execution

    backend, segments = given["compile_backend"], given["recompute_segments"]
    return Execution(
        precision=given["precision"],
        accumulate=given["accumulate"],
        compile=given["compile"] if backend is None else backend,
        channels_last=given["channels_last"],
        recompute=given["recompute"] if segments is None else segments,
        rematerialize=given["rematerialize"],
        **others,
    )


def checkpoints(given: dict[str, Any]) -> Any:
    """Return the :class:`onnxqat.training.config.CheckpointConfig` of the options above."""
    from onnxqat.training.config import CheckpointConfig

    names = ("save_every", "resume", "black_box", "skip_non_finite")
    return CheckpointConfig(given["checkpoint_dir"], **{name: given[name] for name in names})


def going_on(given: dict[str, Any]) -> str:
    """Say how a run that was interrupted goes on, with the options above."""
    if given["checkpoint_dir"]:
        return f"the same command with --resume goes on from the last checkpoint in {given['checkpoint_dir']}"
    return "nothing is kept of this run; with --checkpoint-dir FOLDER the next one can go on by --resume"


def logs(given: dict[str, Any]) -> tuple[Any, ...]:
    """Return the callbacks that write the logs that the options above ask for."""
    from onnxqat.training.callbacks.logs import logs as callbacks

    return callbacks(given["log_dir"], every=given["log_every"], tensorboard=given["tensorboard"])
