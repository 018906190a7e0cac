"""BatchNormalization folded into the weights of the layer in front of it."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.graph.batchnorm import is_batchnorm, is_kept
from onnxqat.passes._affine_folds import FOLDS, NO_LAYER
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._batchnorm import affine
from onnxqat.passes._edits import Log, absorb, drop_unused, is_private

READ_ELSEWHERE = "the tensor between the layer and BatchNormalization is read elsewhere or is a graph output"


class FoldBatchnorm(Pass):
    """A BatchNormalization behind a layer disappears into the layer's weight and bias.

    With ``s = gamma / sqrt(variance + epsilon)`` the weight becomes ``w * s`` along its output channels and the bias
    ``(b - mean) * s + beta``, computed in float64 and stored in the weight's type; gamma may be 0 or negative. The
    layer's output takes the name of the BatchNormalization's output.

    1. Conv and ConvTranspose, grouped too; a bias is made where there is none.
    2. Gemm, transposed or not; a scaled bias (beta != 1) is folded as it acts.
    3. MatMul of two matrices with a constant right one; the BatchNormalization becomes an Add.
    4. MatMul followed by Add of a constant row.
    5. A weight that other nodes read stays theirs: the layer gets a copy, ``<weight>_folded``.
    6. Left alone, with the reason: training mode; parameters or weights that are not constant (in a function body
       they may be its inputs); a layer output that something else reads or that is a graph output; a layer in
       another scope; values that overflow the weight's type; a BatchNormalization in front of a layer; one that
       placement kept, unless `kept` is asked for.

    Tolerance: float rounding, 1e-5 of the output's range. ::

        c = Conv(x, w)   y = BatchNormalization(c, gamma, beta, mean, variance)
        y = Conv(x, w, conv_bias)

    Args:
        kept: fold those too that placement kept for training.
    """

    def __init__(self, *, kept: bool = False) -> None:
        self.kept = kept

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Fold what can be folded; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            if not is_batchnorm(node) or (is_kept(node) and not self.kept):
                continue
            name = query.label(node)
            reason = _fold(scope, node, context.names, {build.CREATED_BY: self.name})
            if reason is None:
                log.did("BatchNormalization folded into the layer in front of it", name)
            elif reason in (NO_LAYER, READ_ELSEWHERE):
                log.left_for_later(reason, name)
            else:
                log.left(reason, name)
        return log.result()


def _fold(scope: walk.Scope, node: ir.Node, names: build.Names, stamp: dict[str, str]) -> str | None:
    source = node.inputs[0]
    producer = query.producer(source)
    fold = None if producer is None or producer.domain else FOLDS.get(producer.op_type)
    if source is None or producer is None or fold is None:
        return NO_LAYER
    if not is_private(source) or producer.graph is not node.graph:
        return READ_ELSEWHERE
    function = affine(node)
    if isinstance(function, str):
        return function
    parameters = list(node.inputs[1:])
    result = fold(scope, producer, function, names, stamp)
    if isinstance(result, str):
        return result
    absorb(node, result)
    for value in parameters:
        drop_unused(value)
    return None
