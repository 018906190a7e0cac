"""Find the defects of a QDQ file, or what a target will do to a float one; mend those with a mechanical remedy."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import onnx_ir as ir

from onnxqat import discover, extension
from onnxqat.backends import schema
from onnxqat.errors import QatError, UsageError
from onnxqat.graph import bundles, io, query, shapes, verify, walk
from onnxqat.integer_functions import calls
from onnxqat.linting.context import LintContext
from onnxqat.linting.rule import SEVERITIES, Finding, Found, LintReport, Rule
from onnxqat.placement import integer_operators
from onnxqat.runtime import broken_model

ROUNDS = 3  # what one fix uncovers, another may mend


def _lacks(module: ModuleType) -> str | None:
    found = getattr(module, "RULES", None)
    if isinstance(found, Sequence) and found and all(isinstance(rule, Rule) for rule in found):
        return None
    return "there is no RULES, a tuple of one Rule or more"


KIND = extension.Kind(
    name="rule file", package="onnxqat.linting.rules", group="onnxqat.rules", lacks=_lacks, page="docs/extending.md"
)


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """All rules, in the order of their files' names; those that need a backend's table last.

    Raises:
        UsageError: ``option-invalid``: an installed package offers rules and has none.
    """
    modules = [discover.load(KIND.package, name) for name in discover.names(KIND.package)]
    return _sorted([rule for module in (*modules, *extension.installed(KIND)) for rule in module.RULES])


def with_files(files: Sequence[str | os.PathLike[str]]) -> tuple[Rule, ...]:
    """:func:`all_rules` and those of the user's `files`.

    Raises:
        UsageError: ``option-invalid`` for a file without rules, or with the code of a rule that there is.
    """
    found, codes = list(all_rules()), {rule.code for rule in all_rules()}
    for file in files:
        for rule in extension.load(KIND, os.fspath(file)).RULES:
            if rule.code in codes:
                text = f"{os.fspath(file)}: there is a rule {rule.code!r} already"
                raise UsageError("option-invalid", text, hint="give the rule a code of its own")
            codes.add(rule.code)
            found.append(rule)
    return _sorted(found)


def _sorted(found: Sequence[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(found, key=lambda rule: rule.target))


@broken_model.guard("model")
def lint(
    model: io.ModelSource,
    backend: str | None = None,
    *,
    fix: bool = False,
    output: str | os.PathLike[str] | None = None,
    rules: Sequence[str | os.PathLike[str]] = (),
) -> LintReport:
    """Apply every rule to a model.

    Args:
        model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed. A float model with a
            backend gives the pre-flight: what the target will refuse or run in float.
        backend: name of a backend table, or path of one, whose rules are applied too.
        fix: mend what has a mechanical remedy; the findings are those that are left.
        output: file to write with `fix`, for a path ``<name>.fixed.onnx`` beside it by default. Written only where
            something was mended.
        rules: Python files with rules of your own, a tuple ``RULES``, which are applied too.

    Raises:
        ModelError: everything that :func:`onnxqat.graph.io.load` raises, ``output-not-writable``.
        BackendError: ``backend-unknown``, ``backend-table``.
        UsageError: ``option-invalid``: `fix` for a model in memory without `output`; a file without rules.
    """
    known = with_files(rules)
    table = schema.load(backend) if backend is not None else None
    loaded = io.load(model)
    name = io.name_of(model)
    target = _target(model, output) if fix else None
    fixed: dict[str, int] = {}
    written: str | None = None
    if target is not None:
        fixed = mend(loaded, table, known)
        if fixed:
            written = str(io.save(loaded, target))
    file = opened(calls.as_pairs(loaded), table)
    backend_name = table.backend if table is not None else None
    return LintReport(name, backend_name, len(file.quantizers), findings(file, known), written, fixed, known)


def opened(model: ir.Model, table: schema.Backend | None = None) -> LintContext:
    """A model that the caller owns as the rules see it; types and shapes that it does not state are inferred in it."""
    shapes.mend(model)
    shapes.infer(model)
    return LintContext(model, integer_operators.of_file(table, calls.operators(model)))


def _target(model: io.ModelSource, output: str | os.PathLike[str] | None) -> Path:
    if output is not None:
        return Path(output)
    if isinstance(model, (str, os.PathLike)):
        return bundles.outside(model).with_suffix(".fixed.onnx")
    raise UsageError("option-invalid", "a fixed model needs a file to be written to", hint="give output")


def findings(file: LintContext, known: Sequence[Rule] | None = None) -> tuple[Finding, ...]:
    """Run those of the `known` rules, by default :func:`all_rules`, that apply to `file`; findings, errors first."""
    found = [_in_words(rule, place) for rule in _applied(file, known) for place in rule.check(file)]
    return tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))


def _applied(file: LintContext, known: Sequence[Rule] | None) -> tuple[Rule, ...]:
    return tuple(rule for rule in (all_rules() if known is None else known) if _applies(rule, file.table))


def _applies(rule: Rule, table: schema.Backend | None) -> bool:
    return not rule.target if table is None else not rule.table_decides


def _in_words(rule: Rule, place: Found) -> Finding:
    return Finding(
        code=rule.code,
        severity=place.severity or rule.severity,
        node="" if place.node is None else query.label(place.node),
        tensor=place.tensor,
        message=place.message,
        reason=rule.reason,
        remedy=rule.remedy,
        fixable=rule.fix is not None,
    )


def mend(model: ir.Model, table: schema.Backend | None = None, known: Sequence[Rule] | None = None) -> dict[str, int]:
    """Mend `model`, which the caller owns, in place, by the `known` rules (by default :func:`all_rules`) with a fix.

    Returns:
        For each code, how many findings are gone.

    Raises:
        ModelError: ``pass-postcondition``: the model was sound and a fix broke it, which is a defect of ours.
    """
    sound = _is_sound(model)
    with _inferred(model):
        fixes = [rule for rule in (all_rules() if known is None else known) if rule.fix and _applies(rule, table)]
        before = _fixable(model, table, fixes)
        for _ in range(ROUNDS):
            changed = [_mend(rule, model, table) for rule in fixes]
            if not any(changed):
                break
        after = _fixable(model, table, fixes)
    if sound:
        verify.verify(model)
    return {code: count - after.get(code, 0) for code, count in before.items() if count > after.get(code, 0)}


def _mend(rule: Rule, model: ir.Model, table: schema.Backend | None) -> bool:
    """Apply the fix of one rule; whether there was anything to mend."""
    file = LintContext(model, table)
    places = list(rule.check(file))
    if places and rule.fix is not None:
        rule.fix(file, places)
    return bool(places)


@contextlib.contextmanager
def _inferred(model: ir.Model) -> Iterator[None]:
    """Types and shapes for the rules; those that the file did not state go again."""
    stated = [(value, value.type, value.shape) for scope in walk.scopes(model) for value in walk.values(scope)]
    shapes.mend(model)
    shapes.infer(model)
    yield
    for value, kind, shape in stated:
        value.type, value.shape = kind, shape


def _is_sound(model: ir.Model) -> bool:
    try:
        verify.verify(model)
    except QatError:
        return False
    return True


def _fixable(model: ir.Model, table: schema.Backend | None, fixes: Sequence[Rule]) -> dict[str, int]:
    file, found = LintContext(model, table), dict[str, int]()
    for rule in fixes:
        count = sum(1 for _ in rule.check(file))
        if count:
            found[rule.code] = count
    return found
