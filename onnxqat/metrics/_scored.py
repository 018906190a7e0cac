"""One score of several runs of a model, and what each loses against the float model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from onnxqat.metrics._limits import FUNCTION, DropLimits
from onnxqat.metrics._paired import Paired, pair
from onnxqat.metrics._predictor import Predictor
from onnxqat.metrics._score import Measured, Score


@dataclasses.dataclass(frozen=True)
class Scored:
    """One score of several runs of a model.

    Attributes:
        name: of the score.
        against: what it is measured against.
        values: the score of each run, by its name; the first is that of the float model, where it is there.
        drops: what each other run loses against it, see :meth:`Score.drop`.
        limits: what a verdict lets pass of that.
        paired: of a share of right answers, those of each other run beside those of the float model.
    """

    name: str
    against: str
    values: Mapping[str, float]
    drops: Mapping[str, float]
    limits: DropLimits = FUNCTION
    paired: Mapping[str, Paired] = dataclasses.field(default_factory=dict)


class Comparing:
    """One score of one run after the other.

    Args:
        score: what is computed.
        float_run: the run that the others are compared with, once it is there.
    """

    def __init__(self, score: Score, float_run: str = "float") -> None:
        self.score = score
        self._float_run = float_run
        self._found: dict[str, Measured] = {}
        self._of_file: dict[str, Measured] = {}

    def add(self, name: str, predict: Predictor) -> None:
        """Compute the score of a run; of runs of one file once, where the score reads that.

        Raises:
            UsageError: ``score-failed``, ``score-output``.
            DataError: as reading the data does.
        """
        path = str(predict.path) if self.score.reads_file else ""
        found = self._of_file.get(path) if path else None
        self._found[name] = found if found is not None else self.score.measured(predict)
        if path:
            self._of_file[path] = self._found[name]

    def result(self) -> Scored:
        """Return the scores of all runs so far, with their losses against the float model's run."""
        score, base = self.score, self._found.get(self._float_run)
        others = {} if base is None else {n: m for n, m in self._found.items() if n != self._float_run}
        drops, paired = {}, {}
        for name, measured in others.items():
            assert base is not None
            drops[name] = score.drop(base.value, measured.value)
            if base.answers is not None and measured.answers is not None:
                paired[name] = pair(base.answers, measured.answers)
        values = {name: measured.value for name, measured in self._found.items()}
        return Scored(score.name, score.against, values, drops, score.limits, paired)


def compare(score: Score, runs: Mapping[str, Predictor], *, float_run: str = "float") -> Scored:
    """The score of each of `runs`, and what each loses against the one called `float_run`, where that is among them.

    Raises:
        UsageError: ``score-failed``, ``score-output``.
        DataError: as reading the data does.
    """
    comparing = Comparing(score, float_run)
    for name, predict in runs.items():
        comparing.add(name, predict)
    return comparing.result()
