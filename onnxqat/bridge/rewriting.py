"""Rewrites of the finished graph of a scope: first those of single nodes, then those of groups of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxqat.bridge import fusion, rational

if TYPE_CHECKING:
    from onnxqat.bridge.builder import Builder


def finish(builder: Builder) -> None:
    """Rewrite the graph of `builder`, whose output is set, in place."""
    rational.follow_onnxruntime(builder)
    fusion.fuse(builder)
