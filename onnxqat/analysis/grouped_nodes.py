"""Nodes that a rewrite of single operators leaves alone."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis import normalizations
from onnxqat.analysis.groups import find
from onnxqat.graph import walk


def of(scope: walk.Scope) -> frozenset[ir.Node]:
    """Nodes of normalizations and other groups in `scope`, which placement knows by what they are made of.

    None in the body of a function.
    """
    if not isinstance(scope, ir.Graph):
        return frozenset()
    return normalizations.parts(scope) | {node for group in find.find(scope) for node in group.nodes}
