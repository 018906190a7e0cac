"""Reports from the results of the commands."""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from onnxqat.handoff._base import ABSORBED
from onnxqat.handoff._result import HandoffReport
from onnxqat.insert import InsertResult
from onnxqat.report.model import Cell, Column, Figure, Kind, LeftFloat, Report, Table
from onnxqat.types import Decision, Derived, Edge, Fixed, Float, Remark, Shared
from onnxqat.validation.result import DEFAULT, FLOAT, PLAIN, RUNS, TORCH, ValidationReport

_DATA = "DATA"
_SHORT = {FLOAT: "float model", TORCH: "torch", PLAIN: "onnxruntime, as written", DEFAULT: "onnxruntime, default"}


def from_insert(result: InsertResult, *, explain: bool = False, source: str | None = None) -> Report:
    """What ``insert-qdq`` did.

    Args:
        result: of :func:`onnxqat.insert.insert_qdq`.
        explain: list every edge with its treatment and the rule behind it.
        source: path of the float model, for the next command.
    """
    plan, output = result.plan, _path(result.model)
    counts = result.quantizers
    figures = (
        Figure("backend", "backend", plan.backend),
        Figure("quantizers", "quantizers", sum(counts.values()), "count"),
        *(Figure(role, f"of {role}s" if role != "bias" else "of biases", n, "count") for role, n in counts.items()),
        Figure("float_nodes", "nodes left in float", len(plan.float_nodes), "count"),
    )
    return Report(
        kind="insert-qdq",
        title=f"Quantizers for {plan.backend}",
        figures=figures,
        tables=(_edges(plan.edges),) if explain else (),
        remarks=result.remarks,
        files=(output,) if output else (),
        left_float=tuple(LeftFloat(node, reason) for node, reason in plan.float_nodes),
        next_command=_command(
            "finetune", output or "MODEL.qdq.onnx", data=_DATA, teacher=source, o=_tuned(output or "MODEL.qdq.onnx")
        ),
    )


def _edges(edges: Sequence[Edge]) -> Table:
    columns = (
        Column("tensor", "tensor"),
        Column("treatment", "treatment"),
        Column("rule", "rule"),
        Column("consumers", "consumers"),
    )
    rows = tuple((e.tensor, treatment(e.decision), e.rule, _consumers(e)) for e in edges)
    return Table("edges", "Why each tensor is treated as it is", columns, rows, shown=max(len(rows), 1))


def treatment(decision: Decision) -> str:
    """One line about what happens to a tensor."""
    if isinstance(decision, Shared):
        return f"tied to {decision.root}"
    if isinstance(decision, Fixed):
        scale = float(decision.qparams.scale.ravel()[0])
        return f"{decision.qparams.qtype.storage}, fixed: scale {scale:.6g}"
    if isinstance(decision, Derived):
        return f"bias, {decision.storage}: scale of {decision.activation} times scale of {decision.weight}"
    if isinstance(decision, Float):
        return f"float: {decision.reason}"
    kind = "symmetric" if decision.symmetric else "asymmetric"
    where = "per tensor" if decision.axis is None else f"per channel, axis {decision.axis}"
    power = "" if decision.scale_bits is None else f", scales of {decision.scale_bits} bits"
    return f"{decision.role}, {decision.qtype.storage} {decision.qtype.bits} bit {kind} {where}{power}, {decision.observer}"


def _consumers(edge: Edge) -> str:
    if edge.consumers is None:
        return "all"
    return ", ".join(f"{node}[{index}]" for node, index in edge.consumers)


def from_finetune(result: Any, *, source: str | None = None) -> Report:
    """What ``finetune`` did.

    Args:
        result: of ``onnxqat.training.finetune.finetune``; what it does not have is left out.
        source: path of the float model, for the next command.
    """
    losses = list(getattr(result, "losses", None) or ())
    figures = [
        _figure(result, "steps", "steps", "count"),
        Figure("first_loss", "loss of the first epoch", losses[0], "number") if losses else None,
        Figure("last_loss", "loss of the last epoch", losses[-1], "number") if losses else None,
        _figure(result, "best_score", "best score", "number"),
        _figure(result, "best_epoch", "in epoch", "count") if getattr(result, "best_score", None) is not None else None,
        _figure(result, "written", "weights written", "text"),
        _figure(result, "seconds", "seconds", "number"),
        _figure(result, "limited_scales", "scale steps limited", "count"),
    ]
    output = _path(getattr(result, "model", None))
    columns = (Column("epoch", "epoch", "count"), Column("loss", "loss", "number"))
    curve = Table("losses", "Loss", columns, tuple((i, float(x)) for i, x in enumerate(losses, start=1)))
    return Report(
        kind="finetune",
        title="Fine-tuned",
        figures=tuple(f for f in figures if f is not None),
        tables=(curve,) if len(losses) > 1 else (),
        remarks=tuple(getattr(result, "remarks", ())),
        files=(output,) if output else (),
        next_command=_command("validate", source or "MODEL.onnx", output or "TUNED.qdq.onnx", data=_DATA),
    )


