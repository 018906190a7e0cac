"""From what a user calls a score to a function of a model: a built-in name, a function, or its place."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from onnxqat import discover, extension
from onnxqat.data.data import Data
from onnxqat.data.sources import import_function
from onnxqat.errors import DataError, QatError, UsageError
from onnxqat.graph import files_read
from onnxqat.metrics._base import BaseMetric, Batch
from onnxqat.metrics._limits import FUNCTION, DropLimits
from onnxqat.metrics._paired import Answers
from onnxqat.metrics._predictor import Array, Predictor

ScoreFunction: TypeAlias = "Callable[[Predictor], float | Measured]"
ScoreSource: TypeAlias = "str | Score | Callable[[Any], Any]"

_PACKAGE = __name__.rpartition(".")[0]
_HELD_BYTES = 2**28
"""Outputs of the float model that are kept between scores; what is beyond is computed again."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """A score, and where it counts right answers, which samples they are."""

    value: float
    answers: Answers | None = None


class Score:
    """Quality of a model as one number, higher is better: ``score(predict)``.

    NaN is the worst score there is and comes back as minus infinity, so that scores can be compared.

    Args:
        function: computes the score.
        name: name in reports.
        against: reference of the score: ``labels``, ``float model``, or ``function`` where only that knows.
        default_drop: largest loss that a search accepts by default, in units of :meth:`drop`.
        limits: of the loss, for a verdict.
        drop: computes the loss between two scores; by default their difference.
        reads_file: whether the function takes an ONNX file, so that every session of one file scores the same.
    """

    def __init__(
        self,
        function: ScoreFunction,
        name: str,
        *,
        against: Literal["labels", "float model", "function"] = "function",
        default_drop: float = BaseMetric.default_drop,
        limits: DropLimits = FUNCTION,
        drop: Callable[[float, float], float] = BaseMetric.drop,
        reads_file: bool = False,
    ) -> None:
        self.name, self.against, self.default_drop, self.reads_file = name, against, default_drop, reads_file
        self.limits = limits
        self._function, self._drop = function, drop

    def __call__(self, predict: Predictor) -> float:
        """The score of a model.

        Raises:
            UsageError: ``score-failed``: the function raised, or gave something else than a number; ``score-output``.
            DataError: as reading the data does.
        """
        return self.measured(predict).value

    def measured(self, predict: Predictor) -> Measured:
        """The score of a model with its answers; raises what calling it raises."""
        try:
            found = self._function(predict)
        except (QatError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit too: the command is not done because a function of the user's is
            text = f"the score {self.name} failed on {predict.name}: {type(error).__name__}: {error}"
            raise UsageError("score-failed", text) from error
        answers = found.answers if isinstance(found, Measured) else None
        try:
            value = float(found.value if isinstance(found, Measured) else found)
        except (TypeError, ValueError):
            text = f"the score {self.name} gave {type(found).__name__} for {predict.name}, not a number"
            raise UsageError("score-failed", text, hint="return one number; higher is better") from None
        return Measured(-math.inf if math.isnan(value) else value, answers)

    def drop(self, before: float, after: float) -> float:
        """Return the loss from `before`, the float model's score, to `after`; negative for a gain, never NaN."""
        lost = 0.0 if before == after else self._drop(before, after)
        return math.inf if math.isnan(lost) else lost


