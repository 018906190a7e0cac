"""Verdicts of a hand-off: does the target compute what the file says, and does it do the work of the float model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from onnxqat.backends import schema
from onnxqat.errors import QatError
from onnxqat.handoff import _choice
from onnxqat.handoff._outputs import OutputCheck
from onnxqat.metrics import Scored
from onnxqat.validation.verdicts import (
    AMBER_DROP,
    AMBER_OTHERS,
    FEWEST,
    MAX_DROP,
    MAX_OTHERS,
    SESSION_MARGIN,
    SESSION_SQNR,
    SLACK,
)
from onnxqat.verdict import AMBER_SQNR, MIN_SQNR, SEVERITY, Status, Verdict

WORSE = 10.0
"""A score that loses so many times what it may lose fails; what lies between is amber."""
SHARES = ("top1", "top5")
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


def judge_output(check: OutputCheck, own_db: float, max_steps: float, max_beyond: float, compiler: str) -> Judged:
    """Compare one output with the file handed in, on whatever samples were run.

    1. At most a share of `max_beyond` of the values further than `max_steps` steps: green.
    2. Beyond that, while noise is at most a hundredth of the signal or what quantization itself makes explains it, and in no
       case more than a tenth: amber, it is rounding that adds up from layer to layer.
    3. More noise, or another top-1 in significantly more than a fifth of the samples: red. Two standard deviations are
       allowed for, so that few samples give the same verdict as many.

    Args:
        check: the output.
        own_db: signal to noise of the file handed in against its own float weights: what quantization costs.
        max_steps: see 1.
        max_beyond: see 1.
        compiler: its name.
    """
    name = f"output {check.output!r}"
    if check.only_ties:
        text = (
            f"{name}: {check.differing} of {check.elements} values are one step off: it differs only by rounding ties"
        )
        return Judged("green", text)
    flips, samples = check.differing_top1 or 0, check.samples
    beyond = (
        f"{name}: {check.beyond:.1%} of the values of {compiler} are more than {max_steps:g} steps from the reference "
        f"(at most {max_beyond:.1%} may be), the largest {check.largest_steps:.1f}, signal to noise {check.sqnr_db:.1f} dB"
    )
    turned = f"{name}: {flips} of {samples} top-1 of {compiler} differ from the file handed in"
    if flips > allowed(MAX_OTHERS / 100, samples):
        return Judged("red", f"{turned}; {beyond}" if check.beyond > max_beyond else turned)
    if check.beyond > max_beyond:
        limit = max(MIN_SQNR, min(SESSION_SQNR, own_db - SESSION_MARGIN))
        if not check.sqnr_db >= limit:
            return Judged("red", f"{beyond}; at least {limit:.1f} dB are due")
        return Judged("amber", f"{beyond}: it is rounding that adds up" + (f"; {turned}" if flips else ""))
    return Judged("amber" if flips > allowed(AMBER_OTHERS / 100, samples) else "green", turned if flips else "")


def allowed(share: float, samples: int) -> float:
    """Number of samples that a true share may show in so many, two standard deviations included."""
    return share * samples + 2 * math.sqrt(share * samples)


def other_target(made_for: str, table: schema.Backend) -> bool:
    """Whether a file whose metadata name the backend `made_for` was made for another compiler than that of `table`."""
    if not made_for or made_for == table.backend:
        return False
    try:
        mine = schema.load(made_for)
    except QatError:
        return False  # a table of the user's own that is not here
    return not set(_choice.lineage(mine)) & set(_choice.lineage(table))


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


def accuracy(scores: Sequence[Scored], run: str, samples: int, why_not: str, remedy: str) -> Verdict:
    """The scores of `run` against those of the float model, with the limits of ``validate`` for top-1 and noise.

    Args:
        scores: what was computed.
        run: of them, the one that counts.
        samples: how many were run.
        why_not: why there is nothing to judge, where that is so.
        remedy: the command that raises the score.
    """
    known = [s for s in scores if run in s.drops and "float" in s.values]
    # Of few samples one flip is more than the limits allow, and labels say more than noise, as in `validate`.
    decisive = [s for s in known if s.name not in SHARES or samples >= FEWEST]
    if any(s.name in SHARES and s.against == "labels" for s in decisive):
        decisive = [s for s in decisive if s.name != "sqnr"]
    if not decisive:
        text = f"{samples} samples are too few to judge {known[0].name}" if known else why_not
        return Verdict("accuracy", "amber", f"not judged: {text}", "" if known else "give --data and --float MODEL")
    status, reason = max((_of_score(s, run, samples) for s in decisive), key=lambda found: SEVERITY[found[0]])
    return Verdict("accuracy", status, reason, "" if status == "green" else remedy)


def _of_score(score: Scored, run: str, samples: int) -> tuple[Status, str]:
    value, drop = score.values[run], score.drops[run]
    if score.name == "sqnr":
        status: Status = "green" if value >= AMBER_SQNR else "amber" if value >= MIN_SQNR else "red"
        return status, f"{value:.1f} dB against the float model ({RUNS[run]}), on {samples} samples"
    amber, red = score.default_drop, WORSE * score.default_drop
    if score.name in SHARES:
        on_labels = score.against == "labels"
        limits = (AMBER_DROP, MAX_DROP) if on_labels else (AMBER_OTHERS, MAX_OTHERS)
        amber, red = (max(limit / 100, SLACK / samples) for limit in limits)
    status = "red" if drop > red else "amber" if drop > amber else "green"
    text = f"{score.name} {score.values['float']:.4g} in float, {value:.4g} in {RUNS[run]}, on {samples} samples"
    past = {"red": f", a loss above {red:.3g}", "amber": f", a loss above {amber:.3g}", "green": ""}[status]
    return status, text + past
