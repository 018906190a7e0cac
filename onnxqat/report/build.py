"""Reports from the results of the commands; those of validate and handoff have files of their own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from onnxqat.counts import counted
from onnxqat.report import build_guard
from onnxqat.report.model import Cell, Column, Figure, Kind, LeftFloat, Report, Table, shown
from onnxqat.shell import command
from onnxqat.types import Decision, Derived, Edge, Fixed, Float, Shared
from onnxqat.verdict import Verdict

if TYPE_CHECKING:
    from onnxqat.deployment.fold_batchnorm import Folded
    from onnxqat.insertion.insert import InsertResult
    from onnxqat.insertion.trial import Trial

DATA = "DATA"


def from_insert(
    result: InsertResult[Any],
    *,
    explain: bool = False,
    source: str | None = None,
    data: str | None = None,
    preprocess: str | None = None,
) -> Report:
    """Build the report of ``insert-qdq``.

    Args:
        result: of :func:`onnxqat.insertion.insert.insert_qdq`.
        explain: list every edge with its treatment and the rule behind it.
        source: path of the float model, for the next command.
        data: calibration data, for the next command.
        preprocess: their preprocessing line, for the next command.
    """
    plan, output = result.plan, _path(result.model)
    counts = result.quantizers
    figures = (
        Figure("backend", "backend", plan.backend),
        Figure("quantizers", "quantizers", sum(counts.values()), "count"),
        *(Figure(role, f"of {role}s" if role != "bias" else "of biases", n, "count") for role, n in counts.items()),
        Figure("float_nodes", "nodes left in float", len(plan.float_nodes), "count"),
        *_trial_figures(result.trial),
        *build_guard.figures(result.guard),
    )
    following = command("lint", source or "MODEL.onnx", backend=plan.backend)
    if sum(counts.values()):
        written = output or "MODEL.qdq.onnx"
        given = {"data": data or DATA, "preprocess": preprocess}
        following = command("finetune", written, **given, teacher=source, o=_tuned(written))
    return Report(
        kind="insert-qdq",
        title=f"Quantizers for {plan.backend}",
        figures=figures,
        tables=(*build_guard.tables(result.guard), *((_edges(plan.edges),) if explain else ())),
        remarks=result.remarks,
        files=(output,) if output else (),
        left_float=tuple(LeftFloat(node, reason) for node, reason in plan.float_nodes),
        next_command=following,
        verdicts=() if result.trial is None else (_trial_verdict(result.trial, following),),
    )


def _trial_figures(trial: Trial | None) -> list[Figure]:
    if trial is None:
        return []
    note = f"against the float model, on {counted(trial.samples, 'calibration sample')}"
    return [
        Figure(f"sqnr_{name}", f"signal to noise of {name}", value, "decibel", note)
        for name, value in trial.sqnr_db.items()
    ]


def _trial_verdict(trial: Trial, training: str) -> Verdict:
    """The accuracy of a file that was just written, from a handful of samples."""
    reason = f"{shown(trial.worst, 'decibel')} at the worst output, on {counted(trial.samples, 'calibration sample')}"
    if trial.status == "green":
        return Verdict("accuracy", "green", reason)
    costly = ", ".join(f"{name} ({shown(noise, 'decibel')})" for name, noise in trial.costly)
    where = (
        "most noise comes from the quantizers of" if trial.costly_at == "outputs" else "most noise of their own have"
    )
    named = f"; {where} {costly}" if costly else ""
    if trial.status == "red":
        return Verdict("accuracy", "red", f"{reason}: a start for training, not for deployment{named}", training)
    return Verdict("accuracy", "amber", reason + named, training)


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
        return f"shares parameters with {decision.root}"
    if isinstance(decision, Fixed):
        scale = float(decision.qparams.scale.ravel()[0])
        return f"{decision.qparams.qtype.storage}, fixed: scale {scale:.6g}"
    if isinstance(decision, Derived):
        return f"bias, {decision.storage}: scale of {decision.activation} times scale of {decision.weight}"
    if isinstance(decision, Float):
        return f"float: {decision.reason}"
    kind = "symmetric" if decision.symmetric else "asymmetric"
    parts = "per channel" if decision.block_size is None else f"in blocks of {decision.block_size}"
    where = "per tensor" if decision.axis is None else f"{parts}, axis {decision.axis}"
    power = "" if decision.scale_bits is None else f", scales of {decision.scale_bits} bits"
    return f"{decision.role}, {decision.qtype.storage} {decision.qtype.bits} bit {kind} {where}{power}, {decision.observer}"


def _consumers(edge: Edge) -> str:
    if edge.consumers is None:
        return "all"
    return ", ".join(f"{node}[{index}]" for node, index in edge.consumers)


def from_finetune(result: Any, *, following: str = "") -> Report:
    """Build the report of ``finetune``.

    Args:
        result: of ``onnxqat.training.finetune.finetune``; figures that it does not have are left out.
        following: the next command.
    """
    losses = list(getattr(result, "losses", None) or ())
    figures = [
        *_scores(result),
        _figure(result, "written", "weights written", "text"),
        _figure(result, "best_epoch", "from epoch", "count")
        if getattr(result, "best_score", None) is not None
        else None,
        _figure(result, "arithmetic", "arithmetic", "text"),
        _figure(result, "steps", "steps", "count"),
        Figure("first_loss", "training loss of the first epoch", losses[0], "number") if losses else None,
        Figure("last_loss", "training loss of the last epoch", losses[-1], "number") if losses else None,
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
        next_command=following,
    )


def _scores(result: Any) -> list[Figure | None]:
    """Scores of the model as it was given and as it was written, with what they were measured on."""
    helped = getattr(result, "helped", None)
    if helped is None:
        return [_figure(result, "best_score", "best score", "number")]
    samples = getattr(result, "scored_samples", 0)
    where = "held out of training" if getattr(result, "held_out", False) else "that were trained on"
    what = "minus the loss" if result.score == "loss" else result.score
    what += f" of {samples:,} samples {where}" if samples else ""
    return [
        Figure("score", "score", what),
        _figure(result, "start_score", "score before", "number"),
        _figure(result, "best_score", "score after", "number"),
        Figure("helped", "training helped", helped),
    ]


def _figure(result: Any, key: str, label: str, kind: Kind) -> Figure | None:
    value = getattr(result, key, None)
    return None if value is None else Figure(key, label, cast(Cell, value), kind)


def from_fold(result: Folded[Any], *, following: str = "") -> Report:
    """Build the report of ``fold-batchnorm``; `following` is the next command."""
    output = _path(result.model)
    figures = (
        Figure("folded", "BatchNormalization folded", result.count, "count"),
        Figure("left", "left", result.left, "count"),
    )
    return Report(
        kind="fold-batchnorm",
        title="BatchNormalization folded",
        figures=figures,
        remarks=result.remarks,
        files=(output,) if output else (),
        next_command=following,
    )


_DEMO_TITLES = {
    "top1": "top-1",
    "differ_as_written": "differ, as written",
    "differ_default": "differ, default session",
    "integer": "operators in integers",
}


DEMO_TITLE = "The whole way, on handwritten digits"


def from_demo(rows: Sequence[Mapping[str, Any]], *, files: Sequence[str] = (), next_command: str = "") -> Report:
    """The table that ``demo`` ends with.

    Args:
        rows: one per state of the model (float, calibrated, tuned, compiled), all with the same keys; a key with
            ``accuracy`` or ``top1`` in it is a share, one that ends in ``_db`` is in decibels.
        files: what was written.
        next_command: what to try now.
    """
    keys = list(rows[0]) if rows else []
    columns = tuple(
        Column(key, _DEMO_TITLES.get(key, key.replace("_", " ")), _kind_of(key, [row[key] for row in rows]))
        for key in keys
    )
    table = Table(
        "states",
        "The model after each step",
        columns,
        tuple(tuple(row[key] for key in keys) for row in rows),
        note="Differ: test images on which torch and onnxruntime disagree; as written is with graph optimizations off.",
    )
    return Report(
        kind="demo",
        title=DEMO_TITLE,
        tables=(table,),
        files=tuple(files),
        next_command=next_command,
    )


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
