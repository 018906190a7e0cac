"""Verdicts of :func:`onnxqat.validation.validate.validate`: parity, accuracy and deployment, each with its limits.

Accuracy is decided by what says most. With labels of at least :data:`FEWEST` samples: by top-1 lost. Without: by the
share of samples with another top-1 than the float model's, and by signal to noise, whichever is worse; a network that
is no classifier, or that saw fewer samples, by signal to noise alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from onnxqat.metrics._accuracy import Accuracy
from onnxqat.shell import command
from onnxqat.validation.compare import Comparison
from onnxqat.validation.result import DEFAULT, FLOAT, PLAIN, RUNS, TORCH, ValidationReport
from onnxqat.verdict import AMBER_SQNR, MIN_SQNR, SEVERITY, Status, Verdict

FEWEST = 100
"""Samples from which on top-1 decides: of fewer, one flip is more than the point that the amber limit allows."""

SLACK = 2
"""Flips that never count: on the smallest set, a tie more or less is no loss."""

MAX_DROP, AMBER_DROP = 5.0, 1.0
"""Points of top-1 lost on labels: red past the first, amber past the second. A ResNet-20 loses 0.1 at W8A8."""

MAX_OTHERS, AMBER_OTHERS = 20.0, 5.0
"""Samples in 100 with another top-1 than the float model's: a MobileNetV2 at W8A8, which is fit for use, has up to 10."""

SESSION_SQNR = 20.0
"""Two runs of one file that are at least this close agree, whatever the file's own noise is."""

SESSION_MARGIN = 6.0
"""Ties that a run rounds the other way draw the noise of quantization anew, which leaves 3 dB less than the noise itself;
3 dB more are for outputs of few samples. Noise beyond that is another arithmetic."""


@dataclasses.dataclass(frozen=True)
class AccuracyLimits:
    """What the accuracy verdict accepts; None is the default, stated at the constants of this module.

    Attributes:
        max_drop: points of top-1 that may be lost on labels, or samples in 100 whose top-1 may be another one without.
        min_sqnr: lowest signal to noise of an output in dB, where labels do not decide.
    """

    max_drop: float | None = None
    min_sqnr: float | None = None


@dataclasses.dataclass(frozen=True)
class Given:
    """What the commands that a verdict names take over from the one that was run.

    Attributes:
        data: data on the command line; None where they are Python objects.
        preprocess: preprocessing line.
        trained: the file has been trained already.
        target: the backend that the user means to deploy to; None: that of the file.
    """

    data: object = None
    preprocess: str | None = None
    trained: bool = False
    target: str | None = None


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
    outputs: Sequence[Comparison], accuracies: Sequence[Accuracy], limits: AccuracyLimits
) -> tuple[Status, str]:
    """Status and reason of the accuracy verdict, of the worst run and output."""
    runs = [a for a in accuracies if a.run != FLOAT]
    base = next((a for a in accuracies if a.run == FLOAT), None)
    if base is not None and runs and base.samples >= FEWEST:
        worst = min(runs, key=lambda a: a.top1)
        if worst.against == "labels":
            return _dropped(base, worst, limits)
        return max(_others(worst, limits), _noise(outputs, limits), key=lambda found: SEVERITY[found[0]])
    return _noise(outputs, limits)


def _dropped(base: Accuracy, worst: Accuracy, limits: AccuracyLimits) -> tuple[Status, str]:
    drop = 100 * (base.top1 - worst.top1)
    red = MAX_DROP if limits.max_drop is None else limits.max_drop
    status = _status(drop, red, min(AMBER_DROP, red), worst.samples)
    text = f"top-1 {base.top1:.2%} in float, {worst.top1:.2%} quantized ({RUNS[worst.run]}), on {worst.samples} samples"
    return status, f"{text}; {_limit(status, f'{drop:.2f} points lost', red, AMBER_DROP, 'points')}"


def _others(worst: Accuracy, limits: AccuracyLimits) -> tuple[Status, str]:
    others = 100 * (1 - worst.top1)
    red = MAX_OTHERS if limits.max_drop is None else limits.max_drop
    status = _status(others, red, min(AMBER_OTHERS, red), worst.samples)
    text = f"{others:.1f} % of {worst.samples} samples have another top-1 than the float model ({RUNS[worst.run]})"
    return status, _limit(status, text, red, AMBER_OTHERS, "%")


def _status(lost: float, red: float, amber: float, samples: int) -> Status:
    slack = 100 * SLACK / samples
    if lost > max(red, slack):
        return "red"
    return "amber" if lost > max(amber, slack) else "green"


