"""``onnxqat extensions check``."""

from __future__ import annotations

import click

from onnxqat.cli import _findings, _options


@click.command
@click.argument("file")
@click.option(
    "--kind",
    help="Kind of the extension: pass, observer, method, compiler, metric, rules, callback, loss or preprocess [the kind that the file holds].",
)
@_options.as_json
def run(file: str, kind: str | None, as_json: bool) -> None:
    """Try an extension on small models and data, and say which promises of its kind it keeps.

    FILE is a Python file; with --kind also the name of an extension. Leaves with status 1 when a promise is broken.

    Example: onnxqat extensions check my_observer.py
    """
    from onnxqat import discover, kinds

    if kind is not None and kind not in kinds.KINDS:
        raise discover.unknown("kind of extensions", kind, list(kinds.KINDS))
    kind = kind or kinds.kind_of(file)
    if kinds.needs_torch(kind):
        _options.need("torch", "train")
    found = kinds.check_extension(file, kind)
    _findings.show(found, {"kind": kind, "name": found.name}, as_json=as_json)
