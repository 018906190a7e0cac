"""Scores of the float model, the file handed in and what a compiler made of it.

A compiler runs its batches in one go, in a process of its own, and a score asks for one batch after the other. So the score
is computed on the file handed in first, and what it feeds is kept; the compiler then runs all of that, and the score is
computed again on the answers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxqat import metrics
from onnxqat.data.data import Data
from onnxqat.data.inputs import InputInfo
from onnxqat.deployment.base_compiler import Array
from onnxqat.deployment.matched_rows import selected
from onnxqat.errors import QatError, UsageError
from onnxqat.graph import io
from onnxqat.metrics import Comparing, Predictor, Score, Scored
from onnxqat.runtime.session import Session
from onnxqat.types import Remark

FLOAT, FILE, COMPILED = "float", "file", "compiled"
Batch = Mapping[str, Array]


@dataclasses.dataclass(frozen=True)
class Asked:
    """The user's choice of scores, and the material that they need.

    Attributes:
        score: metrics or functions, one or several; None: those that fit the model and the data.
        labels: file or folder of labels, for a metric that reads one.
        float_model: the float model; None where it is not known.
    """

    score: Any = None
    labels: str | os.PathLike[str] | None = None
    float_model: io.ModelSource | None = None


class Scoring:
    """The scores of one hand-off.

    Attributes:
        asked: number of scores that the user asks for; they come first.
        why_not: why there are none, or none against the float model.
    """

    def __init__(
        self,
        train: ir.Model,
        session: Session,
        inputs: Sequence[InputInfo],
        data: Data | None,
        asked: Asked,
        remarks: list[Remark],
    ) -> None:
        self.why_not = _NO_FLOAT if asked.float_model is None else "no score fits the outputs"
        if data is None or not data.repeatable:
            self.why_not = "there are no data" if data is None else "the data can be read only once"
        self.asked = len(metrics.listed(asked.score))
        self._remarks, self._chosen = remarks, list[Comparing]()
        self._fed: dict[str, Batch] = {}
        self._session, self._inputs = session, list(inputs)
        file = Predictor(
            self._recorded, self._inputs, session.output_names, name="the file handed in", file=_saving(train)
        )
        original = None
        if asked.float_model is not None:
            original = Predictor.of(asked.float_model, optimize=True, name="the float model")
        self._original = original is not None
        runs = {FLOAT: original, FILE: file} if original is not None else {FILE: file}
        named = metrics.listed(asked.score)
        usual = _usual(train, data, original is not None)
        for given in named or usual:
            self._add(given, data, runs, asked.labels, fails=bool(named))
        beside = named and original is not None and "sqnr" in usual and "sqnr" not in named
        if beside:  # shown beside the scores that were asked for
            self._add("sqnr", data, runs, None, fails=False)

    @property
    def asked_for(self) -> list[Score]:
        """The scores that the user asks for."""
        return [each.score for each in self._chosen[: self.asked]]

    @property
    def scores(self) -> tuple[Scored, ...]:
        """Scores of the float model, the file handed in and the compiled model, as far as they were computed."""
        found = tuple(each.result() for each in self._chosen)
        if self._original:
            return found
        # Without a float model the first run, the file handed in, is what the others are compared with.
        return tuple(
            dataclasses.replace(score, against=_FILE) if score.against == "float model" else score for score in found
        )

    def _add(self, given: Any, data: Data | None, runs: dict[str, Predictor], labels: Any, *, fails: bool) -> None:
        """Compute one score; one that nobody asked for leaves a remark where it does not fit."""
        first = next(iter(runs))
        try:
            score = metrics.resolve(given, data=data, reference=runs[first], labels=labels)
            comparing = Comparing(score, first)
            for name, predict in runs.items():
                comparing.add(name, predict)
            self._chosen.append(comparing)
        except QatError as error:
            if fails:
                raise
            self._remarks.append(Remark(f"{given} was not computed: {error.message}", source="handoff"))

    def feeds(self, besides: Sequence[Batch]) -> list[Batch]:
        """Return the batches that the scores fed to the file handed in, without those of `besides`."""
        known = {_digest(batch) for batch in besides}
        return [batch for key, batch in self._fed.items() if key not in known]

    def add_compiled(self, feeds: Sequence[Batch], outputs: Sequence[Batch], name: str) -> None:
        """Score the compiled model on what it gave for `feeds`; `name` is the compiler's."""
        answers = {_digest(batch): found for batch, found in zip(feeds, outputs, strict=True)}

        def run(batch: Batch) -> Batch:
            found = answers.get(_digest(batch))
            if found is None:
                text = f"it feeds {name} with something else than the file handed in"
                raise UsageError("score-failed", text, hint="what a score feeds must not depend on earlier outputs")
            return found

        compiled = Predictor(run, self._inputs, self._session.output_names, name=f"the model of {name}")
        for comparing in self._chosen:
            if comparing.score.reads_file:
                text = f"{comparing.score.name} reads an ONNX file, which {name} does not give: it has no figure of the compiled model"
                self._remarks.append(Remark(text, source="handoff"))
                continue
            comparing.add(COMPILED, compiled)

    def _recorded(self, batch: Batch) -> dict[str, Array]:
        self._fed.setdefault(_digest(batch), dict(batch))
        return self._session.run(batch)


_FILE = "file handed in"
_NO_FLOAT = "the float model is not known"


def _saving(model: ir.Model) -> Any:
    return lambda path: io.save(model, path)


def _usual(train: ir.Model, data: Data | None, original: bool) -> list[str]:
    """Metrics that fit: top-1 where there are labels, else agreement with the float model, and signal to noise.

    None on random numbers, and none of them where a TopK or NonMaxSuppression chooses rows: float chooses others.
    """
    if data is None or not data.repeatable or selected(train):
        return []
    shapes = [value.shape for value in train.graph.outputs]
    classifies = len(shapes) == 1 and shapes[0] is not None and len(shapes[0]) == 2 and shapes[0][1] != 1
    labels = next(iter(data.labelled()))[1]
    if classifies and labels is not None and labels.size == len(labels):
        return ["top1", "sqnr"] if original else ["top1"]
    return ["top1", "sqnr"] if classifies else ["sqnr"]


def _digest(batch: Batch) -> str:
    whole = hashlib.sha256()
    for name in sorted(batch):
        array = np.ascontiguousarray(batch[name])
        whole.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        whole.update(array.tobytes() if array.dtype.kind != "O" else repr(array.tolist()).encode())
    return whole.hexdigest()