def listed(given: ScoreSource | Sequence[ScoreSource] | None) -> list[ScoreSource]:
    """Return the user's scores, which are one, several or None, as a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]  # type: ignore[list-item]


def check_labels(given: ScoreSource | Sequence[ScoreSource] | None, labels: object) -> None:
    """Refuse a file or folder of labels where the user gives no score, which alone reads one.

    Raises:
        UsageError: ``option-invalid``.
    """
    if labels is not None and not listed(given):
        hint = "--score coco-map reads boxes; classes lie in the .npz file under 'labels', or in labels.csv of a folder of images"
        raise UsageError("option-invalid", f"no score is given that reads labels from {labels}", hint=hint)


KIND = extension.Kind(
    name="metric",
    package=_PACKAGE,
    group="onnxqat.metrics",
    lacks=extension.class_named("Metric", lambda: BaseMetric),
    page="docs/metrics.md",
)


def names() -> list[str]:
    """Names of the metrics, those of other packages last."""
    return extension.names(KIND)


def resolve(
    given: ScoreSource,
    *,
    data: Data | None = None,
    reference: Predictor | None = None,
    labels: str | os.PathLike[str] | None = None,
) -> Score:
    """The score that `given` names.

    Args:
        given: a metric (:func:`names`, or a file ``*.py`` with a class ``Metric``), ``package.module:function``, ``file.py:function``, or a callable. A
            function gets a :class:`Predictor`; one whose first parameter is annotated ``Path`` or ``str``, or is called
            ``path`` or ``file``, gets the path of an ONNX file.
        data: what a built-in metric is computed on; it must be readable more than once.
        reference: the float model, for metrics that compare with it.
        labels: file or folder of labels, for a metric that reads one; see :mod:`onnxqat.metrics.coco_map`.

    Raises:
        UsageError: ``name-unknown``, with the closest names; ``option-invalid``: `labels` for what does not read them;
            ``dependency-missing``.
        DataError: ``data-not-found``: there is no such function; ``data-missing``, ``data-labels``: what the metric
            needs is not there; ``data-format``: the data can be read only once.
    """
    if isinstance(given, Score):
        return given
    if isinstance(given, str) and (":" not in given or extension.is_file(given)):
        return _of_metric(given, data, reference, labels)
    if labels is not None:
        raise UsageError("option-invalid", f"the score {given} is a function and reads no labels from {labels}")
    function = _function(given) if isinstance(given, str) else given
    name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    of_predictor = _of_function(function)
    return Score(of_predictor, name, reads_file=of_predictor is not function)


def _of_metric(
    name: str, data: Data | None, reference: Predictor | None, labels: str | os.PathLike[str] | None
) -> Score:
    """Return the score by a named metric, on labels where metric and data have them, else on the float model."""
    key = extension.key_of(name).replace("_", "-")
    # Those of other packages are read from files of all that are installed, for each score.
    own = discover.holds(KIND.package, key.replace("-", "_"))
    if not own and not extension.is_file(name) and key not in names():
        hint = discover.suggestion(name, names())
        raise UsageError(
            "name-unknown", f"there is no metric named {name!r}", hint=f"{hint} A function is written module:function"
        )
    metric: type[BaseMetric] = extension.load(KIND, name).Metric
    if data is None:
        raise DataError("data-missing", f"there are no data to compute {key} on", hint="give --data")
    data.check_repeatable("a score reads it for every model")
    chosen = metric.annotated(data, labels)
    labelled = next(iter(chosen.labelled()))[1] is not None
    if metric.needs == "labels" and not labelled:
        hint = "labels lie in the .npz file under 'labels' or in labels.csv of a folder, are the names of sub-folders, or come in pairs"
        raise DataError("data-labels", f"{key} needs labels, and {data.name} has none", hint=hint)
    on_labels = labelled and metric.needs != "float"
    if not on_labels and reference is None:
        text = f"{key} compares with the float model where there are no labels, and none is given"
        raise DataError("data-missing", text, hint="give the float model, or data with labels")
    run = _Pass(metric, chosen, None if on_labels else reference)
    against: Literal["labels", "float model"] = "labels" if on_labels else "float model"
    limits = metric.agreement if metric.needs == "either" and not on_labels else metric.limits
    return Score(run, key, against=against, default_drop=metric.default_drop, limits=limits, drop=metric.drop)


class _Pass:
    """One metric over one set of data, for one model after the other."""

    def __init__(self, metric: type[BaseMetric], data: Data, reference: Predictor | None) -> None:
        self._metric, self._data, self._reference = metric, data, reference
        self._held: list[dict[str, Array]] = []
        self._bytes = 0

    def __call__(self, predict: Predictor) -> Measured:
        metric = self._metric()
        for number, (feeds, labels) in enumerate(self._data.labelled()):
            reference = None if self._reference is None else self._float(number, feeds, self._reference)
            metric.update(Batch(feeds, predict(feeds), None if self._reference else labels, reference))
        return Measured(metric.result(), metric.answers())

    def _float(self, number: int, feeds: dict[str, Array], reference: Predictor) -> dict[str, Array]:
        """The float model's outputs for the batch of this number."""
        if number < len(self._held):
            return self._held[number]
        found = reference(feeds)
        size = sum(array.nbytes for array in found.values())
        if number == len(self._held) and self._bytes + size <= _HELD_BYTES:
            self._held.append(found)
            self._bytes += size
        return found


def _function(text: str) -> Callable[[Any], Any]:
    """The function that ``package.module:function`` or ``file.py:function`` names."""
    place, _, attribute = text.rpartition(":")
    if not place.endswith(".py"):
        named: Callable[..., Any] = import_function(text)
        return named
    path = Path(place)
    if not path.is_file():
        raise DataError("data-not-found", f"{place}: no such file", hint="a score is written file.py:function")
    files_read.note(path, "the score")
    try:
        with _first_on_path(path.resolve().parent):
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            found: Any = functools.reduce(getattr, attribute.split("."), module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: a script without its `if __name__ == "__main__"`
        raise DataError("data-not-found", f"{text}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise DataError("data-not-found", f"{text} is {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


@contextlib.contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """`folder` as the first one that imports search, as Python has it for a script that lies there."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _of_function(function: Callable[[Any], Any]) -> ScoreFunction:
    """`function` of a predictor; one that wants a file, by annotation or name of its first parameter, gets its path."""
    try:
        parameters: Sequence[inspect.Parameter] = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a built-in without a signature
        return function
    if not parameters:
        return function
    first = parameters[0]
    kind = first.annotation
    if kind is inspect.Parameter.empty:
        wants = any(word in first.name.lower() for word in ("path", "file"))
        return (lambda predict: function(predict.path)) if wants else function
    text = kind.__name__ if isinstance(kind, type) else str(kind)  # a string or a union as it is written
    if "Predictor" in text or not any(word in text for word in ("Path", "str")):
        return function
    return (lambda predict: function(predict.path)) if "Path" in text else (lambda predict: function(str(predict.path)))
