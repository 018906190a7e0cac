"""Rules of the lint, their findings, and the report on a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import onnx_ir as ir

from onnxqat.displayed import Displayed

if TYPE_CHECKING:
    from onnxqat.linting.context import LintContext

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """One place that a rule objects to.

    Attributes:
        message: what is wrong there, with numbers.
        node: the node concerned, where there is one.
        tensor: the tensor concerned; empty where there is none.
        severity: of this place, where it differs from that of the rule.
    """

    message: str
    node: ir.Node | None = None
    tensor: str = ""
    severity: Severity | None = None


Check = Callable[["LintContext"], Iterator[Found]]
Fix = Callable[["LintContext", Sequence[Found]], None]


@dataclasses.dataclass(frozen=True)
class Rule:
    """One kind of defect.

    Attributes:
        code: stable name, words joined by hyphens.
        severity: ``error``: wrong numbers, or refused; ``warning``: costs accuracy or speed; ``note``: worth knowing.
        defect: what is wrong, in one line.
        reason: what comes of it.
        remedy: what to do about it.
        source: where the fact comes from.
        check: finds the places in a file.
        fix: mends the places that `check` found, on the lint's own copy of the model; None where that is no
            mechanical matter. A fix keeps the float function, and the numbers too but for what its remedy says.
        target: whether the rule needs a backend's table.
        table_decides: whether targets differ in this, so that with a backend its table is asked instead.
    """

    code: str
    severity: Severity
    defect: str
    reason: str
    remedy: str
    source: str
    check: Check
    fix: Fix | None = None
    target: bool = False
    table_decides: bool = False


@dataclasses.dataclass(frozen=True)
class Finding:
    """One defect of a file, in words.

    Attributes:
        code: of the rule.
        severity: ``error``, ``warning`` or ``note``.
        node: name of the node, or its operator and first output where it has none; empty for the whole file.
        tensor: name of the tensor; empty where there is none.
        message: what is wrong there.
        reason: what comes of it.
        remedy: what to do about it.
        fixable: whether ``--fix`` mends it.
    """

    code: str
    severity: Severity
    node: str
    tensor: str
    message: str
    reason: str
    remedy: str
    fixable: bool


@dataclasses.dataclass(frozen=True)
class LintReport(Displayed):
    """Result of the lint of one file.

    Attributes:
        model: path of the file, or ``the model``.
        backend: whose rules were applied too; None without.
        quantizers: number of quantizers in the file.
        findings: errors first, each severity in the order of the rules.
        output: the file that ``fix`` wrote; None where nothing was written.
        fixed: number of findings that the fix mended, by code.
        rules: the rules that were known, those of the user's files too.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_lint:from_lint"

    model: str
    backend: str | None
    quantizers: int
    findings: tuple[Finding, ...]
    output: str | None = None
    fixed: dict[str, int] = dataclasses.field(default_factory=dict)
    rules: tuple[Rule, ...] = ()

    def count(self, severity: Severity) -> int:
        """Number of findings of one severity."""
        return sum(f.severity == severity for f in self.findings)

    @property
    def passed(self) -> bool:
        """Check whether there is no error."""
        return not self.count("error")
