"""Configuration files: options of a command, and for ``insert-qdq`` rules for single nodes, in one YAML file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml

from onnxqat import discover, yaml_mappings
from onnxqat.errors import UsageError
from onnxqat.graph import files_read
from onnxqat.placement.node_rules import NodeRule, TensorRule

SCHEMA = 1
LARGEST = 16 * 2**20  # bytes; YAML takes several hundred times as much memory as text
_HEAD = "# Configuration of onnxqat insert-qdq; docs/commands/insert-qdq.md explains it.\n"
_NODES = (
    "# Nodes as they were quantized. To change one, move its entry into the list `nodes` above, "
    "without the comment sign:\n"
)
Option = str | int | float | bool | tuple[str | int | float, ...]


@dataclasses.dataclass(frozen=True)
class Figure:
    """A result that was measured, and how.

    Attributes:
        result: network, data and figures.
        command: what measures it.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    result: str
    command: str


@dataclasses.dataclass(frozen=True)
class Config:
    """Content of a configuration file.

    Attributes:
        schema: version of the format, 1.
        options: options of the command by their long names, without the dashes in front; those on the command line win.
        nodes: rules in order; a later one wins.
        command: name of the command that the file is for, of a recipe; None: the one that reads it.
        description: a line about it, of a recipe.
        figures: results that were reached with it, of a recipe, each with the command that measures it.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    schema: Literal[1]
    options: dict[str, Option] = dataclasses.field(default_factory=dict)
    nodes: tuple[NodeRule, ...] = ()
    command: str | None = None
    description: str = ""
    figures: tuple[Figure, ...] = ()


def read(path: str | os.PathLike[str]) -> Config:
    """Read a configuration file.

    Raises:
        UsageError: ``option-invalid``, naming the file and the key.
    """
    file = Path(path)
    try:
        files_read.check_regular(file)
        files_read.note_all((file,), "the configuration")
        text = file.read_text(encoding="utf-8")
        if len(text) > LARGEST:
            raise ValueError(f"more than {LARGEST >> 20} MiB")
        raw = yaml_mappings.load(text, aliases=False)
    except (ValueError, RecursionError, OSError) as error:
        text = f"{file}: the configuration cannot be read: {_reason(error)}"
        hint = "a configuration is a text file of YAML in UTF-8, indented with spaces"
        raise UsageError("option-invalid", text, hint=hint) from None
    return _validated(raw, file)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    if isinstance(error, OSError) and error.strerror:  # its text has the file's name again
        return error.strerror
    return str(error).splitlines()[0]


def _validated(raw: Any, file: Path) -> Config:
    import pydantic

    if not isinstance(raw, dict):
        text = f"{file}: a configuration is a mapping of keys: schema, options, nodes"
        raise UsageError("option-invalid", text, hint=f"the first line is `schema: {SCHEMA}`")
    rows = raw.get("nodes")
    if isinstance(rows, list):
        raw = {**raw, "nodes": [_with_lists(row) for row in rows]}
    try:
        return pydantic.TypeAdapter(Config).validate_python(raw)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
    problem, hint = first["msg"].removeprefix("Value error, "), ""
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        problem, hint = "there is no such key", discover.suggestion(str(first["loc"][-1]), _keys_beside(first["loc"]))
    elif first["type"] == "missing" and first["loc"] == ("schema",):
        problem, hint = "the version of the format is missing", f"write `schema: {SCHEMA}` as the first line"
    place = ".".join(map(str, first["loc"]))
    raise UsageError("option-invalid", f"{file}: {place or 'the file'}: {problem}", hint=hint)


def _keys_beside(place: Sequence[int | str]) -> list[str]:
    """Return the keys that are known where a file has one that is not.

    Args:
        place: keys and numbers from the top of the file to it.
    """
    levels: dict[Any, type] = {"nodes": NodeRule, "weights": TensorRule, "activations": TensorRule, "figures": Figure}
    kind = next((levels[key] for key in reversed(place[:-1]) if key in levels), Config)
    return [field.name for field in dataclasses.fields(kind)]


def _with_lists(row: Any) -> Any:
    """Return a rule in which a single name or operator is a list of one."""
    if not isinstance(row, dict):
        return row
    single = {key: (row[key],) for key in ("name", "operator") if isinstance(row.get(key), str)}
    return {**row, **single}


def text(options: Mapping[str, Any], rules: Iterable[NodeRule], nodes: Iterable[Mapping[str, Any]]) -> str:
    """Return a configuration file.

    Args:
        options: values of options by name.
        rules: rules that were given.
        nodes: the nodes as they were quantized, each in the form of a rule; they are written as comments.
    """
    content: dict[str, Any] = {"schema": SCHEMA, "options": dict(options), "nodes": [_row(rule) for rule in rules]}
    body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=2**16)
    lines = [yaml.safe_dump([dict(node)], default_flow_style=None, sort_keys=False, width=2**16) for node in nodes]
    listed = "".join(f"# {line}\n" for entry in lines for line in entry.splitlines())
    return _HEAD + body + (_NODES + listed if listed else "")


def _row(rule: NodeRule) -> dict[str, Any]:
    """Return a rule as the file has it, without what it leaves open."""
    found: dict[str, Any] = {}
    for key in ("name", "regex", "operator", "between"):
        value = getattr(rule, key)
        if value:
            found[key] = list(value) if isinstance(value, tuple) else value
    for role in ("weights", "activations"):
        if given := getattr(rule, role).given():
            found[role] = given
    return {**found, "float": True} if rule.float else found


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of configuration files, for editors that check YAML."""
    import pydantic

    return {"title": "Configuration of onnxqat insert-qdq", **pydantic.TypeAdapter(Config).json_schema()}
