"""A product with a constant matrix and the constant that is added behind it made one Gemm, which has a bias."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, linear, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused, is_private
from onnxqat.passes._setting import Setting

LIMITS = frozenset({"Relu", "Clip"})  # what a Gemm's requantization repeats, so that nothing may come between


class MatmulBiasToGemm(Pass):
    """MatMul with a constant matrix and Add of a constant row become Gemm, whose bias is part of the accumulator.

    It is what onnxruntime's MatMulAddFusion does where all sizes but one are known; here the bias can be put on the
    accumulator's grid too, and the sum is rounded once.

    1. An input of two axes is the Gemm's. Another goes through a Reshape to rows (``<x>_rows``, made once for all
       layers that read it), and the result through one to what it was, behind a Relu or Clip that alone reads it.
    2. Where more than one size of the input is unknown, or their number is, the second Reshape takes them from the
       input's Shape.
    3. The node keeps the name of the MatMul, the result that of the Add.
    4. Left alone: a matrix that is computed or has another number of axes, a product that others read, a constant that
       is no row, and layers of which `left_out` is true for one of the two nodes.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        h = MatMul(x, w)  y = Add(h, b)
        y = Gemm(x, w, b)
    """

    def __init__(self, left_out: Callable[[ir.Node], Any] = lambda node: None) -> None:
        self.left_out = left_out

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run where the table asks for it; nodes that the user took out stay."""
        if setting.table.matmul_bias != "gemm":
            return None
        return cls() if setting.selection is None else cls(setting.selection.reason)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Join each layer; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            rows: dict[ir.Value, ir.Value] = {}
            for node in list(scope):
                added = linear.bias_behind(node)
                if added is not None and not self.left_out(node) and not self.left_out(added):
                    _Layer(scope, context.names, node, added).join(rows)
                    log.did("MatMul and Add of a constant became Gemm", node)
        return log.result()


