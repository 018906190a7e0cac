"""The command line: finds the commands, turns errors into one line and an exit status."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from onnxqat import printing
from onnxqat._version import __version__
from onnxqat.cli import _address_space, _completion, _gone_folder, _machine, _signals, _streams, _threads
from onnxqat.cli._folder import Folder
from onnxqat.errors import InputError, QatError, UsageError

INTERNAL_ERROR = 70
READER_GONE = 141
# How click says that a group was called without a command; older ones show the help by themselves.
_NO_ARGUMENTS: tuple[type[Exception], ...] = tuple(filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)]))
_CONTEXT = {"show_default": True, "help_option_names": ["-h", "--help"]}


GROUPS = {
    "The way of a model": ("export", "insert-qdq", "finetune", "validate", "handoff"),
    "The way in one command": ("auto", "recipes", "train", "demo"),
    "Accuracy": ("profile", "mixed-precision", "reconstruct"),
    "Files": (
        "inspect",
        "explain",
        "lint",
        "diff",
        "simulate",
        "generate",
        "report",
        "fold-batchnorm",
        "cut",
        "stitch",
    ),
    "Backends and extensions": ("backends", "passes", "methods", "extensions"),
    "This machine": ("doctor", "replay"),
}
"""Commands as the help lists them: first what a model passes through."""


ELSEWHERE = {
    **dict.fromkeys(("quantize", "quantise", "quant", "ptq", "calibrate"), "insert-qdq"),
    **dict.fromkeys(("qat", "finetuneqat", "tune"), "finetune"),
    **dict.fromkeys(("evaluate", "eval", "compare", "test"), "validate"),
    **dict.fromkeys(("deploy", "compile", "convert"), "handoff"),
    **dict.fromkeys(("adaround", "blockreconstruction"), "reconstruct"),
    **dict.fromkeys(("analyze", "analyse", "sensitivity"), "profile"),
}
"""Names that people try first who come from other quantizers."""


@click.command(
    cls=Folder, package="onnxqat.cli.commands", groups=GROUPS, elsewhere=ELSEWHERE, context_settings=_CONTEXT
)
@click.version_option(__version__, message="%(version)s", help="Print the version.")
def command_line(**_: Any) -> None:
    """Quantization-aware training from an ONNX file: place Q/DQ, fine-tune, write back, prove, hand off."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with status 0 (done), 1 (a check failed) or 2 (bad input or usage).

    As of other programs, 128 and the number of a signal: 130 for an interrupt, 141 where the reader of standard output
    has gone, as that of ``| head``.
    """
    if not _streams.prepare():
        sys.exit(_without_output())
    completed = _completion.answer(command_line)
    if completed is not None:
        sys.exit(completed)
    _address_space.guard()
    _gone_folder.guard()
    with _signals.handled(ends=arguments is None):
        status, error = _outcome(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and error is not None and error.code == "machine-limit":
        _streams.end(status)
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status; errors become one line on standard error."""
    status, _ = _outcome(arguments)
    return status


def _outcome(arguments: Sequence[str]) -> tuple[int, QatError | None]:
    """The exit status, and the error that was reported, where there is one."""
    # The threads that numpy's OpenBLAS starts when it is loaded wait for work in a loop of 2**26 cycles before they
    # sleep: on 2 cores 0.1 CPU seconds for nothing. 2**4, its least, wakes them for real work all the same.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    as_json = "--json" in arguments
    try:
        status = _run(list(arguments), as_json=as_json)
        _streams.flush()
        return status, None
    except _signals.interruptions():
        status = _signals.status()
        with contextlib.suppress(OSError):  # a terminal that was closed takes no last line
            printing.echo(_signals.words_for(status), err=True)
        return status, None
    except click.ClickException as error:
        if isinstance(error, _NO_ARGUMENTS):
            error.show()  # the help of a group
            return error.exit_code, None
        return _reported(_of_click(error), as_json=as_json)
    except QatError as error:
        if os.environ.get("ONNXQAT_DEBUG") and error.__cause__ is not None:
            traceback.print_exception(error)  # a failure that is blamed on the model may be ours all the same
        return _reported(_machine.limit(error) or _as_typed(error, arguments), as_json=as_json)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _streams.is_gone():
            return READER_GONE, None
        if os.environ.get("ONNXQAT_DEBUG"):
            raise
        limit = _machine.limit(error)
        return (_report_defect(error), None) if limit is None else _reported(limit, as_json=as_json)


def _run(arguments: list[str], *, as_json: bool) -> int:
    from onnxqat.graph import files_read

    with _threads.watched(), files_read.guarded():
        try:
            # What `command_line.main` does without its answer to a broken pipe, which is an exit with status 1.
            with command_line.make_context("onnxqat", arguments, obj=as_json) as context:
                return int(command_line.invoke(context) or 0)
        except click.exceptions.Exit as ended:
            return ended.exit_code


def _without_output() -> int:
    error = InputError("output-not-writable", "standard output is closed", hint="send it to a file, or to /dev/null")
    _report(error, as_json=False)
    return error.exit_status


def _of_click(error: click.ClickException) -> UsageError:
    """`error` as one line with a code and a hint, as all others; click's own has four lines and no code."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"`{context.command_path} --help` explains the arguments and options" if context else ""
    if isinstance(error, click.NoSuchOption):
        if error.possibilities:
            hint = f"did you mean {', '.join(sorted(error.possibilities))}?"
        return UsageError("option-invalid", f"there is no option {error.option_name}", hint=hint)
    message = error.format_message().rstrip(".")
    return UsageError("option-invalid", message[:1].lower() + message[1:], hint=hint)


def _as_typed(error: QatError, arguments: Sequence[str]) -> QatError:
    """`error` about an option with options as they are typed: the functions behind call them by their Python names."""
    if error.code != "option-invalid":
        return error
    command: click.Command | None = command_line
    for word in arguments:
        if isinstance(command, Folder):
            command = command.get_command(click.Context(command), word)
    options = {p.name: max(p.opts, key=len) for p in command.params if p.name and "_" in p.name} if command else {}
    # A name in quotes or with a path around it is a node's or a tensor's.
    pattern = re.compile(rf"(?<![\w./'\"-])({'|'.join(options) or '(?!)'})(?![\w/'\"-])")
    message, hint = (pattern.sub(lambda found: options[found[1]], text) for text in (error.message, error.hint))
    return UsageError(error.code, message, hint=hint)


def _report_defect(error: Exception) -> int:
    printing.echo(printing.printable(f"internal error: {type(error).__name__}: {error}"), err=True)
    printing.echo("this is a defect of onnxqat; ONNXQAT_DEBUG=1 prints the traceback for a report", err=True)
    return INTERNAL_ERROR


def _print_json(error: QatError) -> None:
    printing.echo(json.dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}}))


def _reported(error: QatError, *, as_json: bool) -> tuple[int, QatError]:
    _report(error, as_json=as_json)
    return error.exit_status, error


def _report(error: QatError, *, as_json: bool) -> None:
    with contextlib.suppress(OSError):  # a stream that cannot be written: the status says it
        _print(error, as_json=as_json)


def _print(error: QatError, *, as_json: bool) -> None:
    printing.echo(printing.printable(f"error[{error.code}]: {error.message}"), err=True)
    if error.hint:
        printing.echo(printing.printable(f"  hint: {error.hint}"), err=True)
    if as_json:
        _print_json(error)


if __name__ == "__main__":
    main()
