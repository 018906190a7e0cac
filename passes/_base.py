"""Base class of passes, and functions that run them."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxqat.errors import QatError, UsageError
from onnxqat.graph import build, io, quantizer_checks, verify
from onnxqat.types import Remark

if TYPE_CHECKING:
    from onnxqat.passes._setting import Setting


@dataclasses.dataclass
class Context:
    """State that the passes of one run share.

    Attributes:
        names: fresh names of the model that is being rewritten.
        trace: called with (pass name, model) after each pass; for viewers and bisection.
        repeated: names that several nodes had before the pass; None until they are looked for.
    """

    names: build.Names
    trace: Callable[[str, ir.Model], None] | None = None
    repeated: frozenset[str] | None = None


@dataclasses.dataclass(frozen=True)
class PassResult:
    """A model after one or more passes.

    Attributes:
        model: of the kind that was given.
        changed: whether anything was rewritten.
        remarks: what was done or left alone, and why.
    """

    model: Any
    changed: bool
    remarks: tuple[Remark, ...] = ()


@dataclasses.dataclass(frozen=True)
class Rewrite:
    """Outcome of one pass on one model; remarks also say what was left alone, and why."""

    changed: bool
    remarks: tuple[Remark, ...] = ()


class Pass(abc.ABC):
    """A rewrite of a model. A subclass states what changes in the graph and what is left alone and why.

    ``run`` never changes the model that it is given. A second run of a pass changes nothing.
    """

    name: str = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = cls.name or cls.__module__.rpartition(".")[2].replace("_", "-")

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """The pass as a recipe runs it for `setting`; None where it has no part in that."""
        return cls()

    def requires(self, model: ir.Model) -> None:
        """Raise QatError ``pass-precondition`` where the pass cannot work on `model`."""

    @abc.abstractmethod
    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Rewrite `model` in place; called on a private copy."""

    def ensures(self, model: ir.Model) -> None:
        """Raise QatError ``pass-postcondition`` where the rewritten `model` breaks a promise."""

    def run(self, model: io.ModelSource, context: Context | None = None) -> PassResult:
        """Apply this pass to a copy of `model` (path, ModelProto, ir.Model or gs.Graph); the same kind comes back."""
        return run_passes(model, [self], trace=context.trace if context else None)


def run_passes(
    source: io.ModelSource, passes: Sequence[Pass], *, trace: Callable[[str, ir.Model], None] | None = None
) -> PassResult:
    """Apply `passes` in order to a copy of `source`; each is followed by the graph verifier.

    Raises:
        QatError: of the pass that failed; its message names the passes that had already run.
    """
    model = io.load(source)
    result = rewrite(model, passes, trace=trace)
    return PassResult(io.like(source, model), result.changed, result.remarks)


def rewrite(
    model: ir.Model, passes: Sequence[Pass], *, trace: Callable[[str, ir.Model], None] | None = None
) -> Rewrite:
    """Apply `passes` in order to `model` itself, which the caller owns; errors as of :func:`run_passes`."""
    quantizer_checks.check(model)
    done: list[str] = []
    remarks: list[Remark] = []
    changed = False
    context: Context | None = None
    for step in passes:
        # Most passes find nothing to do, and names are looked up in the whole model: they hold until something changes.
        context = context or Context(build.Names(model), trace)
        result = apply(step, model, context, done)
        changed |= result.changed
        if result.changed or context.names.given:
            context = None
        remarks.extend(result.remarks)
        done.append(step.name)
    return Rewrite(changed, tuple(remarks))


def apply(step: Pass, model: ir.Model, context: Context, done: Sequence[str] = ()) -> Rewrite:
    """Run one pass in place, with its checks; `done` names the passes before it."""
    try:
        step.requires(model)
        if context.repeated is None:
            context.repeated = verify.repeated_names(model)
        result = step.rewrite(model, context)
        if result.changed:
            verify.verify(model, context.repeated)
            step.ensures(model)
    except QatError as error:
        before = f" after {', '.join(done)}" if done else ""
        raise type(error)(error.code, f"pass {step.name}{before}: {error.message}", hint=error.hint) from error
    except Exception as error:
        if _is_own(step):
            raise
        raise failed(step.name, error) from error
    if context.trace is not None:
        context.trace(step.name, model)
    named = tuple(dataclasses.replace(r, source=r.source or step.name) for r in result.remarks)
    return Rewrite(result.changed, named)


def failed(name: str, error: Exception) -> UsageError:
    """The error for a user's pass that raised `error`."""
    return UsageError(
        "pass-failed",
        f"pass {name}: {type(error).__name__}: {error}",
        hint="mend the pass; `onnxqat passes check FILE` tries it on small models",
    )


def _is_own(step: Pass) -> bool:
    """Tell if `step` is one of onnxqat: what goes wrong in those is no matter of the user's."""
    return type(step).__module__.partition(".")[0] == "onnxqat"
