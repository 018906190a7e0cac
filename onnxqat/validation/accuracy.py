"""The accuracy verdict: how much of the float model's accuracy the quantized model loses.

The verdict follows the first of these that there is:

1. the loss of the scores that the user asks for;
2. the loss of top-1 accuracy on labels;
3. the share of samples whose top-1 is not the float model's, or the signal to noise, whichever is worse;
4. the signal to noise.

Labels of fewer than :data:`FEWEST` samples count only where the answers of both models, sample by sample, suffice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from onnxqat.counts import counted
from onnxqat.errors import UsageError
from onnxqat.metrics import Score
from onnxqat.metrics._limits import NOISE, DropLimits
from onnxqat.metrics._paired import Paired
from onnxqat.verdict import AMBER_SQNR, MIN_SQNR, SEVERITY, Status, graded

FEWEST = 100
"""Fewest samples whose share of right answers decides by itself: with fewer, one flipped answer is over a point."""

SLACK = 2
"""Flipped answers that never count as a loss: a tie may go either way."""

Found: TypeAlias = "tuple[Status, str]"
"""Status and reason."""


@dataclasses.dataclass(frozen=True)
class AccuracyLimits:
    """Limits of the accuracy verdict; None is the default, stated in :mod:`onnxqat.metrics._limits`.

    Attributes:
        max_drop: largest loss of a score: points (hundredths) of a built-in metric, its own unit of a function. Without
            a score: points of top-1 on labels, or samples in 100 whose top-1 may change.
        min_sqnr: lowest signal to noise of an output in dB. A given limit always counts; the default counts only where
            neither labels nor a score decide.
    """

    max_drop: float | None = None
    min_sqnr: float | None = None

    def check(self, scores: Sequence[Score]) -> None:
        """Refuse a `max_drop` that would limit nothing.

        Raises:
            UsageError: ``option-invalid``.
        """
        if self.max_drop is not None and scores and all(score.limits is NOISE for score in scores):
            text = f"max_drop limits no score: {scores[0].name} is judged by its decibels"
            raise UsageError("option-invalid", text, hint="give --min-sqnr in its place")


@dataclasses.dataclass(frozen=True)
class Noise:
    """Signal to noise against the float model.

    Attributes:
        status: by its limits.
        decibels: of the worst output; infinite where all are equal.
        reason: for readers.
    """

    status: Status
    decibels: float
    reason: str


@dataclasses.dataclass(frozen=True)
class Loss:
    """Loss of one score.

    Attributes:
        name: of the score.
        against: ``labels``, ``float model``, or ``function`` where only that knows.
        before: score of the float model.
        after: score of the quantized model.
        drop: the loss from `before` to `after`, in the score's own unit.
        limits: of the loss.
        run: which quantized model that is, in words.
        samples: number of samples scored.
        paired: of a share of right answers, those of both models.
    """

    name: str
    against: str
    before: float
    after: float
    drop: float
    limits: DropLimits
    run: str
    samples: int
    paired: Paired | None = None

    @property
    def lost(self) -> float:
        """The drop in units of the limits, without the last bits: 5 of 500 samples are one point, and not above it."""
        return float(f"{self.drop / self.limits.size:.10g}")

    @property
    def slack(self) -> float:
        """Weight of :data:`SLACK` samples in units of the limits; 0 where samples do not count one by one."""
        counts = self.against == "labels" or self.paired is not None
        return SLACK / max(self.samples, 1) / self.limits.size if counts else 0.0


def judge(losses: Sequence[Loss], noise: Noise | None, limits: AccuracyLimits, *, asked: bool) -> Found | None:
    """Status and reason of the verdict; None where there is nothing to judge.

    Args:
        losses: of the scores that are there.
        noise: of the outputs; None where it was not measured.
        limits: what is accepted.
        asked: whether the user asked for these scores: then they decide, each by itself, and the worst counts.
    """
    measured = [] if noise is None else [(noise.status, noise.reason)]
    found = [judge_loss(loss, noise, limits, asked=asked) for loss in losses]
    if not found or (not asked and losses[0].against != "labels"):
        few = bool(measured) and losses and losses[0].samples < FEWEST
        found = measured if few else [*found, *measured]
    elif limits.min_sqnr is not None and noise is not None and noise.status == "red":
        found += measured
    return worst(found) if found else None


def worst(found: Iterable[Found]) -> Found:
    """The most severe of `found`; of equals the first."""
    return max(found, key=lambda each: SEVERITY[each[0]])


def judge_loss(loss: Loss, noise: Noise | None, limits: AccuracyLimits, *, asked: bool = False) -> Found:
    """Judge one score by its loss; on few samples by what these show for certain, together with the noise.

    Args:
        loss: of the score.
        noise: of the outputs; None where it was not measured.
        limits: what is accepted.
        asked: whether the user asked for this score.
    """
    if loss.limits is NOISE:
        return judge_noise(
            loss.after, limits, f"against the float model ({loss.run}), on {counted(loss.samples, 'sample')}"
        )
    if not math.isfinite(loss.before):
        return _with_noise(
            "amber", f"{loss.name} of the float model is not a number, so that nothing can be lost", noise
        )
    amber, red = loss.limits.of(loss.before, limits.max_drop)
    if loss.paired is not None:
        return _judged_share(loss, loss.paired, noise, (amber, red), asked=asked)
    few = loss.against == "labels" and loss.samples < FEWEST
    noisy = few and noise is not None and noise.status == "red"
    if loss.lost > max(red, loss.slack) or (noisy and loss.lost > red):
        return "red", _words(loss, noise, red)
    if loss.lost > max(amber, 0.0 if few else loss.slack) or noisy:
        return "amber", _words(loss, noise, amber if loss.lost > amber else None)
    return "green", _words(loss, noise, None)


def _judged_share(loss: Loss, paired: Paired, noise: Noise | None, ends: tuple[float, float], *, asked: bool) -> Found:
    """Judge a share of right answers; `ends` are the limits of amber and red."""
    amber, red = ends
    noisy = noise is not None and noise.status == "red"
    past_amber, past_red = loss.lost > max(amber, loss.slack), loss.lost > max(red, loss.slack)
    status = graded(red=past_red, amber=past_amber)
    limit = {"red": red, "amber": amber, "green": None}[status]
    text, bare = _words(loss, noise, limit), _words(loss, None, limit)
    if loss.samples >= FEWEST and paired.tells:
        return status, text
    if loss.samples >= FEWEST:
        return _with_noise(status, f"{bare}; always the commonest answer would be right as often", noise)
    if past_red and paired.worse:
        return "red", f"{text}, by more than chance"
    points = 100 * paired.most_lost
    most = f"up to {points:.1f} points may be lost" if points > 0 else f"at least {-points:.1f} points are won"
    if paired.tells and 100 * paired.most_lost <= red:
        return "amber" if noisy or past_amber else "green", f"{text}; so many samples show that {most}"
    if asked and paired.tells and noisy and not past_red:  # as of every score of the user's with few labels
        return "amber", f"{text}; {counted(loss.samples, 'sample')} are too few to decide: {most}"
    text = f"{bare}; {counted(loss.samples, 'sample')} are too few to decide: {most}"
    return _with_noise("amber" if past_red else "green", text, noise)


def _with_noise(status: Status, text: str, noise: Noise | None) -> Found:
    """Return the worse of `status` and that of the noise; without a noise that is known, amber at best."""
    if noise is None:
        return worst([(status, text), ("amber", text)])
    return worst([(noise.status, f"{noise.reason}; {text}"), (status, text)])


def _words(loss: Loss, noise: Noise | None, limit: float | None) -> str:
    """State the loss, the limit that it passes, and the noise."""
    shares = loss.paired is not None
    name = {"top1": "top-1", "top5": "top-5"}.get(loss.name, loss.name)
    where = "" if loss.against == "function" else f", on {counted(loss.samples, 'sample')}"
    if shares and loss.against != "labels":
        unit, text = (
            "%",
            f"{loss.lost:.1f} % of {loss.samples} samples have another {name} than the float model ({loss.run})",
        )
    else:
        unit, change = loss.limits.unit, "won" if loss.lost < 0 else "lost"
        before, after = (f"{value:.2%}" if shares else f"{value:.4g}" for value in (loss.before, loss.after))
        text = (
            f"{name} {before} in float, {after} quantized ({loss.run}){where}; {_amount(abs(loss.lost), unit)} {change}"
        )
    if limit is not None:
        text += f", above {_amount(limit, unit)}"
    beside = noise is not None and math.isfinite(noise.decibels)
    return f"{text}; {noise.decibels:.1f} dB beside it" if beside and noise is not None else text


def _amount(value: float, unit: str) -> str:
    """Return a number with its unit, as in ``1 point`` and ``0.5 points``."""
    shown = f"{value:.4g}"
    return f"{shown} {unit.removesuffix('s') if shown == '1' else unit}"


def judge_noise(decibels: float, limits: AccuracyLimits, where: str) -> Found:
    """Judge a signal to noise.

    Args:
        decibels: infinite where the two are equal.
        limits: what is accepted.
        where: for the reason.
    """
    red = MIN_SQNR if limits.min_sqnr is None else limits.min_sqnr
    amber = AMBER_SQNR if limits.min_sqnr is None else max(red, min(AMBER_SQNR, 2 * red))
    status = graded(red=not decibels >= red, amber=decibels < amber)
    below = {"red": f", below {red:g} dB", "amber": f", below {amber:g} dB", "green": ""}[status]
    return status, (f"equal {where}" if decibels == math.inf else f"{decibels:.1f} dB {where}") + below
