"""Measurement of written files: signal to noise of the worst output, and the score, against the float model."""

from __future__ import annotations

import dataclasses
import os

from onnxqat import metrics
from onnxqat.bit_allocation.budget import Budget
from onnxqat.data.data import Data
from onnxqat.data.inputs import samples_of
from onnxqat.graph import io
from onnxqat.runtime.session import Session
from onnxqat.validation.profile_meters import Outputs


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measures of one file.

    Attributes:
        sqnr_db: signal to noise of the worst output.
        samples: number of samples.
        score: of both models; None where none was asked for.
    """

    sqnr_db: float
    samples: int
    score: metrics.Scored | None

    def keeps(self, budget: Budget) -> bool:
        """Check whether the limit of loss of `budget` holds."""
        if budget.min_sqnr is not None:
            return self.sqnr_db >= budget.min_sqnr
        if budget.max_drop is None or self.score is None:
            return True
        return self.score.drops["quantized"] / self.score.limits.size <= budget.max_drop


class Measure:
    """Measures one file after the other.

    Args:
        model: the float model.
        data: samples to measure on.
        score: as of :func:`onnxqat.metrics.resolve`; None: signal to noise alone.
        labels: file or folder of labels, for a metric that reads one.
    """

    def __init__(
        self,
        model: io.ModelSource,
        data: Data,
        score: metrics.ScoreSource | None,
        labels: str | os.PathLike[str] | None,
    ) -> None:
        metrics.check_labels(score, labels)
        self._data = data
        self._session = Session(io.load(model), optimize=False, what="the float model")
        kept = model if isinstance(model, (str, os.PathLike)) else io.load(model)
        self._float = metrics.Predictor.of_session(self._session, kept)
        self._score = None
        if score is not None:
            self._score = metrics.resolve(score, data=data, reference=self._float, labels=labels)

    def of(self, quantized: io.ModelSource) -> Measured:
        """Run the data through `quantized`, graph optimizations off."""
        predictor = metrics.Predictor.of(quantized, name="the quantized model")
        outputs, samples = Outputs(), 0
        for feeds in self._data:
            outputs.add(predictor(feeds), self._float(feeds))
            samples += samples_of(feeds)
        runs = {"float": self._float, "quantized": predictor}
        scored = None if self._score is None else metrics.compare(self._score, runs)
        return Measured(outputs.worst.sqnr_db, samples, scored)