def _limit(status: Status, text: str, red: float, amber: float, unit: str) -> str:
    if status == "green":
        return text
    return f"{text}, above {red:g} {unit}" if status == "red" else f"{text}, above {min(red, amber):g} {unit}"


def _noise(outputs: Sequence[Comparison], limits: AccuracyLimits) -> tuple[Status, str]:
    red = MIN_SQNR if limits.min_sqnr is None else limits.min_sqnr
    amber = AMBER_SQNR if limits.min_sqnr is None else max(red, min(AMBER_SQNR, 2 * red))
    found: list[tuple[Status, float, str]] = []
    for c in (c for c in outputs if c.against == FLOAT):
        if c.differing is not None:
            found.append((_status(100 * c.differing, MAX_OTHERS, AMBER_OTHERS, c.samples), 0.0, _words(c)))
            continue
        status: Status = "red" if not c.sqnr_db >= red else ("amber" if c.sqnr_db < amber else "green")
        below = {"red": f", below {red:g} dB", "amber": f", below {amber:g} dB", "green": ""}[status]
        text = "equal to the float model" if c.sqnr_db == math.inf else f"{c.sqnr_db:.1f} dB against the float model"
        found.append((status, c.sqnr_db, f"output {c.output!r}: {text}{below} ({RUNS[c.run]})"))
    if not found:
        return "amber", "no output was compared"
    status, _, reason = max(found, key=lambda entry: (SEVERITY[entry[0]], -entry[1]))
    return status, reason


def _words(c: Comparison) -> str:
    return f"output {c.output!r}: {c.differing or 0.0:.1%} of the values differ from the float model ({RUNS[c.run]})"


def verdicts(
    report: ValidationReport,
    *,
    parity: Sequence[str],
    broken: Sequence[str],
    accuracy: tuple[Status, str],
    given: Given,
) -> tuple[Verdict, Verdict, Verdict]:
    """The three verdicts of a comparison.

    Args:
        report: the comparison, without verdicts.
        parity: reasons for which torch and onnxruntime do not agree.
        broken: reasons for which the numbers themselves mean nothing, such as NaN.
        accuracy: of :func:`judge_accuracy`.
        given: what the commands that are named take over.
    """
    return _parity(report, parity, given), _accuracy(report, broken, accuracy, given), _deployment(report, given.target)


def _parity(report: ValidationReport, failures: Sequence[str], given: Given) -> Verdict:
    if failures:
        remedy = command(
            "insert-qdq", report.float_model, backend=report.backend, calibration=given.data or "DATA",
            preprocess=given.preprocess, o=_named(report.qdq_model, "exact"),
        )  # fmt: skip
        return Verdict("parity", "red", _some(failures), f"{remedy} --exact")
    if not report.compared(TORCH, PLAIN):
        return Verdict("parity", "amber", "not compared with torch: only the sessions of onnxruntime agree")
    noise = min((c.sqnr_db for c in report.compared(TORCH, PLAIN)), default=math.inf)
    close = "the same bits" if noise == math.inf else f"{noise:.1f} dB"
    return Verdict("parity", "green", f"torch and onnxruntime agree on every output: {close} as written")


def _accuracy(report: ValidationReport, broken: Sequence[str], found: tuple[Status, str], given: Given) -> Verdict:
    status, reason = found
    if broken:
        status, reason = "red", _some(broken)
    remedy = ""
    if status != "green":
        data: dict[str, object] = {"data": given.data or "DATA", "preprocess": given.preprocess}
        if broken or given.trained:
            remedy = command("profile", report.float_model, report.qdq_model, **data)
        else:
            tuned = _named(report.qdq_model, "tuned")
            remedy = command("finetune", report.qdq_model, **data, teacher=report.float_model, o=tuned)
    return Verdict("accuracy", status, reason, remedy)


def _deployment(report: ValidationReport, target: str | None) -> Verdict:
    wanted = target or report.backend
    remedy = command("handoff", report.qdq_model, backend=wanted or "BACKEND", o="bundle/")
    if target is not None and report.backend is not None and target != report.backend:
        text = f"the file is placed for {report.backend}, not for {target}"
        again = command(
            "insert-qdq", report.float_model, backend=target, calibration="DATA", o=_named(report.qdq_model, target)
        )
        return Verdict("deployment", "red", text, again)
    if wanted is None:
        return Verdict("deployment", "amber", "written, not compiled; the file names no backend", remedy)
    return Verdict("deployment", "amber", f"written for {wanted}, not compiled", remedy)


def _named(path: str, word: str) -> str:
    return path.removesuffix(".onnx").removesuffix(".qdq") + f".{word}.qdq.onnx"


def _some(texts: Iterable[str]) -> str:
    first, *others = texts
    return f"{first} (and {len(others)} more)" if others else first
