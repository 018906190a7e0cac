"""Findings of a check of an extension, shown the same by every command that makes one."""

from __future__ import annotations

from collections.abc import Iterable

from onnxqat import printing
from onnxqat.extension import Finding


def say(findings: Iterable[Finding]) -> None:
    """Print one line per promise: kept, or what is wrong."""
    for finding in findings:
        told = "kept" if finding.passed else f"broken: {finding.message}"
        printing.echo(printing.printable(f"{finding.name:14} {told}"))


def messages(findings: Iterable[Finding]) -> dict[str, str | None]:
    """Return by promise what is wrong, None where it is kept; for JSON."""
    return {finding.name: finding.message or None for finding in findings}
