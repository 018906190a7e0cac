"""Results of other commands put beside the nodes and quantizers that they are about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnxqat.counts import counted
from onnxqat.report.model_report import schema
from onnxqat.report.model_report.joined_matrix import join_matrix
from onnxqat.report.model_report.results_read import Result, number, rows, text

_RUNS: dict[str, schema.Runs] = {
    "integers": "integers",
    "integers, moved": "moved",
    "float": "float",
    "rejected": "rejected",
    "-": "absorbed",
}
_STATUS, _JUDGED = ("green", "amber", "red"), ("parity", "accuracy", "deployment")
_SCORED = ("float", "ort-plain", "ort-default")


def join(report: schema.ModelReport, results: Iterable[Result]) -> None:
    """Put `results` into `report`, in place; what names no node or tensor of it is left out with a remark."""
    places = _Places(report)
    for result in results:
        report.sources.append(f"{result.kind}: {result.name}")
        if result.kind in ("validate", "handoff"):
            _judgements(report, result)
        if result.kind == "profile":
            _profile(report, places, result)
        elif result.kind == "validate":
            _validation(report, places, result)
        elif result.kind == "handoff":
            _target(report, places, result)
        elif result.kind == "handoff_matrix":
            join_matrix(report, result)
    _drop_what_was_compiled(report)
    if places.unknown:
        some = ", ".join(sorted(places.unknown)[:4])
        report.remarks.append(
            f"the results have {counted(len(places.unknown), 'name')} that this file has not ({some}): of another one?"
        )


class _Places:
    """Nodes and quantizers by name."""

    def __init__(self, report: schema.ModelReport) -> None:
        self.nodes = {name: node for node in reversed(report.nodes) for name in (node.tensor, node.name) if name}
        self.tensors: dict[str, list[schema.Quantizer]] = {}
        for quantizer in report.quantizers:
            self.tensors.setdefault(quantizer.tensor, []).append(quantizer)
        self.unknown: set[str] = set()

    def node(self, name: str) -> schema.Node | None:
        found = self.nodes.get(name)
        if found is None:
            self.unknown.add(name)
        return found

    def quantizers(self, tensor: str) -> list[schema.Quantizer]:
        found = self.tensors.get(tensor, [])
        if not found:
            self.unknown.add(tensor)
        return found


def _judgements(report: schema.ModelReport, result: Result) -> None:
    found = result.content.get("verdicts")
    for entry in found if isinstance(found, list) else ():
        known = isinstance(entry, dict) and entry.get("status") in _STATUS and entry.get("name") in _JUDGED
        if known:
            said = schema.Judgement(
                name=entry["name"],
                status=entry["status"],
                reason=text(entry, "reason"),
                remedy=text(entry, "remedy"),
                source=result.kind,
            )
            report.judgements.append(said)


def _drop_what_was_compiled(report: schema.ModelReport) -> None:
    """Leave out that a file is not compiled, which ``validate`` says, where a hand-off compiled it."""
    if any(said.name == "deployment" and said.source == "handoff" for said in report.judgements):
        report.judgements = [
            said for said in report.judgements if said.name != "deployment" or said.source != "validate"
        ]


def _profile(report: schema.ModelReport, places: _Places, result: Result) -> None:
    for table, keep in (("tensors", _on_tensors), ("layers", _on_layers)):
        found = rows(result, table)
        powers = [_power(number(row, "alone_db")) for row in found]
        whole = sum(powers)
        for row, power in zip(found, powers, strict=True):
            measured = number(row, "alone_db")
            cost = schema.Cost(
                alone_db=schema.decibel(measured),
                off_db=schema.decibel(number(row, "off_db")),
                share=power / whole if whole and measured is not None else None,
                alone_score=number(row, "alone_score"),
            )
            keep(places, row, cost)
    points = [(row, number(row, "output_db")) for row in rows(result, "curve")]
    if points:
        x = [number(row, "count") or 0.0 for row, _ in points]
        report.curve = schema.Curve(name="signal to noise of the output, dB", x=x, y=[value for _, value in points])


def _power(ratio: float | None) -> float:
    """Return the noise of a ratio in decibels over the signal; what is not finite costs nothing."""
    return 0.0 if ratio is None else float(10.0 ** (-ratio / 10.0))


def _on_tensors(places: _Places, row: Mapping[str, Any], cost: schema.Cost) -> None:
    for quantizer in places.quantizers(text(row, "tensor")):
        if quantizer.role == text(row, "role"):
            quantizer.cost = cost
            if quantizer.float_db is None:
                quantizer.float_db = schema.decibel(number(row, "all_db"))


def _on_layers(places: _Places, row: Mapping[str, Any], cost: schema.Cost) -> None:
    node = places.node(text(row, "node"))
    if node is not None:
        node.cost = cost


def _validation(report: schema.ModelReport, places: _Places, result: Result) -> None:
    by_tensor = {node.tensor: node for node in report.nodes}
    for row in rows(result, "tensors"):
        node = by_tensor.get(text(row, "tensor"))
        if node is not None and node.float_db is None:
            node.float_db = schema.decibel(number(row, "sqnr_db"))
    for row in rows(result, "quantizers"):
        differing = number(row, "differing_given_input")
        for quantizer in places.quantizers(text(row, "tensor")):
            if quantizer.role == "activation" and differing is not None:
                quantizer.differing_codes = int(differing)
    _scores(report, result)


def _scores(report: schema.ModelReport, result: Result) -> None:
    """Put top-1 and scores beside the file, and those of the float model beside it where it is among the variants."""
    figures = result.content.get("figures")
    figures = figures if isinstance(figures, dict) else {}
    found = {"top1": {run: number(figures, f"top1_{run}") for run in _SCORED}}
    for row in rows(result, "scores"):
        found[text(row, "score")] = {run: number(row, run) for run in _SCORED}
    original = next((variant for variant in report.variants[1:] if variant.form == "float"), None)
    for name, runs in found.items():
        own = runs["ort-default"] if runs["ort-default"] is not None else runs["ort-plain"]
        for variant, value in ((report.variants[0], own), (original, runs["float"])):
            if variant is not None and value is not None and name:
                variant.scores[name] = value


def _target(report: schema.ModelReport, places: _Places, result: Result) -> None:
    """Add a hand-off to the report: one target, and a kernel at each node that the compiler names."""
    figures = result.content.get("figures")
    figures = figures if isinstance(figures, dict) else {}
    number_of = len(report.targets)
    coverage = rows(result, "coverage")
    steps = [found for row in rows(result, "outputs") if (found := number(row, "largest_steps")) is not None]
    backend, compiler = text(figures, "backend"), text(figures, "compiler")
    named = compiler
    if not compiler.startswith(backend):
        named = f"{backend} · {compiler}" if compiler else backend
    report.targets.append(
        schema.Target(
            name=named or result.name,
            integer=int(sum(number(row, "integer") or 0 for row in coverage)) if coverage else None,
            total=int(sum(number(row, "total") or 0 for row in coverage)) if coverage else None,
            largest_lsb=max(steps, default=None),
            milliseconds=number(figures, "milliseconds"),
        )
    )
    for row in rows(result, "nodes"):
        node = places.nodes.get(text(row, "name"))  # a compiler names nodes of its own, too
        runs = _RUNS.get(text(row, "kind"))
        if node is None or runs is None:
            continue
        kernel = schema.Kernel(
            target=number_of,
            runs=runs,
            kernel=text(row, "detail"),
            why=text(row, "why"),
            largest_lsb=number(row, "steps"),
            microseconds=number(row, "microseconds"),
        )
        node.kernels.append(kernel)
