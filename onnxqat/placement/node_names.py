"""Names that a node goes by, its own and those of the tensors that it makes, and patterns that match them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

import onnx_ir as ir


def of(node: ir.Node) -> Iterator[str]:
    """Return the name of `node` and the names of the tensors that it makes."""
    yield from (str(name) for name in (node.name, *(v.name for v in node.outputs)) if name)


def matches(node: ir.Node, pattern: str) -> bool:
    """Check whether `pattern` matches a name of `node`."""
    return any(matches_name(name, pattern) for name in of(node))


def matches_name(name: str, pattern: str) -> bool:
    """Check whether `pattern` is `name`, a glob pattern for it, or a block above it: ``block1`` of ``block1/conv``."""
    return (
        name == pattern
        or fnmatch.fnmatchcase(name, pattern)
        or any(name.startswith(pattern.rstrip("/.") + separator) for separator in "/.")
    )