@dataclasses.dataclass
class _Layer:
    """One layer, where it lies, and the names in use."""

    scope: walk.Scope
    names: build.Names
    product: ir.Node
    added: ir.Node

    def join(self, rows: dict[ir.Value, ir.Value]) -> None:
        """Put a Gemm in place of both nodes; `rows` holds the inputs that were reshaped already."""
        x, weight = self.product.inputs[:2]
        assert x is not None
        assert weight is not None
        width = _sizes(weight)[1]
        output = self.added.outputs[0]
        flat = query.rank(x) == 2
        source = x if flat else self._rows(x, rows)
        size = ir.Shape([source.shape[0] if source.shape is not None else None, width])
        name = str(output.name) if flat else self.names.fresh(f"{output.name}_rows")
        gemm = self._make("Gemm", [source, weight, self._bias(width)], name, size, str(self.product.name))
        made = gemm.outputs[0]
        gemm.metadata_props.update(self.product.metadata_props)
        if flat:
            made.metadata_props.update(output.metadata_props)
            made.shape = output.shape if output.shape is not None else made.shape
            output.replace_all_uses_with(made, replace_graph_outputs=True)
        else:
            self._restore(x, made, width)
        bias = linear.constant_side(self.added)
        self.scope.remove([self.added, self.product], safe=True)
        drop_unused(bias)

    def _bias(self, width: int) -> ir.Value:
        """The constant as one value a column: the one that is there, or a new one in that shape."""
        given = linear.constant_side(self.added)
        values = query.constant_array(given)
        assert given is not None
        assert values is not None
        if values.shape == (width,):
            return given
        flat = np.broadcast_to(values.reshape(-1), (width,))
        return build.constant(self.scope, self.names.fresh(f"{given.name}_flat"), flat, before=self.product)

    def _rows(self, x: ir.Value, rows: dict[ir.Value, ir.Value]) -> ir.Value:
        if x not in rows:
            width = _sizes(self.product.inputs[1])[0]
            name = self.names.fresh(f"{x.name}_rows")
            shape = self._constant(name, "shape", [-1, width])
            rows[x] = self._make("Reshape", [x, shape], name, ir.Shape([None, width])).outputs[0]
        return rows[x]

    def _restore(self, x: ir.Value, made: ir.Value, width: int) -> None:
        """Reshape `made`, or a Relu or Clip of it, to the axes of `x`, under the name of the former result."""
        last = self.added.outputs[0]
        limit = last.consumers()[0] if is_private(last) else None
        if limit is not None and (limit.op_type not in LIMITS or limit.domain or limit.graph is not self.added.graph):
            limit = None
        if limit is not None:
            limit.replace_input_with(0, made)
            last = limit.outputs[0]
        name = str(last.name)
        reshape = build.node(
            "Reshape",
            [made, self._shape(x, name, width)],
            [name],
            dtype=ir.DataType.FLOAT,
            shape=last.shape,
            name=self.names.fresh(f"{name}_Reshape"),
            stamp={build.CREATED_BY: MatmulBiasToGemm.name},
        )
        reshape.outputs[0].metadata_props.update(last.metadata_props)
        last.replace_all_uses_with(reshape.outputs[0], replace_graph_outputs=True)
        if limit is None:
            self.scope.insert_before(self.added, reshape)
            return
        last.name = self.names.fresh(f"{name}_rows")
        last.shape = None if made.shape is None else made.shape.copy()
        reshape.replace_input_with(0, last)
        self.scope.insert_after(limit, reshape)

    def _shape(self, x: ir.Value, name: str, width: int) -> ir.Value:
        """Shape that the result of the layer is reshaped to: a constant where that is possible."""
        sizes = None if x.shape is None else list(x.shape)[:-1]
        if sizes is not None and sum(not isinstance(size, int) for size in sizes) <= 1:
            return self._constant(name, "shape", [*(s if isinstance(s, int) else -1 for s in sizes), width])
        bounds = [self._constant(name, what, [value]) for what, value in (("begin", 0), ("end", -1), ("width", width))]
        rank = None if sizes is None else len(sizes) + 1
        whole = self._integers("Shape", [x], f"{name}_sizes", rank)
        outer = self._integers("Slice", [whole, *bounds[:2]], f"{name}_outer", None if rank is None else rank - 1)
        return self._integers("Concat", [outer, bounds[2]], f"{name}_shape", rank, {"axis": 0})

    def _constant(self, name: str, what: str, values: list[int]) -> ir.Value:
        return build.constant(
            self.scope, self.names.fresh(f"{name}_{what}"), np.asarray(values, np.int64), before=self.product
        )

    def _integers(
        self,
        op_type: str,
        inputs: list[ir.Value],
        name: str,
        size: int | None,
        attributes: dict[str, Any] | None = None,
    ) -> ir.Value:
        made = build.node(
            op_type,
            inputs,
            [self.names.fresh(name)],
            attributes,
            dtype=ir.DataType.INT64,
            shape=ir.Shape([size]),
            stamp={build.CREATED_BY: MatmulBiasToGemm.name},
            name=self.names.fresh(f"{name}_{op_type}"),
        )
        self.scope.insert_before(self.product, made)
        return made.outputs[0]

    def _make(
        self, op_type: str, inputs: Sequence[ir.Value], output: str, shape: ir.Shape, name: str | None = None
    ) -> ir.Node:
        made = build.node(
            op_type,
            inputs,
            [output],
            dtype=ir.DataType.FLOAT,
            shape=shape,
            name=name or self.names.fresh(f"{output}_{op_type}"),
            stamp={build.CREATED_BY: MatmulBiasToGemm.name},
        )
        self.scope.insert_before(self.product, made)
        return made


def _sizes(weight: ir.Value | None) -> tuple[int, int]:
    """Rows and columns of a constant matrix."""
    stored = query.constant_tensor(weight)
    assert stored is not None
    rows, columns = stored.shape.numpy()
    return rows, columns
