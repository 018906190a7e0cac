"""Rewrites of the finished graph of a scope: first those of single nodes, then those of groups of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxqat.bridge.functional import onnxruntime_sigmoid
from onnxqat.bridge.importing import fusion

if TYPE_CHECKING:
    from onnxqat.bridge.importing.builder import Builder


def finish(builder: Builder) -> None:
    """Rewrite the graph of `builder`, whose output is set, in place."""
    onnxruntime_sigmoid.follow_onnxruntime(builder)
    fusion.fuse(builder)
