"""``onnxqat diff``."""

from __future__ import annotations

from pathlib import Path

import click

from onnxqat.cli import _options


@click.command
@click.argument("first", type=_options.PATH)
@click.argument("second", type=_options.PATH)
@click.option("--exit-code", is_flag=True, help="Leave with status 1 where the files differ.")
@_options.html
@_options.as_json
def run(first: Path, second: Path, exit_code: bool, html: Path | None, as_json: bool) -> None:
    """Compare two QDQ files: placement, types, scales, zero points, codes of weights.

    Example: onnxqat diff model.qdq.onnx tuned.qdq.onnx
    """
    from onnxqat.cli import _output
    from onnxqat.linting.diff import diff
    from onnxqat.report import build_diff

    found = diff(first, second)
    _output.show(build_diff.from_diff(found), as_json=as_json, html_path=html)
    if exit_code and found.pairs:
        click.get_current_context().exit(1)
