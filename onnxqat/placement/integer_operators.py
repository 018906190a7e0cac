"""Operators that become integer functions: rows for them in a table that leaves them in float."""

from __future__ import annotations

from collections.abc import Sequence

from onnxqat.backends.group_rules import OPERATORS, GroupRule
from onnxqat.backends.schema import Backend, FixedValue, OpRow, Slot
from onnxqat.errors import UsageError
from onnxqat.integer_functions import library
from onnxqat.integer_functions.definition import IntegerFunction

RANGES: dict[str, tuple[float, float]] = {
    "Cos": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
    "HardSigmoid": (0.0, 1.0),
    "Sigmoid": (0.0, 1.0),
    "Sin": (-1.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
}
"""Ranges that results have whatever the input is."""


def with_functions(backend: Backend, integer: str | None) -> Backend:
    """Return `backend` with a row for each operator of the list `integer`, and those of its own key `integer`.

    Raises:
        UsageError: ``name-unknown`` for what is no integer function; ``option-invalid`` where the table quantizes no
            activations.
    """
    chosen = backend.integer if integer is None else library.chosen(integer)
    if not chosen:
        return backend
    kind = _activation(backend)
    ops = dict(backend.ops)
    for operator in chosen:
        # A Sum becomes Adds where a table has no row for it, and these are parts as well.
        function = library.kinds()[operator]
        for name in (operator, *function.parts):
            if name != "Sum":
                key = name if function.mode is None else f"{name}/{function.mode}"
                ops.setdefault(key, _row(name, kind, function))
    whole = {operator for operator in chosen if library.kinds()[operator].mode is None}
    passthrough = tuple(op for op in backend.passthrough if op not in whole)
    probabilities = backend.io.probabilities if "Softmax" not in chosen and "Sigmoid" not in chosen else "quantize"
    return backend.model_copy(
        update={
            "ops": ops,
            "integer": tuple(chosen),
            "groups": {kind: _group_rule(kind, rule, chosen) for kind, rule in backend.groups.items()},
            "passthrough": passthrough,
            "io": backend.io.model_copy(update={"probabilities": probabilities}),
        }
    )


def _group_rule(kind: str, rule: GroupRule, chosen: Sequence[str]) -> GroupRule:
    """Rule of a kind of groups: what would stay in float as a whole is fused where its operator becomes a function."""
    return "fused" if rule == "float" and kind in OPERATORS and OPERATORS[kind][0] in chosen else rule


def of_file(backend: Backend | None, operators: Sequence[str]) -> Backend | None:
    """Return `backend` with rows for the functions that a file calls: these run in integers whatever the target is."""
    if backend is None or not operators or backend.placement != "both":
        return backend
    return with_functions(backend, ",".join(operators))


def _row(operator: str, kind: str, function: type[IntegerFunction]) -> OpRow:
    ends = RANGES.get(operator)
    fixed = None if ends is None else FixedValue(range=ends)
    # A constant becomes a number of a sum or a limit, and needs no grid; that of a first operand alone is codes.
    first = Slot(use=kind, constants="float" if function.is_variadic else "pair")
    # What is read behind the first tensor lies on a grid too, whatever else reads it.
    several = function.is_variadic or function.operands > 1
    rest = (Slot(use=kind, variadic=True, constants="float"),) if several else ()
    return OpRow(inputs=(first, *rest), outputs=(Slot(use=kind, fixed=fixed),))


def _activation(backend: Backend) -> str:
    """Return the name of the type that most operators of the table read."""
    used: Sequence[str] = [row.outputs[0].use for row in backend.ops.values() if row.outputs and row.outputs[0].use]
    if not used or backend.placement != "both":
        raise UsageError(
            "option-invalid",
            f"{backend.backend} has no pair behind an operator, which an integer function needs",
            hint="choose a backend with pairs on both sides, as onnxruntime-cpu",
        )
    return max(sorted(set(used)), key=used.count)
