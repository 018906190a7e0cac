"""Check of the promises that every lint rule makes, on small models with and without quantizers."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from types import ModuleType

import onnx

from onnxqat import extension
from onnxqat.backends import schema
from onnxqat.graph import io, walk
from onnxqat.insertion.examples import BACKEND, quantized_examples
from onnxqat.linting import lint
from onnxqat.linting.context import LintContext, tensor_of
from onnxqat.linting.rule import SEVERITIES, Found, Rule
from onnxqat.pipeline.check import examples, parse
from onnxqat.pipeline.examples import EXAMPLES
from onnxqat.pipeline.numbers import compare_outputs
from onnxqat.pipeline.wrapped import in_function, in_if
from onnxqat.promises import BrokenError, ExtensionCheck, in_one_line, try_each

_CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_WORDS = ("defect", "reason", "remedy", "source")


class _Example:
    """One model as rules see it, read once for all rules of a kind.

    Attributes:
        number: from 1, as messages count them.
        model: as it was given.
    """

    def __init__(self, number: int, model: onnx.ModelProto) -> None:
        self.number, self.model = number, model

    def opened(self, *, target: bool) -> LintContext:
        """The model with the backend's table or without; read anew."""
        return lint.opened(io.load(self.model), schema.load(BACKEND) if target else None)

    @functools.cached_property
    def _files(self) -> dict[bool, tuple[LintContext, LintContext]]:
        return {}

    def files(self, *, target: bool) -> tuple[LintContext, LintContext]:
        """The same twice: what one run leaves in the first, a second run does not find."""
        if target not in self._files:
            self._files[target] = self.opened(target=target), self.opened(target=target)
        return self._files[target]


@dataclasses.dataclass(frozen=True)
class _Trial:
    """One rule on one model.

    Attributes:
        rule: the rule.
        example: the model.
        file: what the rule saw.
        places: places that it found.
        again: places that a second run found on a second reading.
        kept: whether the model stayed as it was.
        error: what it raised; empty where it ran.
    """

    rule: Rule
    example: _Example
    file: LintContext
    places: tuple[Found, ...] = ()
    again: tuple[Found, ...] = ()
    kept: bool = True
    error: str = ""

    def broken(self, message: str) -> BrokenError:
        """The error for a promise that the rule does not keep on this model."""
        return BrokenError(f"{self.rule.code}, model {self.example.number}: {message}")


def check(name: str) -> ExtensionCheck:
    """Try the rules of a file: its name, or its path.

    1. ``words``: codes are words joined by hyphens, each once and none of another file's; no text is empty.
    2. ``applies``: each rule finds a place in one of the models at least; else nothing is known about it.
    3. ``runs``: each rule runs on every model.
    4. ``places``: each place has a message, a known severity, and a node and a tensor that are in the file.
    5. ``input``: the model stays as it is.
    6. ``second run``: the same places are found again.
    7. ``fix``: what a rule mends is not found again, the model stays valid, and a float model computes the same.

    The models are some small networks, float and quantized, plain, in an If and in a function, and those of ``EXAMPLES``
    of the file, which are as those of a pass (:func:`onnxqat.pipeline.check.check`).

    Raises:
        UsageError: there is no such file, it has no rules, or an example is no model.
    """
    module = extension.load(lint.KIND, name)
    rules: tuple[Rule, ...] = tuple(module.RULES)
    models = _models(module)
    cases = [_Example(number, model) for number, model in enumerate(models, 1)]
    trials = [_tried(rule, example) for rule in rules for example in cases]
    ran = [trial for trial in trials if not trial.error]
    findings = try_each(
        {
            "words": lambda: _words(module, rules),
            "applies": lambda: _applies(rules, ran),
            "runs": lambda: _runs(trials),
            "places": lambda: _places(ran),
            "input": lambda: _input(ran),
            "second run": lambda: _second_run(ran),
            "fix": lambda: _fix(ran),
        }
    )
    count = sum(len(trial.places) for trial in trials)
    return ExtensionCheck(
        extension.key_of(name), findings, f"{count} places were found in {len(models)} models by {len(rules)} rules"
    )


def _models(module: ModuleType) -> list[onnx.ModelProto]:
    common = [parse(text) for text in EXAMPLES]
    own = examples(module) if hasattr(module, "EXAMPLES") else []
    plain = [*own, *common, *quantized_examples()]
    return [*plain, *map(in_if, plain), *map(in_function, plain)]


