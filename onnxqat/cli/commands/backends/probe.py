"""``onnxqat backends probe``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("compiler")
@click.option(
    "--backend", help="Backend table to compare with: a name, or a YAML file [the first that names the compiler]."
)
@click.option("--only", multiple=True, metavar="OPERATOR", help="Probe this operator alone; repeat it.")
@click.option(
    "--timeout", type=_options.POSITIVE, default=120.0, help="Seconds after which one model's compilation is stopped."
)
@_options.html
@_options.as_json
def run(
    compiler: str, backend: str | None, only: tuple[str, ...], timeout: float, html: Path | None, as_json: bool
) -> None:
    """Compile every operator alone, and compare what runs on integers with a table.

    COMPILER is one that `onnxqat handoff --compilers` lists.

    Example: onnxqat backends probe onnxruntime-cpu --only Conv --only Sub
    """
    from onnxqat.cli import _output
    from onnxqat.deployment.probe import probe
    from onnxqat.report import build_probe

    with _options.progress("probe", quiet=as_json) as progress:
        report = probe(compiler, backend, only=only, timeout=timeout, progress=progress)
    _output.show(build_probe.from_probe(report), as_json=as_json, html_path=html)
