"""Findings of a check of an extension, shown the same by every command that makes one."""

from __future__ import annotations

import json
from typing import Any

import click

from onnxqat import printing
from onnxqat.promises import ExtensionCheck


def show(found: ExtensionCheck, content: dict[str, Any], *, as_json: bool) -> None:
    """Print one line per promise, kept or what is wrong; leave with status 1 where one is broken.

    Args:
        found: what the check found.
        content: what JSON has in front of the findings.
        as_json: print JSON, with what is wrong by promise, None where it is kept.
    """
    if as_json:
        told = {finding.name: None if finding.passed else finding.message for finding in found.findings}
        printing.echo(json.dumps({**content, "findings": told}))
    else:
        _say(found)
    if not found.passed:
        raise click.exceptions.Exit(1)


def _say(found: ExtensionCheck) -> None:
    for finding in found.findings:
        remark = f": {finding.message}" if finding.message else ""
        printing.echo(printing.printable(f"{finding.name:14} {'kept' if finding.passed else 'broken'}{remark}"))
    if found.tried:
        printing.echo(printing.printable(found.tried))
