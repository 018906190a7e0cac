"""Verdicts of :func:`onnxqat.validation.validate.validate`: parity, accuracy and deployment, each with its limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from onnxqat.graph import bundles
from onnxqat.metrics import Scored
from onnxqat.metrics._accuracy import Accuracy
from onnxqat.metrics._limits import AGREEMENT, LABELLED
from onnxqat.validation.accuracy import AccuracyLimits, Found, Loss, Noise, judge, judge_noise
from onnxqat.validation.compare import Comparison
from onnxqat.validation.parity import QuantizerParity
from onnxqat.validation.remedies import Given
from onnxqat.validation.result import DEFAULT, FLOAT, PLAIN, RUNS, TORCH, ValidationReport, integers
from onnxqat.verdict import SEVERITY, Verdict, graded

SESSION_SQNR = 20.0
"""Two runs of one file that are at least this close agree, whatever the file's own noise is."""

SESSION_MARGIN = 6.0
"""Ties that a run rounds the other way draw the noise of quantization anew, which leaves 3 dB less than the noise itself;
3 dB more are for outputs of few samples. Noise beyond that is another arithmetic."""


def parted_sessions(outputs: Sequence[Comparison]) -> list[str]:
    """Runs of the quantized model that differ by more than rounding: every output, against the file as written."""
    own = {c.output: c.sqnr_db for c in outputs if (c.run, c.against) == (PLAIN, FLOAT)}
    found = []
    for c in outputs:
        due = min(SESSION_SQNR, own.get(c.output, math.inf) - SESSION_MARGIN)
        if (c.run, c.against) in ((DEFAULT, PLAIN), (TORCH, PLAIN)) and c.differing is None and c.sqnr_db < due:
            found.append(
                f"output {c.output!r}: {c.sqnr_db:.1f} dB between {RUNS[c.run]} and {RUNS[c.against]}, where the noise of "
                f"quantization explains {due:.1f} dB"
            )
    return found


def judge_accuracy(
    outputs: Sequence[Comparison],
    accuracies: Sequence[Accuracy],
    limits: AccuracyLimits,
    scores: Sequence[Scored] = (),
    *,
    samples: int = 0,
) -> Found:
    """Status and reason of the accuracy verdict, of the worst run and output.

    Args:
        outputs: comparisons of all pairs.
        accuracies: top-1 of all runs.
        limits: what is accepted.
        scores: what the user asks for; they decide.
        samples: on how many.
    """
    losses = [_loss(score, samples) for score in scores if score.drops] or _top1(accuracies)
    found = judge(losses, _noise(outputs, limits), limits, asked=bool(scores))
    return found or ("amber", "no output was compared")


def _loss(score: Scored, samples: int) -> Loss:
    """Return the loss of the run that loses most."""
    run = max(score.drops, key=score.drops.__getitem__)
    return Loss(
        score.name, score.against, score.values[FLOAT], score.values[run], score.drops[run], score.limits, RUNS[run],
        samples, score.paired.get(run),
    )  # fmt: skip


def _top1(accuracies: Sequence[Accuracy]) -> list[Loss]:
    # The training module in float is not what runs anywhere: its ties fall as its sums round.
    runs = [a for a in accuracies if a.run not in (FLOAT, TORCH)]
    base = next((a for a in accuracies if a.run == FLOAT), None)
    if base is None or not runs:
        return []
    worst = min(runs, key=lambda a: a.top1)
    limits = LABELLED if worst.against == "labels" else AGREEMENT
    drop = base.top1 - worst.top1
    return [
        Loss("top1", worst.against, base.top1, worst.top1, drop, limits, RUNS[worst.run], worst.samples, worst.paired)
    ]


def _noise(outputs: Sequence[Comparison], limits: AccuracyLimits) -> Noise | None:
    """That of the worst output; outputs of whole numbers count by the share of values that are others."""
    found: list[Noise] = []
    for c in (c for c in outputs if c.against == FLOAT):
        if c.differing is None:
            status, text = judge_noise(c.sqnr_db, limits, f"against the float model ({RUNS[c.run]})")
            found.append(Noise(status, c.sqnr_db, f"output {c.output!r}: {text}"))
            continue
        share = 100 * c.differing
        status = graded(red=share > AGREEMENT.red, amber=share > AGREEMENT.amber)
        text = f"output {c.output!r}: {share:.1f} % of the values differ from the float model ({RUNS[c.run]})"
        found.append(Noise(status, math.inf, text))
    return max(found, key=lambda noise: (SEVERITY[noise.status], -noise.decibels), default=None)


