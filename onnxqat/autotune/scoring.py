"""Loss of accuracy through quantization on held-out samples, as one number in percent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from onnxqat.autotune import expected_answers
from onnxqat.data.data import Data
from onnxqat.metrics._accuracy import class_numbers
from onnxqat.runtime.session import Session

Array = npt.NDArray[Any]
Run = Callable[[Mapping[str, Array]], dict[str, Array]]
Measure = Literal["accuracy", "agreement", "noise", "score"]

FEWEST_TOP1 = 200
"""Held-out samples from which on their top-1 says something: of fewer, one flip is half a point and more."""

TARGETS: dict[Measure, float] = {"accuracy": 0.5, "agreement": 1.0, "noise": 3.0, "score": 0.01}
"""Largest loss by default: of `noise` the 3 % that 30 dB leave, of a score a hundredth of its unit."""

LARGEST_SAMPLES, LARGEST_BYTES = 1000, 2**30
"""Held-out samples, with the float model's outputs, that are kept in memory."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """A held-out batch, its labels where there are some, and what the float model gives for it."""

    feeds: Mapping[str, Array]
    labels: Array | None
    wanted: Mapping[str, Array]

    @property
    def count(self) -> int:
        """Rows of the first output; 1 for one without axes."""
        first = next(iter(self.wanted.values()))
        return first.shape[0] if first.ndim else 1


class Judge:
    """Compares runs of a quantized model with the float model.

    ============  =======================================================================================
    accuracy      points of top-1 lost against labels: one output (N, C), C > 1, and labels
    agreement     samples in 100 whose top-1 is another: the same output without labels
    noise         root mean square of the error in percent of that of the signal, the worst of all outputs: networks
                  that are no classifiers, and fewer than :data:`FEWEST_TOP1` samples
    ============  =======================================================================================

    Args:
        session: of the float model.
        data: held-out samples; the first :data:`LARGEST_SAMPLES` of them, or as many as fit into
            :data:`LARGEST_BYTES`, are kept.

    Attributes:
        measure: which of them.
        float_accuracy: top-1 of the float model as a share, where there are labels.
        samples: their number.
        has_classes: whether the model has one output (N, C), C > 1.
        why_unlabelled: why top-1 against labels is not what is measured; None where it is.

    Raises:
        DataError, ModelError: as reading and running do.
    """

    def __init__(self, session: Session, data: Data) -> None:
        self._batches = _read(session, data)
        self.samples = sum(b.count for b in self._batches)
        for batch in self._batches:
            first = next(iter(batch.wanted.values()))
            numbered = batch.labels is not None and batch.labels.shape == (batch.count,)
            if batch.labels is not None and numbered and len(batch.wanted) == 1 and _is_logits(first):
                class_numbers(batch.labels, batch.count, first.shape[1])  # which validation asks for in the end
        self.has_classes = all(len(b.wanted) == 1 and _is_logits(next(iter(b.wanted.values()))) for b in self._batches)
        classifies = self.samples >= FEWEST_TOP1 and self.has_classes
        labelled = all(b.labels is not None and b.labels.shape == (b.count,) for b in self._batches)
        self.measure: Measure = "noise"
        if classifies:
            self.measure = "accuracy" if labelled else "agreement"
        self.why_unlabelled = self._why_unlabelled(classifies=classifies)
        right = [_top1(b.wanted) == b.labels for b in self._batches] if self.measure == "accuracy" else []
        self.float_accuracy = float(np.concatenate(right).mean()) if right else None

    def _why_unlabelled(self, *, classifies: bool) -> str | None:
        if self.measure == "accuracy":
            return None
        if all(b.labels is None for b in self._batches):
            return "the data have no labels: the float model's answers judge"
        if classifies:
            return "labels were not used to judge: they are no class numbers, one a sample"
        if self.samples < FEWEST_TOP1:
            return (
                f"labels were not used to judge: of {self.samples} samples, fewer than {FEWEST_TOP1}, one is too much"
            )
        return "labels were not used to judge: the model has no single output (N, C); give --score"

    def drop(self, run: Run) -> float:
        """Return the loss of `run` in percent; negative for a gain, infinite where noise is measured and not finite."""
        if self.measure == "noise":
            return self._noise(run)
        right = []
        for batch in self._batches:
            found = _top1(run(batch.feeds))
            right.append(found == (batch.labels if self.measure == "accuracy" else _top1(batch.wanted)))
        share = float(np.concatenate(right).mean())
        return 100.0 * ((1.0 if self.float_accuracy is None else self.float_accuracy) - share)

    def expected_changes(self, run: Run, known: Sequence[Array]) -> float:
        """Return how many answers in 100 `run` is expected to change; see :func:`onnxqat.autotune.expected_answers.changed`.

        Args:
            run: of a quantized model with one output (N, C).
            known: batches of the float model's output for samples that are not held out.
        """
        wanted = np.concatenate([next(iter(b.wanted.values())) for b in self._batches])
        found = np.concatenate([next(iter(run(b.feeds).values())) for b in self._batches])
        return expected_answers.changed(np.concatenate([*known, wanted]), wanted, found)

    def _noise(self, run: Run) -> float:
        noise: dict[str, float] = {}
        signal: dict[str, float] = {}
        for batch in self._batches:
            found = run(batch.feeds)
            for name, wanted in batch.wanted.items():
                value, reference = found[name].astype(np.float64), wanted.astype(np.float64)
                if value.shape != reference.shape or not np.isfinite(value).all():
                    return math.inf
                noise[name] = noise.get(name, 0.0) + float(np.square(value - reference).sum())
                signal[name] = signal.get(name, 0.0) + float(np.square(reference).sum())
        return max((100.0 * math.sqrt(noise[n] / signal[n]) if signal[n] else 0.0 for n in noise), default=0.0)


def _read(session: Session, data: Data) -> list[Sample]:
    kept: list[Sample] = []
    samples = held = 0
    for feeds, labels in data.labelled():
        batch = Sample(feeds, labels, session.run(feeds))
        kept.append(batch)
        samples += batch.count
        held += sum(array.nbytes for array in (*feeds.values(), *batch.wanted.values()))
        if samples >= LARGEST_SAMPLES or held >= LARGEST_BYTES:
            break
    return kept


def _is_logits(output: Array) -> bool:
    return output.ndim == 2 and output.shape[1] > 1


def _top1(outputs: Mapping[str, Array]) -> Array:
    found: Array = next(iter(outputs.values())).argmax(axis=1)
    return found
