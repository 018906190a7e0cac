"""BatchNormalization behind a layer with weights, and the note on one that is kept there through training."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import query, walk
from onnxqat.graph.layers import LAYERS

KEPT = "onnxqat.batch_norm"  # on a BatchNormalization that stays behind its layer until the weights are final
PARTS = frozenset({"weight", "bias"})  # the same note on the node that computes a folded one


def is_batchnorm(node: ir.Node) -> bool:
    """Check whether `node` is ONNX's BatchNormalization."""
    return node.op_type == "BatchNormalization" and node.domain == ""


def is_kept(node: ir.Node) -> bool:
    """Check whether `node` is a BatchNormalization that placement kept."""
    return is_batchnorm(node) and KEPT in node.metadata_props


def trains_live(model: ir.Model) -> bool:
    """Check whether placement kept BatchNormalization in `model`, to be trained with the statistics of the batch.

    Files of other tools may hold unfolded ones too, most often with pairs around them. Their outputs were calibrated
    with the stored statistics: those of a batch would move them off the grid that was chosen for them.
    """
    return any(KEPT in node.metadata_props for node in walk.nodes(model))


def layer(node: ir.Node) -> ir.Node | None:
    """The Conv, ConvTranspose, Gemm or MatMul of the same graph whose output only the BatchNormalization `node` reads."""
    source = node.inputs[0]
    producer = query.producer(source)
    if source is None or producer is None or producer.domain or producer.op_type not in LAYERS:
        return None
    private = query.reads(source) == 1 and not source.is_graph_output() and producer.graph is node.graph
    return producer if private else None


def kept_behind(layer: ir.Node) -> ir.Node | None:
    """The BatchNormalization that is kept behind `layer`, None where there is none."""
    users = layer.outputs[0].consumers()
    return users[0] if len(users) == 1 and is_kept(users[0]) and users[0].inputs[0] is layer.outputs[0] else None
