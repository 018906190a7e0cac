"""Nodes whose tensors need more than a coarse grid on every backend: one analysis of the graph for each kind."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis import activations, indices, network_tails, normalizations, residual_streams
from onnxqat.analysis.groups import find
from onnxqat.analysis.ratios import Ratios
from onnxqat.backends.schema import Backend

NORMALIZED = "part of a normalization that is written out"
GROUPED = "part of a {}, which stays in float as a whole"


def reasons(graph: ir.Graph, backend: Backend) -> dict[ir.Node, str]:
    """Nodes that stay in float because of their computation, with the reason of the first analysis that finds them.

    None of them is a layer with weights, but the filters of a spectrogram: integer kernels of layers stay. Groups that
    the table leaves in float, or would have as an operator that the file's opset has not, come on top.
    """
    kernels = frozenset(key.partition("/")[0] for key in backend.ops)
    written = normalizations.parts(graph)
    found: dict[ir.Node, str] = dict.fromkeys(written, NORMALIZED)
    streaming = dict.fromkeys(residual_streams.parts(graph, kernels, written), residual_streams.REASON)
    numbers = dict.fromkeys(indices.parts(graph), indices.REASON)
    for those in (
        Ratios(graph, backend.integer).reasons,
        activations.parts(graph, kernels),
        numbers,
        network_tails.parts(graph),
        streaming,
    ):
        found = those | found
    return _whole_groups(graph, backend) | found


def _whole_groups(graph: ir.Graph, backend: Backend) -> dict[ir.Node, str]:
    """Nodes of groups that the table does not want in parts."""
    if not set(backend.groups.values()) - {"parts"}:
        return {}
    groups = [g for g in find.find(graph) if backend.groups.get(g.kind, "parts") != "parts"]
    return {node: GROUPED.format(group.kind) for group in groups for node in group.nodes}
