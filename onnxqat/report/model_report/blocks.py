"""Blocks of a graph: from the names of its nodes where these have levels, else between tensors that everything passes."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHARE = 0.5
"""Names with levels that it takes: with fewer, blocks by name would leave most of the graph without one."""
TARGET_BLOCKS = 40
"""Number of blocks that a graph without names is cut into at most: as many as fit on a screen."""


def blocks(names: Sequence[str], edges: Sequence[tuple[int, int]]) -> list[str]:
    """Find the block of each node, from outer to inner with ``/`` between levels; empty for nodes outside of all.

    Args:
        names: of the nodes, in topological order.
        edges: producer and consumer.
    """
    found = ["/".join(levels(name)) for name in names]
    if sum(map(bool, found)) >= SHARE * len(names):
        return _inherited(found, edges)
    return _between_passages(len(names), edges)


def levels(name: str) -> list[str]:
    """Return the levels of a module in the name that exporters give its nodes, the node itself left out.

    ``/layer1/layer1.0/conv1/Conv`` lies in ``layer1``, ``0``, ``conv1``; torch repeats the outer levels in each.
    """
    parts = [part for part in name.split("/") if part]
    if len(parts) > 1:
        found, before = [], ""
        for part in parts[:-1]:
            found += [p for p in part.removeprefix(before).split(".") if p] if before else part.split(".")
            before = part + "."
        return found
    dotted = re.split(r"\.", name)
    return dotted[:-1] if len(dotted) > 2 else []


def _inherited(found: list[str], edges: Sequence[tuple[int, int]]) -> list[str]:
    """Give nodes without a block that of the first producer which has one: passes add nodes without names of modules."""
    named = list(found)
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        if not named[target] and named[source]:
            named[target] = named[source]
    return named


def _between_passages(count: int, edges: Sequence[tuple[int, int]]) -> list[str]:
    """Cut a graph where a single tensor passes, into :data:`TARGET_BLOCKS` at most, of like size."""
    passing = [0] * (count + 1)  # consumers behind a position that a producer before it reaches, as differences
    last: dict[int, int] = {}
    for source, target in edges:
        last[source] = max(last.get(source, source), target)
    for source, target in last.items():
        passing[source + 1] += 1
        passing[target + 1 if target < count else count] -= 1
    size = max(4, -(-count // TARGET_BLOCKS))
    found, block, filled, alive = [], 0, 0, 0
    for position in range(count):
        alive += passing[position]
        if filled >= size and alive <= 1:
            block, filled = block + 1, 0
        found.append(f"part {block + 1}")
        filled += 1
    return found
