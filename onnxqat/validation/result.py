"""Result of :func:`onnxqat.validation.validate.validate`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from onnxqat.displayed import Displayed
from onnxqat.metrics import Scored
from onnxqat.metrics._accuracy import Accuracy
from onnxqat.types import Remark
from onnxqat.validation.compare import Comparison, plain
from onnxqat.validation.first_divergence import Parting
from onnxqat.validation.parity import QuantizerParity
from onnxqat.verdict import Verdict

FLOAT, TORCH, PLAIN, DEFAULT, INTEGERS = "float", "torch", "ort-plain", "ort-default", "torch-integers"
RUNS = {
    FLOAT: "float model in onnxruntime",
    TORCH: "quantized model in torch",
    PLAIN: "quantized model in onnxruntime, optimizations off",
    DEFAULT: "quantized model in onnxruntime, default session",
    INTEGERS: "quantized model in torch, in integers",
}


TWO_DRAWS = 1.5
"""Two runs whose ties fall otherwise are two draws of the same noise, which lie the square root of 2 apart; the rest is
chance."""


@dataclasses.dataclass(frozen=True)
class TensorNoise:
    """Signal to noise of one tensor: the float model's against the quantized model's of the same name, in onnxruntime.

    Attributes:
        tensor: name in both models.
        sqnr_db: infinite when they are equal.
        output: whether it is a graph output.
    """

    tensor: str
    sqnr_db: float
    output: bool


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of the parity verdict of :func:`validate`.

    Attributes:
        differing_top1: samples whose top-1 differs between torch and onnxruntime with optimizations off; None for
            0.05 % of the samples plus 2.
        differing_top1_default: the same against onnxruntime's default session; None for 0.15 % plus 2.
        free: whether scales are free: sums of floats round then, ties fall otherwise from run to run, and None stands
            for :data:`TWO_DRAWS` times as many samples as quantization itself changes, where these are more.
        min_sqnr: lowest signal to noise of an output between torch and onnxruntime, optimizations off. Codes that
            differ at rounding ties stay above it (24 dB in a calibrated, untrained W4A4 resnet20).
    """

    differing_top1: int | None = None
    differing_top1_default: int | None = None
    min_sqnr: float = 10.0
    free: bool = False

    def plain(self, samples: int) -> int:
        """Largest number of differing samples with optimizations off."""
        return int(samples * 0.0005) + 2 if self.differing_top1 is None else self.differing_top1

    def default(self, samples: int) -> int:
        """Largest number of differing samples in the default session."""
        return int(samples * 0.0015) + 2 if self.differing_top1_default is None else self.differing_top1_default


@dataclasses.dataclass(frozen=True)
class ValidationReport(Displayed):
    """A quantized model against its float original, in every run there is.

    The runs are the keys of :data:`RUNS`; those of torch are missing where torch is, or where the bridge refuses the
    model. The one in integers is compared with the default session alone.

    Attributes:
        float_model: path, or what messages call it.
        qdq_model: the same.
        backend: the table that it was made with, where the file says so.
        data: name of the data source.
        samples: samples compared at the outputs.
        tensor_samples: samples compared at inner tensors.
        accuracies: one per run; without labels, agreement with the float model's top-1. Empty for other models.
        outputs: each output of each pair of runs.
        quantizers: activation quantizers in graph order.
        tensors: signal to noise per tensor, in graph order.
        first_parting: where torch and onnxruntime first part beyond float rounding; None where they do not.
        scores: the scores that were asked for, of the float model, the quantized one as written, and its default session.
        float_nodes: convolutions and matrix products, of bodies and functions too, that compute in float: name, and the input that
            carries no quantizer.
        failures: why the check failed; empty when it passed.
        remarks: what is worth knowing.
        verdicts: parity, accuracy and deployment.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_validation:from_validation"

    float_model: str
    qdq_model: str
    backend: str | None
    data: str
    samples: int
    tensor_samples: int
    accuracies: tuple[Accuracy, ...]
    outputs: tuple[Comparison, ...]
    quantizers: tuple[QuantizerParity, ...]
    tensors: tuple[TensorNoise, ...]
    first_parting: Parting | None
    float_nodes: tuple[tuple[str, str], ...]
    failures: tuple[str, ...]
    remarks: tuple[Remark, ...]
    scores: tuple[Scored, ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    @property
    def passed(self) -> bool:
        """Check whether no verdict is red (:attr:`failures` is empty)."""
        return not self.failures

    def compared(self, run: str, against: str) -> tuple[Comparison, ...]:
        """Comparisons of two runs, one per output."""
        return tuple(c for c in self.outputs if (c.run, c.against) == (run, against))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: infinite and undefined numbers are null."""
        return {"passed": self.passed, **plain(self)}


