"""``onnxqat handoff``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from onnxqat import printing
from onnxqat.cli import _headings, _options, _report_page


def _install(context: click.Context, _: click.Parameter, name: str | None) -> None:
    """Make the environment of a compiler, and leave."""
    if name is None:
        return
    from onnxqat.deployment.run import environment

    printing.echo(environment.of(name).describe(), err=True)
    folder = environment.install(environment.of(name))
    printing.echo(f"{name} {environment.of(name).version()} is installed in {folder}")
    context.exit()


def _list(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print every compiler with its version, and leave."""
    if not wanted:
        return
    from onnxqat.deployment import base_compiler, choice

    rows, found = [], []
    for name in base_compiler.names():
        compiler = base_compiler.load(name)
        version, hint, tables = compiler.version(), "", list(choice.tables_of(name))
        if version is None:
            hint = compiler.missing().hint
        found.append({"compiler": name, "version": version, "hint": hint, "backends": tables})
        rows.append(
            (
                name,
                f"not installed: {hint}" if version is None else version,
                ", ".join(tables) or "any, with --compiler",
            )
        )
    if context.find_root().obj:  # --json, which may come behind this option
        printing.echo(json.dumps(found))
        context.exit()
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    printing.echo("\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in rows))
    context.exit()


@click.command(cls=_headings.Headed)
@click.argument("model", type=_options.PATH)
@_headings.under(
    "Compiler",
    click.option(
        "--backend",
        "backends",
        metavar="NAME",
        multiple=True,
        help="Backend table of the target: a name, or a YAML file. Repeat it for a matrix of several targets.",
    ),
    click.option("--all", "every", is_flag=True, help="Hand MODEL to one backend of every compiler."),
    click.option(
        "--compiler", help="Compiler to use instead of the one that the table names: a name, or a Python file."
    ),
    click.option(
        "--threads",
        type=_options.COUNT,
        help="Number of threads that the compiled model runs on, for compilers of this processor [all cores].",
    ),
    click.option(
        "--timeout", type=_options.POSITIVE, default=300.0, help="Seconds after which the compiler is stopped."
    ),
    click.option(
        "--install",
        metavar="NAME",
        expose_value=False,
        is_eager=True,
        callback=_install,
        help="Install this compiler in an environment of its own, and leave.",
    ),
    click.option(
        "--compilers",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_list,
        help="List the compilers, with the version of those that are installed, and leave.",
    ),
)
@_headings.under(
    "Data",
    _options.data,
    _options.preprocess,
    click.option(
        "--limit",
        "--samples",
        "limit",
        type=_options.COUNT,
        default=16,
        help="Largest number of samples to run through the compiled model; --samples is its former name.",
    ),
)
@_headings.under(
    "Accuracy",
    click.option(
        "--float",
        "float_model",
        type=_options.PATH,
        help="Float ONNX file to compare with [the one that MODEL records].",
    ),
    _options.scores,
    _options.labels,
    _options.accuracy_limits,
    click.option(
        "--tolerance-lsb",
        type=_options.NOT_NEGATIVE,
        default=2.0,
        help="Largest accepted difference from the reference, in LSB (quantization steps) of the output.",
    ),
    click.option(
        "--trace/--no-trace",
        default=True,
        help="Compile a second time to measure the difference behind every node, or leave that out.",
    ),
)
@_headings.under(
    "Output",
    click.option(
        "-o",
        "--output",
        type=_options.FOLDER,
        required=True,
        help="Folder to write the bundle to; with several targets, a bundle for each is written into it.",
    ),
    _options.html,
    _report_page.option,
    _options.as_json,
)
def run(
    model: Path,
    backends: tuple[str, ...],
    every: bool,
    output: Path,
    data: str | None,
    preprocess: str | None,
    limit: int,
    float_model: Path | None,
    scores: tuple[str, ...],
    labels: Path | None,
    limits: dict[str, Any],
    tolerance_lsb: float,
    timeout: float,
    compiler: str | None,
    threads: int | None,
    trace: bool,
    html: Path | None,
    page: Path | None,
    as_json: bool,
) -> None:
    """Make the deploy form, compile it for real and show what runs in integers.

    MODEL is a QDQ ONNX file. Leaves with status 1 when the compiled model differs from the reference. With several
    --backend, or --all, one matrix of nodes and compilers is shown, and the worst target decides about the status.

    Example: onnxqat handoff tuned.qdq.onnx --backend openvino-cpu -o bundle/
    """
    from onnxqat.cli import _output
    from onnxqat.deployment.handoff import handoff
    from onnxqat.deployment.handoff_all import handoff_all
    from onnxqat.report import build_handoff, build_handoff_all

    _check_targets(backends, every, compiler)
    options = {
        "data": data,
        "preprocess": preprocess,
        "limit": limit,
        "tolerance_lsb": tolerance_lsb,
        "timeout": timeout,
        "threads": threads,
        "trace": trace,
        "float_model": float_model,
        "score": scores,
        "labels": labels,
        **limits,
    }
    with _options.progress("hand off", quiet=as_json) as progress:
        if every or len(backends) > 1:
            matrix = handoff_all(model, output, None if every else backends, progress=progress, **options)
            report = build_handoff_all.from_matrix(matrix)
        else:
            made = handoff(model, backends[0], output, compiler=compiler, progress=progress, **options)
            report = build_handoff.from_handoff(made)
    written = _report_page.write(
        page, model, report, float_model=float_model, data=data, preprocess=preprocess, limit=limit
    )
    _output.show(written, as_json=as_json, html_path=html)


def _check_targets(backends: tuple[str, ...], every: bool, compiler: str | None) -> None:
    """Check that it is said where the model goes, in one way.

    Raises:
        UsageError: ``option-invalid``.
    """
    from onnxqat.errors import UsageError

    if not backends and not every:
        raise UsageError("option-invalid", "Missing option '--backend'.", hint="or --all, for every compiler")
    if backends and every:
        raise UsageError("option-invalid", "--all and --backend exclude one another", hint="leave one of them out")
    if compiler is not None and (every or len(backends) > 1):
        text = "--compiler is for one target; several have those that their tables name"
        raise UsageError("option-invalid", text, hint="leave it out, or give one --backend")
