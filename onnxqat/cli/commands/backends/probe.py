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
@click.option("--only", multiple=True, metavar="OPERATOR", help="Probe this operator or pair alone; repeat it.")
@click.option(
    "--pairs", is_flag=True, help="Probe two operators behind one another, as the table places them, in place of one."
)
@click.option(
    "--timeout", type=_options.POSITIVE, default=120.0, help="Seconds after which one model's compilation is stopped."
)
@click.option(
    "--write",
    type=_options.OUTPUT,
    metavar="FILE",
    help="Also compile each operator in float, and write a draft of a table that states where the compiler parts.",
)
@_options.html
@_options.as_json
def run(
    compiler: str,
    backend: str | None,
    only: tuple[str, ...],
    pairs: bool,
    timeout: float,
    write: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Compile every operator alone, and compare what runs on integers with a table.

    COMPILER is one that `onnxqat handoff --compilers` lists.

    Example: onnxqat backends probe onnxruntime-cpu --only Conv --only Sub
    """
    from onnxqat.cli import _output
    from onnxqat.deployment import probe_pairs_table, probe_table
    from onnxqat.deployment.probe import probe
    from onnxqat.deployment.probe_pairs import probe_pairs
    from onnxqat.graph import atomic
    from onnxqat.report import build, build_probe

    with _options.progress("probe", quiet=as_json) as progress:
        if pairs:
            learned = probe_pairs(compiler, backend, only=only, timeout=timeout, progress=progress)
            shown, text = build_probe.from_pairs(learned), probe_pairs_table.draft(learned, backend)
        else:
            report = probe(compiler, backend, only=only, in_float=write is not None, timeout=timeout, progress=progress)
            shown, text = build_probe.from_probe(report), probe_table.draft(report, backend)
    if write is not None:
        atomic.write_atomic(write, text.encode())
        shown = build.with_files(shown, str(write))
    _output.show(shown, as_json=as_json, html_path=html)
