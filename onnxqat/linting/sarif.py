"""Findings as SARIF 2.1.0, the form that code hosts and editors show."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from onnxqat._version import __version__
from onnxqat.linting.rule import Finding, LintReport, Rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"


def to_sarif(report: LintReport) -> dict[str, Any]:
    """The report as one SARIF run.

    An ONNX file has no lines: a result names its file, and node and tensor as logical locations.
    """
    used = {finding.code for finding in report.findings}
    described = [rule for rule in report.rules if rule.code in used]
    positions = {rule.code: index for index, rule in enumerate(described)}
    driver = {
        "name": "onnxqat",
        "semanticVersion": __version__,
        "rules": [_rule(rule) for rule in described],
    }
    results = [_result(finding, positions[finding.code], report.model) for finding in report.findings]
    run = {"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def dumps(report: LintReport) -> str:
    """One JSON document, indented."""
    return json.dumps(to_sarif(report), indent=2, ensure_ascii=False)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "shortDescription": {"text": rule.defect},
        "fullDescription": {"text": rule.reason},
        "help": {"text": f"{rule.remedy} (source: {rule.source})"},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: Finding, index: int, model: str) -> dict[str, Any]:
    logical = [
        {"name": name, "kind": kind} for name, kind in ((finding.node, "element"), (finding.tensor, "variable")) if name
    ]
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": _uri(model)}}}
    if logical:
        location["logicalLocations"] = logical
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": f"{finding.message}; {finding.remedy}"},
        "locations": [location],
    }


def _uri(model: str) -> str:
    """A relative or absolute path as a URI reference."""
    path = PurePath(model)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
