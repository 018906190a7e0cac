"""BatchNormalization that no layer could take becomes Mul and Add."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.graph.batchnorm import is_batchnorm, is_kept
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._batchnorm import affine
from onnxqat.passes._edits import Log, absorb, drop_unused
from onnxqat.passes._inference import Inferred


class BatchnormToAffine(Pass):
    """A BatchNormalization becomes one Mul and one Add with constants of shape [1, C, 1, ...].

    Run it behind fold-batchnorm. Mul and Add can be quantized and trained like any other operator, while few
    compilers have an integer BatchNormalization.

    1. Factor ``gamma / sqrt(variance + epsilon)`` and offset ``beta - mean * factor`` are computed in float64.
    2. The Add's output keeps the name of the BatchNormalization's; statistics outputs of old opsets that nothing
       reads are dropped.
    3. Left alone, with the reason: training mode, parameters that are not constant, an input of unknown rank or
       type. One that placement kept behind its layer is none of this pass's business.

    Tolerance: float rounding, 1e-5 of the output's range. ::

        y = BatchNormalization(x, gamma, beta, mean, variance)
        y_scaled = Mul(x, y_factor)   y = Add(y_scaled, y_offset)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Replace what can be replaced; see the class."""
        log = Log()
        found = [(s, n) for s in walk.scopes(model) for n in s if is_batchnorm(n) and not is_kept(n)]
        inferred = Inferred(model) if found else None
        for scope, node in found:
            assert inferred is not None
            name = query.label(node)
            reason = self._replace(scope, node, inferred, context.names)
            if reason is None:
                log.did("BatchNormalization became Mul and Add", name)
            else:
                log.left(reason, name)
        return log.result()

    def _replace(self, scope: walk.Scope, node: ir.Node, inferred: Inferred, names: build.Names) -> str | None:
        """Write the normalization as Mul and Add per channel; return the reason where it cannot be."""
        function = affine(node)
        if isinstance(function, str):
            return function
        source, output = node.inputs[0], node.outputs[0]
        rank, dtype = inferred.rank(source), inferred.dtype(source)
        if source is None or rank is None or rank < 2 or dtype not in query.FLOATS:
            return "rank or type of what BatchNormalization reads is unknown"
        base, stamp = str(output.name), {build.CREATED_BY: self.name}
        shape = [1, -1, *[1] * (rank - 2)]
        made = source
        for op, suffix, result, array in (
            ("Mul", "factor", "scaled", function.factor),
            ("Add", "offset", "shifted", function.offset),
        ):
            constant = build.constant(
                scope, names.fresh(f"{base}_{suffix}"), array.reshape(shape).astype(dtype.numpy()), dtype, before=node
            )
            step = build.node(
                op,
                [made, constant],
                [names.fresh(f"{base}_{result}")],
                dtype=dtype,
                shape=output.shape,
                name=names.fresh(f"{node.name or base}_{op}"),
                stamp=stamp,
            )
            scope.insert_before(node, step)
            made = step.outputs[0]
        parameters = list(node.inputs[1:])
        absorb(node, made)
        for value in parameters:
            drop_unused(value)
        return None
