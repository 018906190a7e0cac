"""Encodings that the user brings: those tensors keep them, the others are calibrated."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx_ir as ir

from onnxqat import discover
from onnxqat.counts import counted
from onnxqat.errors import UsageError
from onnxqat.graph import files_read, walk
from onnxqat.placement import encodings
from onnxqat.placement.encodings._base import Encoding
from onnxqat.types import QParams, QuantPlan, Remark, Shared, TensorSpec

Given = Mapping[str, Encoding]


def read(paths: Iterable[str | os.PathLike[str]]) -> dict[str, Encoding]:
    """Encodings by tensor name; the last file wins where several name one.

    Raises:
        UsageError: ``option-invalid``: a file that is not there, of no format that is known, or incomplete.
    """
    found: dict[str, Encoding] = {}
    for path in paths:
        found.update(_read(Path(path)))
    return found


def _read(path: Path) -> dict[str, Encoding]:
    """Read a file of encodings in the first format that knows it."""
    try:
        files_read.check_regular(path)
        files_read.note_all((path,), "the encodings")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("option-invalid", f"{path}: encodings cannot be read: {error}") from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    kinds = discover.names(encodings.__name__)
    for kind in kinds:
        try:
            found = discover.load(encodings.__name__, kind).Format().read(text, document)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            reason = f"an entry of the {kind} format is incomplete ({type(error).__name__}: {error})"
            raise UsageError("option-invalid", f"{path}: {reason}") from None
        if found is not None:
            return dict(found)
    hint = f"formats: {', '.join(kinds)}"
    raise UsageError("option-invalid", f"{path}: not a file of encodings that is known", hint=hint)


def check(given: Given, plan: QuantPlan, model: ir.Model) -> tuple[Remark, ...]:
    """Refuse encodings that `plan` cannot take, and say which it does not need.

    Raises:
        UsageError: ``pattern-no-match``: a name that is no tensor of `model`; ``option-invalid``: another width or number
            of channels than the plan's.
    """
    known = {str(value.name) for scope in walk.scopes(model) for value in walk.values(scope)}
    strangers = [name for name in given if name not in known]
    if strangers:
        hint = discover.suggestion(strangers[0], sorted(known))
        raise UsageError(
            "pattern-no-match", f"encodings name {strangers[0]!r}, which is no tensor of the model", hint=hint
        )
    specs = specs_of(plan)
    for name in given:
        for spec in specs.get(name, ()):
            _check(name, given[name], spec)
    unused = [name for name in given if name not in specs]
    if not unused:
        return ()
    text = f"encodings of {counted(len(unused), 'tensor')} were not needed, which {plan.backend} does not quantize: {unused[0]}"
    return (Remark(text + (", ..." if len(unused) > 1 else ""), (), "calibrate"),)


def _check(name: str, encoding: Encoding, spec: TensorSpec) -> None:
    if encoding.bits is not None and encoding.bits != spec.qtype.bits:
        raise UsageError(
            "option-invalid",
            f"encodings give tensor {name!r} {encoding.bits} bits, and the plan {spec.qtype.bits}",
            hint="--bits and --bits-of choose widths",
        )
    if encoding.channels is not None and spec.granularity != "channel":
        raise UsageError(
            "option-invalid",
            f"encodings give tensor {name!r} {encoding.channels} channels, and the plan one scale",
            hint="--per-channel, or a backend whose type of this tensor is per channel",
        )
    try:
        encoding.qparams(spec)
    except ValueError as error:
        raise UsageError("option-invalid", f"encodings of tensor {name!r}: {error}") from None


def specs_of(plan: QuantPlan) -> dict[str, tuple[TensorSpec, ...]]:
    """The specs that `plan` has for each tensor that it calibrates; of a shared one those of its group's root."""
    own: dict[str, list[TensorSpec]] = {}
    for edge in plan.edges:
        if isinstance(edge.decision, TensorSpec):
            own.setdefault(edge.tensor, []).append(edge.decision)
    found = {name: tuple(specs) for name, specs in own.items()}
    for edge in plan.edges:
        if isinstance(edge.decision, Shared) and edge.decision.root in found:
            found.setdefault(edge.tensor, found[edge.decision.root])
    return found


def of(given: Given, tensors: Iterable[str], spec: TensorSpec) -> QParams | None:
    """Parameters of the first of `tensors` that has an encoding of the width of `spec`; None where none has.

    Args:
        given: encodings of the user.
        tensors: one tensor, or those of a group, which share parameters, the root first.
        spec: what the plan says of them.
    """
    for name in tensors:
        encoding = given.get(name)
        if encoding is not None and encoding.bits in (None, spec.qtype.bits):  # the guard may have chosen another one
            return encoding.qparams(spec)
    return None
