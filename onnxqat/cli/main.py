"""The command line: finds the commands, turns errors into one line and an exit status."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

import onnxqat
from onnxqat.cli._folder import Folder
from onnxqat.errors import QatError

INTERNAL_ERROR = 70
INTERRUPTED = 130


@click.command(cls=Folder, package="onnxqat.cli.commands", context_settings={"show_default": True})
@click.version_option(onnxqat.__version__, message="%(version)s", help="Print the version.")
def command_line(**_: Any) -> None:
    """Quantization-aware training from an ONNX file: place Q/DQ, fine-tune, write back, prove, hand off."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with status 0 (done), 1 (a check failed) or 2 (bad input or usage)."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status; errors become one line on standard error."""
    # The threads that numpy's OpenBLAS starts when it is loaded wait for work in a loop of 2**26 cycles before they
    # sleep: on 2 cores 0.1 CPU seconds for nothing. 2**4, its least, wakes them for real work all the same.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    try:
        return int(command_line.main(list(arguments), prog_name="onnxqat", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except QatError as error:
        _report(error, as_json="--json" in arguments)
        return error.exit_status
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("ONNXQAT_DEBUG"):
            raise
        click.echo(f"internal error: {type(error).__name__}: {error}", err=True)
        click.echo("this is a defect of onnxqat; ONNXQAT_DEBUG=1 prints the traceback for a report", err=True)
        return INTERNAL_ERROR


def _report(error: QatError, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}}))
    click.echo(f"error[{error.code}]: {error.message}", err=True)
    if error.hint:
        click.echo(f"  hint: {error.hint}", err=True)


if __name__ == "__main__":
    main()