def _figure(result: Any, key: str, label: str, kind: Kind) -> Figure | None:
    value = getattr(result, key, None)
    return None if value is None else Figure(key, label, cast(Cell, value), kind)


def from_validation(report: ValidationReport, *, backend: str | None = None) -> Report:
    """What ``validate`` found.

    Args:
        report: of :func:`onnxqat.validation.validate.validate`.
        backend: for the next command, where the file does not name it.
    """
    figures = [Figure("samples", "samples", report.samples, "count", report.data)]
    for accuracy in report.accuracies:
        note = "" if accuracy.against == "labels" else "agreement with the float model"
        figures.append(Figure(f"top1_{accuracy.run}", f"top-1, {RUNS[accuracy.run]}", accuracy.top1, "share", note))
    figures += _noise_figures(report)
    remarks = list(report.remarks)
    if report.first_parting is not None:
        remarks.append(_parting(report))
    if report.passed:
        command = _command("handoff", report.qdq_model, backend=backend or report.backend or "BACKEND", o="bundle/")
    else:
        command = _command("validate", report.float_model, report.qdq_model, data=_DATA, html="report.html")
    return Report(
        kind="validate",
        title=f"{report.qdq_model} against {report.float_model}",
        passed=report.passed,
        figures=tuple(figures),
        tables=(_outputs(report), _tensors(report), _quantizers(report)),
        failures=report.failures,
        remarks=tuple(remarks),
        left_float=tuple(LeftFloat(name, f"{tensor} carries no quantizer") for name, tensor in report.float_nodes),
        next_command=command,
    )


def _noise_figures(report: ValidationReport) -> list[Figure]:
    found = []
    for run, against, name in ((PLAIN, FLOAT, "quantized against float"), (TORCH, PLAIN, "torch against onnxruntime")):
        comparisons = report.compared(run, against)
        if not comparisons:
            continue
        worst = min((c.sqnr_db for c in comparisons), default=math.inf)
        found.append(Figure(f"sqnr_{run}_{against}", f"signal to noise, {name}", worst, "decibel"))
        flips = [c.differing_top1 for c in comparisons if c.differing_top1 is not None]
        if flips:
            found.append(Figure(f"flips_{run}_{against}", f"top-1 that differ, {name}", sum(flips), "count"))
    return found


def _parting(report: ValidationReport) -> Remark:
    found = report.first_parting
    assert found is not None
    cause = "a value next to a rounding tie" if found.rounding_tie else f"operator {found.op_type}"
    text = f"torch and onnxruntime first part at tensor {found.tensor!r}, sample {found.sample}: {cause}"
    return Remark(text, (found.node,), "validate")


def _outputs(report: ValidationReport) -> Table:
    columns = (
        Column("output", "output"),
        Column("run", "run"),
        Column("against", "against"),
        Column("differing_top1", "top-1 differ", "count"),
        Column("max_abs", "largest difference", "number"),
        Column("sqnr_db", "signal to noise", "decibel"),
    )
    rows = tuple(
        (c.output, _SHORT[c.run], _SHORT[c.against], c.differing_top1, c.max_abs, c.sqnr_db) for c in report.outputs
    )
    note = "As written: with graph optimizations off. All but the float model are the quantized model."
    return Table("outputs", "Outputs", columns, rows, note=note)


def _tensors(report: ValidationReport) -> Table:
    columns = (
        Column("tensor", "tensor"),
        Column("sqnr_db", "signal to noise", "decibel", bar=True),
        Column("position", "position", "count"),
    )
    rows = sorted(((t.tensor, t.sqnr_db, i) for i, t in enumerate(report.tensors)), key=lambda row: row[1])
    note = f"Quantized against float model in onnxruntime, on {report.tensor_samples} samples; position is graph order."
    return Table("tensors", "Signal to noise per tensor, worst first", columns, tuple(rows), shown=10, note=note)


def _quantizers(report: ValidationReport) -> Table:
    columns = (
        Column("tensor", "tensor"),
        Column("grid", "grid"),
        Column("noise_db", "own noise", "decibel", bar=True),
        Column("differing_given_input", "codes differ, same input", "count"),
        Column("differing_in_network", "codes differ, network", "count"),
        Column("largest_in_network", "largest, steps", "count"),
        Column("tie_rate", "at a tie", "share"),
        Column("saturated", "saturated", "share"),
    )
    fields = [c.key for c in columns]
    rows = tuple(tuple(cast(Cell, getattr(q, key)) for key in fields) for q in report.quantizers)
    reference = report.quantizers[0].reference if report.quantizers else "torch"
    note = f"{reference} against onnxruntime with optimizations off, in graph order."
    return Table("quantizers", "Quantizers", columns, rows, shown=10, note=note)