def broken(outputs: tuple[Comparison, ...], quantizers: tuple[QuantizerParity, ...], float_bad: int) -> list[str]:
    """Values that no accuracy can be measured on: NaN or infinite, in an output or in what a quantizer gets.

    Args:
        outputs: comparisons of all pairs.
        quantizers: all quantizers.
        float_bad: NaN and infinite values in the outputs of the float model.
    """
    failures = [f"the float model gives {float_bad} NaN or infinite output values"] if float_bad else []
    bad = {(c.run, c.output): c.non_finite for c in outputs if c.non_finite}
    failures += [f"{RUNS[run]}: {n} NaN or infinite values in output {name!r}" for (run, name), n in bad.items()]
    return failures + [
        f"quantizer of {q.tensor!r} gets {q.non_finite} NaN or infinite values" for q in quantizers if q.non_finite
    ]


def dead(varies: Mapping[str, bool]) -> list[str]:
    """Runs that give the same for every sample where the float model does not, whatever a score says of that.

    Args:
        varies: whether the outputs of each run depend on the sample.
    """
    return [
        f"{RUNS[run]}: every sample gives the same outputs, which the float model's do not"
        for run, seen in varies.items()
        if varies[FLOAT] and not seen
    ]


def judge(outputs: tuple[Comparison, ...], quantizers: tuple[QuantizerParity, ...], limits: Limits) -> list[str]:
    """Reasons for which torch and onnxruntime do not agree.

    1. A quantizer that gives another code than onnxruntime for the very same input.
    2. A code that differs by more than the inputs of the two sides do, plus one step.
    3. Less signal to noise between torch and onnxruntime, or more differing top-1, than `limits` allow; top-1 of the
       default session only where execution in integers does not give its very values.

    Args:
        outputs: comparisons of all pairs.
        quantizers: all quantizers.
        limits: what is accepted.
    """
    failures = []
    for q in quantizers:
        if q.differing_given_input:
            failures.append(
                f"quantizer of {q.tensor!r}: {q.differing_given_input} of {q.elements} codes differ between "
                f"{q.reference} and onnxruntime given the same input, by up to {q.largest_given_input} LSB"
            )
        if q.unexplained:
            failures.append(
                f"quantizer of {q.tensor!r}: {q.unexplained} codes differ between torch and onnxruntime by more than "
                "their inputs do"
            )
    counted = integers(outputs)
    # What the default session computes is known to the last bit then: its other ties are those of float simulation.
    known = counted is not None and counted[0] == 0
    sessions = [c.differing_top1 or 0 for c in outputs if c.against == FLOAT and c.run in (PLAIN, DEFAULT)]
    changed = math.ceil(TWO_DRAWS * max(sessions, default=0)) if limits.free else 0
    failures += [
        text for c in outputs for text in (_too_noisy(c, limits), _too_many(c, limits, known, changed)) if text
    ]
    return failures


def integers(outputs: tuple[Comparison, ...]) -> tuple[int, int] | None:
    """Values of the execution in integers that are not those of the default session, and how many there are.

    None where nothing was executed in integers.
    """
    found = [c for c in outputs if (c.run, c.against) == (INTEGERS, DEFAULT)]
    return (sum(c.unequal for c in found), sum(c.elements for c in found)) if found else None


def _too_noisy(c: Comparison, limits: Limits) -> str:
    if (c.run, c.against) != (TORCH, PLAIN) or c.sqnr_db >= limits.min_sqnr:
        return ""
    return f"output {c.output!r}: {c.sqnr_db:.1f} dB between torch and onnxruntime; at least {limits.min_sqnr} are due"


def _too_many(c: Comparison, limits: Limits, known: bool, changed: int) -> str:
    pair = (c.run, c.against)
    if (
        c.differing_top1 is None
        or (known and DEFAULT in pair)
        or pair not in ((TORCH, PLAIN), (TORCH, DEFAULT), (DEFAULT, PLAIN))
    ):
        return ""
    as_written = pair == (TORCH, PLAIN)
    given = limits.differing_top1 if as_written else limits.differing_top1_default
    allowed = limits.plain(c.samples) if as_written else limits.default(c.samples)
    allowed = allowed if given is not None else max(allowed, changed)
    if c.differing_top1 <= allowed:
        return ""
    return (
        f"{c.differing_top1} of {c.samples} top-1 differ between {RUNS[c.run]} and {RUNS[c.against]}; "
        f"at most {allowed} may"
    )
