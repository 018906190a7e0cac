"""YAML of users, in which each key stands once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is libyaml's, ten times as fast
_MERGE = "tag:yaml.org,2002:merge"  # `<<` may come again: it is no key of the mapping


def load(text: str, *, aliases: bool = True) -> Any:
    """Return the content of a YAML document.

    Args:
        text: the document.
        aliases: whether ``*name`` is taken; a few of them stand for more than memory holds.

    Raises:
        ValueError: the text is not YAML, has an alias that is not taken, or a mapping with a key twice; the message
            begins with the line.
    """
    try:
        if not aliases:
            _refuse_aliases(text)
        loader = _LOADER(text)
        try:
            root = loader.get_single_node()
            _check_keys(loader, root)
            return None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError):  # PyYAML's, at `!!bool maybe` and the like
        raise ValueError("a value is not of the type that its tag states") from None


def _refuse_aliases(text: str) -> None:
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            where = f"line {event.start_mark.line + 1}: " if event.start_mark else ""
            raise ValueError(f"{where}aliases (*name) are not taken")


def _check_keys(loader: Any, root: Any) -> None:
    """Refuse a key that a mapping has twice, of which PyYAML keeps the last without a word.

    Keys are compared as the values that they stand for: ``yes`` and ``true`` are one. The nodes are looked at before
    the loader resolves merges, which put keys of other mappings, that may be overridden, in front of a mapping's own.
    """
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)
        if isinstance(node, yaml.MappingNode):
            _check_mapping(loader, node)
            waiting += [child for pair in reversed(node.value) for child in reversed(pair)]


def _check_mapping(loader: Any, node: yaml.MappingNode) -> None:
    first: dict[Any, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        line = key.start_mark.line + 1
        value = loader.construct_object(key)
        if not isinstance(value, Hashable):
            continue  # a scalar with the tag of a mapping, which the loader refuses
        if value in first:
            raise ValueError(f"line {line}: the key {key.value!r} is there twice, first in line {first[value]}")
        first[value] = line
