"""``onnxqat finetune``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from onnxqat import printing
from onnxqat.cli import _config, _execution, _headings, _objectives, _options, _report_page, _signals

if TYPE_CHECKING:
    from onnxqat.training.loop.loop import Report


class _Announcement:
    """Says on standard error how many steps a run has, and how long they take once some of them are timed.

    Args:
        quiet: say nothing.
    """

    TIMED = 3  # the first step also makes what the others reuse; two after it are enough for an order of magnitude

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._first = quiet, 0.0

    def __call__(self, step: int, total: int) -> None:
        """Step number `step` of `total`, counted from 1, is done."""
        if self._quiet or total <= self.TIMED:
            return
        if step == 1:
            self._first = time.perf_counter()
        elif step == self.TIMED and self._first:
            seconds = (time.perf_counter() - self._first) / (self.TIMED - 1) * (total - step)
            taken = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
            printing.echo(f"training {total:,} steps, about {taken}; --max-steps N takes fewer", err=True)


@click.command(cls=_headings.Headed)
@click.argument("model", type=_options.PATH)
@_headings.under("Configuration", _config.plain)
@_headings.under(
    "Data",
    _options.data,
    _options.preprocess,
    click.option(
        "--batch-size",
        type=_options.COUNT,
        help="Number of samples in a batch, where the model does not fix it [32, or 8 for few samples and no length].",
    ),
    _options.limit,
)
@_headings.under(
    "Training",
    click.option(
        "--teacher",
        type=_options.PATH,
        multiple=True,
        help="Float ONNX file of a teacher to imitate; repeat it for several.",
    ),
    click.option(
        "--method",
        default="lsq",
        help="Method by which scales learn: a name of `onnxqat methods list`, or a Python file.",
    ),
    click.option(
        "--epochs", type=_options.COUNT, help="Number of passes over the data [about 400 steps, at most 20 passes]."
    ),
    click.option("--max-steps", type=_options.COUNT, help="Number of training steps after which to stop."),
    click.option(
        "--batch-norm",
        type=click.Choice(["auto", "live", "frozen"]),
        default="auto",
        help="Statistics of BatchNormalization: live, of the batch; frozen, of the file; auto, of the batch where insert-qdq kept it.",
    ),
    click.option(
        "--reestimate-batch-norm",
        type=_options.COUNT,
        metavar="N",
        help="Number of batches to estimate the statistics of BatchNormalization on again before writing.",
    ),
    click.option(
        "--arithmetic",
        help="Arithmetic of operators: float, or on codes as a target computes: onnxruntime, fixed-point, litert or shift"
        " [what the file's backend says].",
    ),
    click.option(
        "--callback",
        "added",
        metavar="FILE",
        multiple=True,
        help="Python file with a subclass of Callback that takes part in the run; repeat it.",
    ),
    click.option("--seed", type=_options.SEED, default=0, help="Random seed of sample order and torch."),
)
@_headings.under(
    "Accuracy",
    _options.score,
    _options.labels,
)
@_objectives.options
@_execution.options
@_headings.under(
    "Device and processes",
    _options.device,
    click.option(
        "--distributed",
        default="ddp",
        help="Strategy under torchrun: ddp, or fsdp for a model that does not fit into one GPU.",
    ),
    click.option(
        "--distributed-timeout",
        type=_options.POSITIVE,
        default=600.0,
        help="Seconds that a process waits for the others.",
    ),
)
@_headings.under(
    "Output",
    click.option("-o", "--output", type=_options.OUTPUT, help="File to write [MODEL.tuned.onnx]."),
    _options.html,
    _report_page.option,
    _options.as_json,
)
def run(
    model: Path,
    data: str | None,
    preprocess: str | None,
    output: Path | None,
    teacher: tuple[Path, ...],
    method: str,
    epochs: int | None,
    max_steps: int | None,
    batch_size: int | None,
    limit: int | None,
    score: str | None,
    labels: Path | None,
    objectives: dict[str, Any],
    batch_norm: str,
    reestimate_batch_norm: int | None,
    arithmetic: str | None,
    added: tuple[str, ...],
    seed: int,
    device: str | None,
    execution: dict[str, Any],
    distributed: str,
    distributed_timeout: float,
    html: Path | None,
    page: Path | None,
    as_json: bool,
) -> None:
    """Train scales and weights of a QDQ model and write them back into it.

    MODEL is a QDQ ONNX file, of this or any other tool.

    Learns from labels, from a teacher or from both; with neither, from the float model that it was
    made from, where that is found, else from the model with its quantizers off.

    Example: onnxqat finetune model.qdq.onnx --data images/ --teacher model.onnx -o tuned.qdq.onnx
    """
    from onnxqat.cli import _output
    from onnxqat.report import build, following

    _options.need("torch", "train")
    from onnxqat.training.distributed import join
    from onnxqat.training.finetune import finetune

    callbacks = [*_objectives.callbacks(objectives), *added]
    if reestimate_batch_norm is not None:
        from onnxqat.training.callbacks.batchnorm_statistics import Reestimate

        callbacks.append(Reestimate(reestimate_batch_norm))
    callbacks += _execution.logs(execution)
    announce = _Announcement(quiet=as_json)
    with _signals.hinted(_execution.going_on(execution)), _options.progress("train", quiet=as_json) as progress:

        def told(report: Report) -> None:
            progress(report.step, report.total_steps)
            announce(report.step, report.total_steps)

        result = finetune(
            model,
            data,
            preprocess=preprocess,
            score=score,
            labels=labels,
            method=method,
            epochs=epochs,
            max_steps=max_steps,
            batch_size=batch_size,
            limit=limit,
            **_objectives.keywords(objectives, list(teacher) or None),
            batch_norm=cast(Any, batch_norm),  # finetune refuses others by name
            callbacks=callbacks,
            execution=_execution.execution(
                execution,
                arithmetic=arithmetic,
                gradient_norm=objectives["gradient_norm"],
                grad_bits=objectives["grad_bits"],
                distributed=distributed,
                distributed_timeout=distributed_timeout,
            ),
            checkpoints=_execution.checkpoints(execution),
            seed=seed,
            device=device,
            output=output or _options.beside(model, ".tuned.onnx"),
            progress=told,
        )
    others = join.address()
    if others is not None and others[0]:
        return  # process 0 speaks for all
    original = str(teacher[0]) if teacher else None
    next_step = following.validate(model, str(result.model), original=original, data=data, preprocess=preprocess)
    shown = build.from_finetune(result, following=next_step)
    logs = [Path(execution["log_dir"])] if execution["log_dir"] else []
    shown = _report_page.write(page, result.model, shown, before=model, results=logs, data=data, preprocess=preprocess)
    _output.show(shown, as_json=as_json, html_path=html)