def verdicts(
    report: ValidationReport,
    *,
    parity: Sequence[str],
    broken: Sequence[str],
    accuracy: Found,
    given: Given,
    saturated: bool = False,
) -> tuple[Verdict, Verdict, Verdict]:
    """The three verdicts of a comparison.

    Args:
        report: the comparison, without verdicts.
        parity: reasons for which torch and onnxruntime do not agree.
        broken: reasons for which the numbers themselves mean nothing, such as NaN.
        accuracy: of :func:`judge_accuracy`.
        given: what the commands that are named take over.
        saturated: sums of two products saturated in the default session of this machine.
    """
    return (
        _parity(report, parity, given, saturated=saturated),
        _accuracy(broken, accuracy, given),
        _deployment(report, given),
    )


def _parity(report: ValidationReport, failures: Sequence[str], given: Given, *, saturated: bool) -> Verdict:
    if failures:
        # Exact scales do not keep 16 bits from overflowing, and no other difference is as large as that.
        remedy = given.place(backend=report.backend, kind="safe-range" if saturated else "exact")
        return Verdict("parity", "red", _first_of(failures), remedy)
    if not report.compared(TORCH, PLAIN):
        return Verdict("parity", "amber", "not compared with torch: only the sessions of onnxruntime agree")
    noise = min((c.sqnr_db for c in report.compared(TORCH, PLAIN)), default=math.inf)
    if noise == math.inf:
        text = "torch and onnxruntime agree on every output: the same bits as written"
    else:
        text = f"torch and onnxruntime differ by no more than ties that round otherwise: {noise:.1f} dB as written"
    counted = integers(report.outputs)
    if counted is not None:
        unequal, count = counted
        text += f"; in integers, {unequal or 'none'} of {count} values differ from those of the default session"
        text += _codes(report.quantizers)
    return Verdict("parity", "green", text)


def _codes(quantizers: Sequence[QuantizerParity]) -> str:
    """The same of the codes of all tensors that its kernels give."""
    found = {q.tensor: q.differing_in_integers for q in quantizers if q.differing_in_integers is not None}
    if not found:
        return ""
    count = sum(q.elements for q in quantizers if q.tensor in found)
    first = next((f", first in {tensor!r}" for tensor, differing in found.items() if differing), "")
    return f", and {sum(found.values()) or 'none'} of {count} codes in {len(found)} tensors{first}"


def _accuracy(broken: Sequence[str], found: Found, given: Given) -> Verdict:
    if broken:
        return Verdict("accuracy", "red", _first_of(broken), given.look())
    status, reason = found
    return Verdict("accuracy", status, reason, "" if status == "green" else given.improve())


def _deployment(report: ValidationReport, given: Given) -> Verdict:
    wanted, target = given.target or report.backend, given.target
    remedy = given.compile_it(wanted)
    if target is not None and report.backend is not None and target != report.backend:
        text = f"the file is placed for {report.backend}, not for {target}"
        return Verdict("deployment", "red", text, given.place(backend=target))
    bundle = bundles.of(given.quantized)
    if bundle is not None and target in (None, bundle.report().get("backend")):
        return _in_a_bundle(bundle, Path(given.quantized).name, remedy)
    if wanted is None:
        return Verdict("deployment", "amber", "written, not compiled; the file names no backend", remedy)
    return Verdict("deployment", "amber", f"written for {wanted}, not compiled", remedy)


def _in_a_bundle(bundle: bundles.Bundle, name: str, remedy: str) -> Verdict:
    """Return the deployment verdict of the hand-off that wrote the bundle; amber where its file `name` was changed."""
    if not bundle.holds_unchanged(name):
        return Verdict("deployment", "amber", f"the file was changed after it was put into {bundle.folder}", remedy)
    for found in bundle.report().get("verdicts", ()):
        if found["name"] == "deployment":
            reason = f"a file of the bundle {bundle.folder.name}: {found['reason']}"
            return Verdict("deployment", found["status"], reason, found["remedy"])
    return Verdict("deployment", "amber", f"the bundle {bundle.folder} does not say what came of it", remedy)


def _first_of(texts: Iterable[str]) -> str:
    first, *others = texts
    return f"{first} (and {len(others)} more)" if others else first
