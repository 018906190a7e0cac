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
from onnxqat.verdict import SEVERITY, Status, Verdict

GOOD_DB, LOWEST_DB = 20.0, 10.0
"""Signal to noise from which noise is a hundredth of the signal, and below which a tenth of it is lost."""
FLIPS, FLIPS_SEEN = 0.05, 0.01
"""Share of samples with another top-1 that fails, and that is said in amber."""
WORSE = 10.0
"""A score that loses so many times what it may lose fails; what lies between is amber."""
SHARES = ("top1", "top5")


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
    2. Beyond that, while noise is at most a hundredth of the signal or no more than quantization itself made, and in no case
       more than a tenth: amber, it is rounding that adds up from layer to layer.
    3. More noise, or another top-1 in significantly more than 5 % of the samples: red. Two standard deviations are allowed
       for, so that few samples give the same verdict as many.

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
    if flips > allowed(FLIPS, samples):
        return Judged("red", f"{turned}; {beyond}" if check.beyond > max_beyond else turned)
    if check.beyond > max_beyond:
        limit = max(LOWEST_DB, min(GOOD_DB, own_db))
        if not check.sqnr_db >= limit:
            return Judged("red", f"{beyond}; at least {limit:.1f} dB are due")
        return Judged("amber", f"{beyond}: it is rounding that adds up")
    return Judged("amber" if flips > allowed(FLIPS_SEEN, samples) else "green", turned if flips else "")


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
) -> Verdict:
    """Compiled, written but not compiled, or another target's file.

    Args:
        made_for: the backend that the file names.
        table: that of the target.
        compiler: what compiled it; None where nothing did.
        runs_numbers: whether its outputs were compared.
        failures: what is wrong with the file or the numbers.
        judged: the outputs.
    """
    again = f"onnxqat insert-qdq FLOAT_MODEL --backend {table.backend}"
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


def accuracy(scores: Sequence[Scored], run: str, samples: int, why_not: str) -> Verdict:
    """The scores of `run` against those of the float model.

    Args:
        scores: what was computed.
        run: of them, the one that counts.
        samples: how many were run.
        why_not: why there is nothing to judge, where that is so.
    """
    found = [_of_score(s, run, samples) for s in scores if run in s.drops and "float" in s.values]
    if not found:
        return Verdict("accuracy", "amber", f"not judged: {why_not}", "give --data and --float MODEL")
    return max(found, key=lambda v: SEVERITY[v.status])


def _of_score(score: Scored, run: str, samples: int) -> Verdict:
    value, drop = score.values[run], score.drops[run]
    text = f"{score.name} {_number(score.values['float'])} in float, {_number(value)} {run}, on {samples} samples"
    if score.name == "sqnr":
        status: Status = "green" if value >= GOOD_DB else "amber" if value >= LOWEST_DB else "red"
        text = f"{value:.1f} dB signal to noise against float, on {samples} samples"
        return Verdict("accuracy", status, text, "" if status == "green" else "onnxqat finetune")
    # Two standard deviations of the difference of two shares where 5 % of the samples turn.
    room = 2 * math.sqrt(FLIPS / max(samples, 1)) if score.name in SHARES else 0.0
    limit = score.default_drop
    status = "green" if drop <= limit else "amber" if drop <= WORSE * limit + room else "red"
    few = f"; {samples} samples say little, give --samples more" if room > limit else ""
    return Verdict("accuracy", status, text + few, "" if status == "green" else "onnxqat finetune")


def _number(value: float) -> str:
    return f"{value:.4g}"
