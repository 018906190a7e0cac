"""``onnxqat lint``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat import printing
from onnxqat.cli import _options


@click.command
@click.argument("model", type=_options.PATH)
@click.option("--backend", help="Also apply the rules of this target: name of a backend table, or a YAML file.")
@click.option(
    "--rules", multiple=True, type=_options.PATH, metavar="FILE", help="Python file with rules of your own; repeat it."
)
@click.option("--fix", is_flag=True, help="Repair what has a mechanical remedy, in a new file.")
@click.option("-o", "--output", type=_options.OUTPUT, help="File that --fix writes [MODEL.fixed.onnx].")
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "sarif"]), default="text", help="Format of the output."
)
@_options.html
@_options.as_json
def run(
    model: Path,
    backend: str | None,
    rules: tuple[Path, ...],
    fix: bool,
    output: Path | None,
    form: str,
    html: Path | None,
    as_json: bool,
) -> None:
    """Find the defects of a QDQ file, or what a target will refuse or run in float of a float one.

    Leaves with status 1 when there are errors; warnings and notes leave with 0.

    Example: onnxqat lint model.qdq.onnx --backend tensorrt
    """
    from onnxqat.cli import _output
    from onnxqat.errors import UsageError
    from onnxqat.linting.lint import lint
    from onnxqat.report import build_lint

    if output is not None and not fix:
        raise UsageError("option-invalid", "--output is what --fix writes", hint="give --fix too")
    if as_json and form == "sarif":
        raise UsageError("option-invalid", "--json and --format sarif ask for two forms", hint="give one of them")
    found = lint(model, backend, fix=fix, output=output, rules=rules)
    report = build_lint.from_lint(found)
    if form == "sarif":
        from onnxqat.linting import sarif

        printing.echo(sarif.dumps(found))
        if not found.passed:
            click.get_current_context().exit(1)
        return
    _output.show(report, as_json=as_json or form == "json", html_path=html)
