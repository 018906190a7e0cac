"""JSON of checkpoints and black boxes, validated by pydantic: a file of a stranger may hold anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import pydantic

from onnxqat.training.callbacks.batchnorm_statistics import Mode as BatchNormMode
from onnxqat.training.execution.execution import Precision
from onnxqat.training.loop.non_finite import Kind

T = TypeVar("T", bound=pydantic.BaseModel)
K = TypeVar("K")


class Document(pydantic.BaseModel):
    """Base of what a file holds: types are taken as they are written, and fields of later versions are left out."""

    model_config = pydantic.ConfigDict(strict=True, extra="ignore", arbitrary_types_allowed=True)


class Group(pydantic.BaseModel):
    """A parameter group of a torch optimizer: indices of its parameters, learning rate, and what else it has."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow")

    params: list[pydantic.NonNegativeInt]
    lr: pydantic.FiniteFloat


class OptimizerState(Document):
    """Parameter groups, and what is no tensor of the state of each parameter."""

    groups: list[Group]
    numbers: dict[str, bool | int | pydantic.FiniteFloat | str | None] = {}


class Random(Document):
    """Scalars of numpy's and Python's random states (see :class:`onnxqat.training.loop.random_state.RandomState`)."""

    numpy: tuple[str, int, int, float] | None = None
    python: tuple[int, float | None] | None = None


class Checkpoint(Document):
    """Metadata of a checkpoint."""

    format: str
    progress: dict[str, Any]
    settings: dict[str, Any]
    optimizer: OptimizerState | None = None
    states: dict[str, dict[str, Any]] = {}
    random: Random = Random()


def _is_number(text: str) -> str:
    float(text)  # raises the ValueError that pydantic reports
    return text


Number = Annotated[str, pydantic.AfterValidator(_is_number)]
"""A float as repr() writes it, NaN and infinity included."""


class StepSettings(Document):
    """Settings of the run that decide how its module computes."""

    method: str = "lsq"
    grad_bits: int | None = None
    batch_norm: BatchNormMode = "live"
    arithmetic: str = "float"


class Box(Document):
    """``box.json`` of a black box."""

    format: str
    step: pydantic.NonNegativeInt
    epoch: pydantic.NonNegativeInt
    loss: Number
    gradient_norm: Number
    processes: pydantic.PositiveInt
    settings: StepSettings
    precision: Precision
    quantizers: dict[str, tuple[int, int, str]]
    objective: dict[str, Any] | None


class Place(Document):
    """The value that was not finite."""

    kind: Kind
    name: str
    sample: int | None = None


class Pass(Document):
    """One forward pass of the step."""

    random: Random
    weight: pydantic.FiniteFloat
    samples: pydantic.PositiveInt | None


class SeenBatches(Document):
    """Metadata of the batches of a black box."""

    found: Place
    seen: list[Pass]


def parse(kind: type[T], text: str | bytes) -> T:
    """Return the document in a JSON `text`.

    Raises:
        ValueError: it is no JSON or not of this structure; says in one line which field is wrong.
    """
    try:
        return kind.model_validate_json(text)
    except pydantic.ValidationError as error:
        raise ValueError(_first_error(error)) from None


def counted(kind: type[K], fields: Mapping[str, Any], total: Any) -> K:
    """Return the dataclass `kind`, numbers of a run that has been interrupted, from its `fields` in a file.

    Args:
        kind: its own annotations say what is valid; counts are not negative.
        fields: as they were read.
        total: steps of the run, which no step or epoch may lie behind; anything else than an int where unknown.

    Raises:
        ValueError: says in one line which field is wrong.
    """
    try:
        found = pydantic.TypeAdapter(kind).validate_json(json.dumps(dict(fields)), strict=True)
    except pydantic.ValidationError as error:
        raise ValueError(_first_error(error)) from None
    for name, value in fields.items():
        if isinstance(value, int) and value < 0:
            raise ValueError(f"{name}: {value} is negative")
        if isinstance(total, int) and name in ("step", "epoch") and value > total:
            raise ValueError(f"{name}: {value} lies behind the end of the run, which has {total} steps")
    return found


def _first_error(error: pydantic.ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else str(first["msg"])


def same_kinds(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the first key whose value in `stored` is of another kind than `now`: number, text, list; None without."""
    for key, value in now.items():
        if key in stored and not _alike(stored[key], value):
            return key
    return None


def _alike(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return True
    if isinstance(one, bool) or isinstance(other, bool):
        return isinstance(one, bool) and isinstance(other, bool)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    both_numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return both_numbers or type(one) is type(other)
