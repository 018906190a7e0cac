"""Verdicts of a hand-off: does the target compute what the file says, and does it do the work of the float model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from onnxqat.backends import schema
from onnxqat.deployment import choice
from onnxqat.deployment.outputs import OutputCheck
from onnxqat.errors import QatError
from onnxqat.metrics import Scored
from onnxqat.metrics._limits import AGREEMENT, NOISE
from onnxqat.validation.accuracy import AccuracyLimits, Loss, Noise, judge, judge_loss
from onnxqat.validation.remedies import Given
from onnxqat.validation.verdicts import SESSION_MARGIN, SESSION_SQNR
from onnxqat.verdict import MIN_SQNR, SEVERITY, Status, Verdict

RUNS = {"file": "the file handed in", "compiled": "the compiled model"}


@dataclasses.dataclass(frozen=True)
class Judged:
    """One output of the compiler.

    Attributes:
        status: green: as the file within rounding; amber: rounding that adds up, or flips; red: other numbers.
        words: what is to be said; empty where there is nothing.
    """

    status: Status
    words: str


def judge_output(check: OutputCheck, own_db: float, tolerance_lsb: float, max_beyond: float, compiler: str) -> Judged:
    """Compare one output with the file handed in, on whatever samples were run.

    An output whose every value is that of execution in integers is green: the file, as integers compute it, whatever ties
    of floats make of it. Any other:

    1. At most a share of `max_beyond` of the values further than `tolerance_lsb` steps: green.
    2. Beyond that, while noise is at most a hundredth of the signal or what quantization itself makes explains it, and in no
       case more than a tenth: amber, it is rounding that adds up from layer to layer.
    3. More noise, or another top-1 in significantly more than a fifth of the samples: red. Two standard deviations are
       allowed for, so that few samples give the same verdict as many.

    Args:
        check: the output.
        own_db: signal to noise of the file handed in against its own float weights: what quantization costs.
        tolerance_lsb: see 1.
        max_beyond: see 1.
        compiler: its name.
    """
    name = f"output {check.output!r}"
    if check.unlike_integers == 0 and check.differing:
        return Judged("green", f"{name}: each of {check.elements} values is that of execution in integers")
    if check.only_ties:
        text = f"{check.differing} of {check.elements} values are one step off: it differs only by rounding ties"
        if check.unit == "range":  # floats, which differ in their last bits
            text = f"values differ by at most {check.largest_steps:.2g} of 1/255 of its range"
        return Judged("green", f"{name}: {text}")
    flips, samples = check.differing_top1 or 0, check.samples
    beyond = (
        f"{name}: {check.beyond:.1%} of the values of {compiler} are more than {tolerance_lsb:g} LSB from the reference "
        f"(at most {max_beyond:.1%} may be), the largest {check.largest_steps:.1f}, signal to noise {check.sqnr_db:.1f} dB"
    )
    turned = f"{name}: {flips} of {samples} top-1 of {compiler} differ from the file handed in"
    if flips > allowed(AGREEMENT.red / 100, samples):
        return Judged("red", f"{turned}; {beyond}" if check.beyond > max_beyond else turned)
    if check.beyond > max_beyond:
        limit = max(MIN_SQNR, min(SESSION_SQNR, own_db - SESSION_MARGIN))
        if not check.sqnr_db >= limit:
            return Judged("red", f"{beyond}; at least {limit:.1f} dB are due")
        return Judged("amber", f"{beyond}: it is rounding that adds up" + (f"; {turned}" if flips else ""))
    return Judged("amber" if flips > allowed(AGREEMENT.amber / 100, samples) else "green", turned if flips else "")


def allowed(share: float, samples: int) -> float:
    """Return the mean of a Poisson count with `share` in `samples`, plus two standard deviations."""
    return share * samples + 2 * math.sqrt(share * samples)


def other_target(made_for: str, table: schema.Backend) -> bool:
    """Check whether a file whose metadata name `made_for` was made for another compiler than that of `table`."""
    if not made_for or made_for == table.backend:
        return False
    try:
        mine = schema.load(made_for)
    except QatError:
        return False  # a table of the user's own that is not here
    return not set(choice.lineage(mine)) & set(choice.lineage(table))


def deployment(
    *,
    made_for: str,
    table: schema.Backend,
    compiler: str | None,
    runs_numbers: bool,
    failures: Sequence[str],
    judged: Iterable[Judged],
    again: str,
) -> Verdict:
    """Compiled, written but not compiled, or another target's file.

    Args:
        made_for: the backend that the file names.
        table: that of the target.
        compiler: what compiled it; None where nothing did.
        runs_numbers: whether its outputs were compared.
        failures: what is wrong with the file or the numbers.
        judged: the outputs.
        again: the command that makes a file for the target.
    """
    other = f"a file made for {made_for}, handed to {table.backend}" if other_target(made_for, table) else ""
    if compiler is None and other:
        return Verdict("deployment", "red", f"written, not compiled: {other}", again)
    if failures:
        return Verdict("deployment", "red", failures[0], again if other else "")
    if compiler is None:
        text = f"written, not compiled: whether {table.backend} takes it is not known"
        return Verdict("deployment", "amber", text, "onnxqat handoff --compilers")
    if other:
        return Verdict("deployment", "amber", f"compiled by {compiler}, but {other}", again)
    if not runs_numbers:
        return Verdict("deployment", "amber", f"compiled by {compiler}, which runs no numbers on this machine")
    worst = max(judged, key=lambda j: SEVERITY[j.status], default=Judged("green", ""))
    words = worst.words or "the numbers are those of the file"
    return Verdict("deployment", worst.status, f"compiled by {compiler}; {words}")


@dataclasses.dataclass(frozen=True)
class Computed:
    """The scores of a hand-off.

    Attributes:
        scores: the scores that were computed.
        asked: number of them that the user asked for; these come first.
        samples: number of samples scored.
        why_not: why there is nothing to judge, where that is so.
    """

    scores: Sequence[Scored]
    asked: int
    samples: int
    why_not: str


def accuracy(computed: Computed, limits: AccuracyLimits, given: Given, again: str) -> Verdict:
    """Judge the losses of the scores against the float model, as ``validate`` does.

    Args:
        computed: the scores.
        limits: what is accepted.
        given: what the commands that raise a score take over.
        again: the command that was run, with what is missing for a judgement.
    """
    losses = [_loss(score, computed.samples) for score in computed.scores if score.drops and "float" in score.values]
    noise = next((_noise(loss, limits) for loss in losses if loss.limits is NOISE), None)
    asked = bool(computed.asked)
    deciding = losses[: computed.asked] if asked else [loss for loss in losses if loss.limits is not NOISE]
    found = judge(deciding, noise, limits, asked=asked)
    if found is None:
        return Verdict("accuracy", "amber", f"not judged: {computed.why_not}", again)
    return Verdict("accuracy", *found, "" if found[0] == "green" else given.improve())


def _loss(score: Scored, samples: int) -> Loss:
    """Return the loss of the compiled model or, where it has no score, of the file handed in."""
    run = next(run for run in reversed(RUNS) if run in score.drops)
    return Loss(
        score.name, score.against, score.values["float"], score.values[run], score.drops[run], score.limits, RUNS[run],
        samples, score.paired.get(run),
    )  # fmt: skip


def _noise(loss: Loss, limits: AccuracyLimits) -> Noise:
    status, reason = judge_loss(loss, None, limits)
    return Noise(status, loss.after, reason)