def from_handoff(report: HandoffReport) -> Report:
    """What ``handoff`` did.

    Args:
        report: of :func:`onnxqat.handoff.handoff.handoff`.
    """
    integer, total = (sum(getattr(c, key) for c in report.coverage) for key in ("integer", "total"))
    compiled = f"{report.compiler} {report.version}" if report.compiler else None
    figures = [
        Figure("backend", "backend", report.backend),
        Figure("compiler", "compiler", compiled, note="" if compiled else "nothing was compiled"),
        Figure("opset", "opset", report.opset, "count", f"IR version {report.ir_version}"),
        Figure("same_as_train_form", "bits of the deploy form in onnxruntime are unchanged", report.same_as_train_form),
    ]
    if total:
        figures.append(Figure("integer", "heavy nodes on integers", integer, "count", f"of {total}"))
    figures += [
        Figure(
            f"largest_steps_{c.output}", f"largest difference of {c.output}, steps", c.largest_steps, "number", c.unit
        )
        for c in report.outputs
    ]
    root = Path(report.output)
    left = tuple(LeftFloat(n.name, f"{report.compiler} runs it as {n.detail}") for n in report.float_nodes)
    return Report(
        kind="handoff",
        title=f"{report.model} for {report.backend}",
        passed=report.passed,
        figures=tuple(figures),
        tables=tuple(t for t in (_coverage(report), _steps(report), _nodes(report)) if t.rows),
        failures=report.failures,
        remarks=report.remarks,
        files=tuple(str(root / name) for name in report.files),
        left_float=left,
        next_command="" if report.passed else _command("lint", report.model),
    )


def _coverage(report: HandoffReport) -> Table:
    columns = (
        Column("op_type", "operator"),
        Column("integer", "on integers", "count"),
        Column("total", "nodes", "count"),
        Column("share", "share", "share", bar=True),
    )
    rows = tuple((c.op_type, c.integer, c.total, c.integer / c.total) for c in report.coverage)
    return Table("coverage", "Integer coverage", columns, rows)


def _steps(report: HandoffReport) -> Table:
    columns = (
        Column("output", "output"),
        Column("unit", "a step is that of the"),
        Column("step", "step", "number"),
        Column("largest_steps", "largest difference, steps", "number"),
        Column("mean_steps", "mean, steps", "number"),
        Column("beyond", "beyond the limit", "share"),
        Column("differing_top1", "top-1 differ", "count"),
    )
    fields = [c.key for c in columns]
    rows = tuple(tuple(cast(Cell, getattr(c, key)) for key in fields) for c in report.outputs)
    note = f"Against the file handed in, in onnxruntime with optimizations off, on {report.samples} samples."
    return Table("outputs", "Outputs", columns, rows, note=note)


def _nodes(report: HandoffReport) -> Table:
    columns = (
        Column("name", "node"),
        Column("op_type", "operator"),
        Column("kind", "runs on"),
        Column("detail", "as"),
    )
    words = {"integer": "integers", "moved": "integers, moved", "float": "float"}
    rows = tuple((n.name, n.op_type, "-" if n.detail == ABSORBED else words[n.kind], n.detail) for n in report.nodes)
    return Table("nodes", "Nodes", columns, rows)


def from_demo(rows: Sequence[Mapping[str, Any]], *, files: Sequence[str] = (), next_command: str = "") -> Report:
    """The table that ``demo`` ends with.

    Args:
        rows: one a state of the model (float, calibrated, tuned, compiled), all with the same keys; a key with
            ``accuracy`` or ``top1`` in it is a share, one that ends in ``_db`` is in decibels.
        files: what was written.
        next_command: what to try now.
    """
    keys = list(rows[0]) if rows else []
    columns = tuple(Column(key, key.replace("_", " "), _kind_of(key, [row[key] for row in rows])) for key in keys)
    table = Table("states", "The way of the model", columns, tuple(tuple(row[key] for key in keys) for row in rows))
    return Report(kind="demo", title="Demo", tables=(table,), files=tuple(files), next_command=next_command)


def _kind_of(key: str, values: Sequence[Any]) -> Kind:
    if key.endswith("_db"):
        return "decibel"
    if "accuracy" in key or "top1" in key:
        return "share"
    if all(isinstance(v, (int, float)) for v in values if v is not None):
        return "number"
    return "text"


def with_files(report: Report, *files: str) -> Report:
    """`report` with more files written, such as the HTML view of itself."""
    return dataclasses.replace(report, files=(*report.files, *files))


def _path(model: Any) -> str:
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""


def _tuned(path: str) -> str:
    return path.removesuffix(".onnx").removesuffix(".qdq") + ".tuned.qdq.onnx"


def _command(name: str, *arguments: str, **options: str | None) -> str:
    """A command line that can be pasted; words in capitals are for the user to fill in."""
    words = ["onnxqat", name, *arguments]
    for key, value in options.items():
        if value is not None:
            words += ["-o" if key == "o" else f"--{key}", value]
    return shlex.join(words)
