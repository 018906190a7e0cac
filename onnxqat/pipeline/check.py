"""Check of the promises that every pass makes, on small models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx

from onnxqat import extension
from onnxqat.errors import UsageError
from onnxqat.passes._base import Pass, PassResult
from onnxqat.pipeline import lookup
from onnxqat.pipeline.examples import EXAMPLES, HEADER
from onnxqat.pipeline.numbers import compare_outputs
from onnxqat.pipeline.wrapped import in_function, in_if
from onnxqat.promises import BrokenError, ExtensionCheck, Finding, in_one_line

PROMISES = ("applies", "input", "structure", "numbers", "second run", "in an If", "in a function")
_SEEDS = (0, 1)


@dataclasses.dataclass(frozen=True)
class PassCheck(ExtensionCheck):
    """Findings about a pass, one for each of :data:`PROMISES`.

    Attributes:
        changed: number of models that the pass changed.
        models: number of models that it was tried on.
    """

    changed: int = 0
    models: int = 0


def check(name: str) -> PassCheck:
    """Try a pass: its name, or the path of its file.

    1. ``applies``: it changes one of the models at least; else nothing is known about it.
    2. ``input``: the model that it is given stays as it is.
    3. ``structure``: onnx's checker takes the result, types and shapes included.
    4. ``numbers``: onnxruntime computes what it did before, on random inputs.
    5. ``second run``: a second run changes nothing.
    6. ``in an If``, ``in a function``: the same where the graph is a branch, or a model-local function.

    The models are those of ``EXAMPLES`` of the pass's file: texts of ONNX, with or without the header, models, or names
    of ``.onnx`` files beside it; without it some small networks. ``TOLERANCE`` of the file is the largest difference of
    outputs that is accepted, 0 without it.

    Raises:
        UsageError: there is no such pass, it cannot be made without arguments, or an example is no model.
    """
    step = lookup.made(lookup.find(name))
    assert step is not None
    module = extension.load(lookup.KIND, name)
    models = examples(module)
    tolerance = float(getattr(module, "TOLERANCE", 0.0))
    broken: dict[str, str] = {}
    changed = 0
    for number, model in enumerate(models, 1):
        for form, wrap in _FORMS.items():
            changes, promise, text = _tried(step, model, wrap, tolerance)
            changed += changes and not form
            if promise:
                told = f"{promise}: {text}" if form else text
                broken.setdefault(form or promise, f"model {number}: {told}")
    if not changed and not broken:
        broken["applies"] = f"none of {len(models)} models was changed: give some in EXAMPLES of the file"
    findings = tuple(Finding(promise, promise not in broken, broken.get(promise, "")) for promise in PROMISES)
    return PassCheck(
        step.name, findings, f"{changed} of {len(models)} models were changed", changed=changed, models=len(models)
    )


_FORMS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "": lambda model: model,
    "in an If": in_if,
    "in a function": in_function,
}


def _tried(
    step: Pass, model: onnx.ModelProto, wrap: Callable[[onnx.ModelProto], onnx.ModelProto], tolerance: float
) -> tuple[bool, str, str]:
    """Tell if the pass changed the wrapped `model`; the promise that it broke, and how, else two empty strings."""
    try:
        return run_checked(step, wrap(model), tolerance).changed, "", ""
    except BrokenError as error:
        return False, error.promise, error.message
    except Exception as error:  # whatever a foreign pass does
        return False, "structure", in_one_line(error)


def run_checked(step: Pass, model: onnx.ModelProto, atol: float) -> PassResult:
    """Run `step`; the caller's model is untouched, the result valid, its numbers those of before, a second run idle.

    Args:
        step: the pass.
        model: what it is run on.
        atol: largest difference of outputs that is accepted.

    Raises:
        BrokenError: a promise is not kept.
    """
    bytes_before = model.SerializeToString(deterministic=True)
    result = step.run(model)
    if model.SerializeToString(deterministic=True) != bytes_before:
        raise BrokenError("the caller's model was changed", "input")
    if not isinstance(result.model, onnx.ModelProto):
        raise BrokenError(f"a {type(result.model).__name__} came back for an onnx.ModelProto", "structure")
    try:
        onnx.checker.check_model(result.model, full_check=True)
    except Exception as error:  # the checker's, of several kinds
        raise BrokenError(str(error).splitlines()[0], "structure") from error
    for seed in _SEEDS:
        compare_outputs(model, result.model, atol, seed)
    again = step.run(result.model)
    if again.changed or again.model.SerializeToString(deterministic=True) != result.model.SerializeToString(
        deterministic=True
    ):
        said = "; ".join(remark.message for remark in again.remarks)
        raise BrokenError(
            f"it changed the result again: {said}" if said else "it changed the result again", "second run"
        )
    return result


def examples(module: ModuleType) -> list[onnx.ModelProto]:
    """Return the models of ``EXAMPLES`` of an extension's file, some small networks without it.

    Raises:
        UsageError: ``option-invalid``: an entry is no model.
    """
    file = Path(str(module.__file__))
    return [_model(item, file) for item in getattr(module, "EXAMPLES", EXAMPLES)]


def _model(item: Any, file: Path) -> onnx.ModelProto:
    if isinstance(item, onnx.ModelProto):
        return item
    try:
        return onnx.load(file.parent / item) if str(item).endswith(".onnx") else parse(item)
    except Exception as error:  # of the parser, the checker or the file
        text = f"{file}: an entry of EXAMPLES is no model: {error}".splitlines()[0]
        raise UsageError("option-invalid", text, hint=f"see {lookup.KIND.page}") from error


def parse(text: str) -> onnx.ModelProto:
    """Return the model of an ONNX text with or without its header."""
    model = onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER + text)
    onnx.checker.check_model(model)
    return model