def _tried(rule: Rule, example: _Example) -> _Trial:
    file, second = example.files(target=rule.target)
    before = io.like(example.model, file.model)
    try:
        places, again = tuple(rule.check(file)), tuple(rule.check(second))
    except Exception as error:  # whatever a foreign rule does
        return _Trial(rule, example, file, error=in_one_line(error))
    return _Trial(rule, example, file, places, again, kept=io.like(example.model, file.model) == before)


def _words(module: ModuleType, rules: Sequence[Rule]) -> None:
    known = Counter(rule.code for rule in (*lint.all_rules(), *rules))
    is_ours = set(rules) <= set(lint.all_rules())  # a file of the package, or of an installed one, was counted twice
    for rule in rules:
        if not _CODE.fullmatch(rule.code):
            raise BrokenError(f"{rule.code!r} is not a code of words joined by hyphens")
        if known[rule.code] > 1 + is_ours:
            raise BrokenError(f"there is another rule {rule.code!r}")
        if rule.severity not in SEVERITIES:
            raise BrokenError(f"{rule.code}: the severity {rule.severity!r} is none of {', '.join(SEVERITIES)}")
        empty = [word for word in _WORDS if not getattr(rule, word).strip()]
        if empty:
            raise BrokenError(f"{rule.code}: {empty[0]} is empty")


def _applies(rules: Sequence[Rule], ran: Sequence[_Trial]) -> None:
    found = {trial.rule.code for trial in ran if trial.places}
    for rule in rules:
        if rule.code not in found:
            raise BrokenError(f"{rule.code} finds nothing: give a model with the defect in EXAMPLES of the file")


def _runs(trials: Sequence[_Trial]) -> None:
    for trial in trials:
        if trial.error:
            raise trial.broken(trial.error)


def _tensors(file: LintContext) -> Iterator[str]:
    """Names of all tensors of the file, and those that the constants had before they were stored as codes."""
    for scope in file.scopes:
        yield from (str(value.name) for value in walk.values(scope))
    yield from map(tensor_of, file.quantizers)


def _places(ran: Sequence[_Trial]) -> None:
    for trial in ran:
        nodes, tensors = set(map(id, trial.file.nodes)), {"", *_tensors(trial.file)}
        for place in trial.places:
            if not isinstance(place, Found):
                raise trial.broken(f"it gives a {type(place).__name__} instead of a Found")
            if not place.message.strip():
                raise trial.broken("a place without a message")
            if place.severity not in (None, *SEVERITIES):
                raise trial.broken(f"the severity {place.severity!r} is none of {', '.join(SEVERITIES)}")
            if place.node is not None and id(place.node) not in nodes:
                raise trial.broken(f"the node {place.node.name!r} is not in the file")
            if place.tensor not in tensors:
                raise trial.broken(f"there is no tensor {place.tensor!r} in the file")


def _input(ran: Sequence[_Trial]) -> None:
    for trial in ran:
        if not trial.kept:
            raise trial.broken("the model was changed: a check only reads")


def _in_words(places: Sequence[Found]) -> Counter[tuple[str, str, str]]:
    return Counter(("" if p.node is None else str(p.node.outputs[0].name), p.tensor, p.message) for p in places)


def _second_run(ran: Sequence[_Trial]) -> None:
    for trial in ran:
        if _in_words(trial.again) != _in_words(trial.places):
            raise trial.broken(f"{len(trial.places)} places at first, {len(trial.again)} others on the same model")


def _fix(ran: Sequence[_Trial]) -> str | None:
    mended = [trial for trial in ran if trial.rule.fix is not None and trial.places]
    for trial in mended:
        model = io.load(trial.example.model)
        table = trial.file.table
        fixed = lint.mend(model, table, [trial.rule])  # raises where the verifier objects to the result
        after = io.like(trial.example.model, model)
        if not fixed and after != io.like(trial.example.model, io.load(trial.example.model)):
            raise trial.broken("it changes the model, and finds as much as before")
        if not trial.file.is_quantized:
            compare_outputs(trial.example.model, after, atol=0.0)
    return None if mended else "not asked: no rule with a fix found anything"
