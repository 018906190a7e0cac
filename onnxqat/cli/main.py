"""The command line: finds the commands, turns errors into one line and an exit status."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import typer

import onnxqat
from onnxqat import discover
from onnxqat.errors import QatError

INTERNAL_ERROR = 70
INTERRUPTED = 130


def build_app(only: str | None = None) -> typer.Typer:
    """The application with every command of ``onnxqat/cli/commands``, or with the one called `only`, where there is one.

    To turn the signature of a command into options takes longer than to import it.
    """
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Quantization-aware training from an ONNX file: place Q/DQ, fine-tune, write back, prove, hand off.",
    )
    app.callback()(_version)
    names = discover.names("onnxqat.cli.commands")
    for name in [name for name in names if name.replace("_", "-") == only] or names:
        module = discover.load("onnxqat.cli.commands", name)
        app.command(
            name.replace("_", "-"), help=_summary(module.run.__doc__), short_help=_summary(module.run.__doc__, 1)
        )(module.run)
    return app


def _summary(doc: str | None, paragraphs: int | None = None) -> str:
    parts = (doc or "").strip().split("\n\n")
    return "\n\n".join(" ".join(line.strip() for line in part.splitlines()) for part in parts[:paragraphs])


def _version(
    version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=lambda wanted: _print_version(wanted)
    ),
) -> None:
    del version  # its callback has printed it


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(onnxqat.__version__)
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with status 0 (done), 1 (a check failed) or 2 (bad input or usage)."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status; errors become one line on standard error."""
    try:
        status = build_app(arguments[0] if arguments else None)(list(arguments), standalone_mode=True)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except QatError as error:
        _report(error, as_json="--json" in arguments)
        return error.exit_status
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("ONNXQAT_DEBUG"):
            raise
        typer.echo(f"internal error: {type(error).__name__}: {error}", err=True)
        typer.echo("this is a defect of onnxqat; ONNXQAT_DEBUG=1 prints the traceback for a report", err=True)
        return INTERNAL_ERROR
    return int(status or 0)


def _report(error: QatError, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}}))
    typer.echo(f"error[{error.code}]: {error.message}", err=True)
    if error.hint:
        typer.echo(f"  hint: {error.hint}", err=True)


if __name__ == "__main__":
    main()
