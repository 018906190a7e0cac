"""A product with a constant matrix, and the bias behind it, made one Gemm between Reshapes to rows and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, linear, query, walk
from onnxqat.passes._edits import drop_unused, is_private

LIMITS = frozenset({"Relu", "Clip"})  # what a Gemm's requantization repeats, so that nothing may come between


@dataclasses.dataclass
class GemmLayer:
    """A product with a constant matrix, and the Add of a constant row behind it, as one Gemm.

    Attributes:
        scope: where the layer lies.
        names: names in use.
        product: the MatMul.
        added: the Add of the bias; None where there is none.
        stamp: note on what is made.
        transposed: the matrix whose transpose the product reads; None where it reads the matrix itself.
    """

    scope: walk.Scope
    names: build.Names
    product: ir.Node
    added: ir.Node | None
    stamp: dict[str, str]
    transposed: ir.Value | None = None

    def join(self, rows: dict[ir.Value, ir.Value]) -> None:
        """Put a Gemm in place of both nodes; `rows` holds the inputs that were reshaped already."""
        x = self.product.inputs[0]
        weight = self.product.inputs[1] if self.transposed is None else self.transposed
        assert x is not None
        assert weight is not None
        width = self._sizes()[1]
        output = self._last.outputs[0]
        flat = query.rank(x) == 2
        source = x if flat else self._rows(x, rows)
        size = ir.Shape([source.shape[0] if source.shape is not None else None, width])
        name = str(output.name) if flat else self.names.fresh(f"{output.name}_rows")
        inputs = [source, weight] if self.added is None else [source, weight, self._bias(self.added, width)]
        gemm = self._make("Gemm", inputs, name, size, str(self.product.name))
        if self.transposed is not None:
            gemm.attributes["transB"] = ir.AttrInt64("transB", 1)
        made = gemm.outputs[0]
        gemm.metadata_props.update(self.product.metadata_props)
        if flat:
            made.metadata_props.update(output.metadata_props)
            made.shape = output.shape if output.shape is not None else made.shape
            output.replace_all_uses_with(made, replace_graph_outputs=True)
        else:
            self._restore(x, made, width)
        bias = None if self.added is None else linear.constant_side(self.added)
        self.scope.remove([node for node in (self.added, self.product) if node is not None], safe=True)
        drop_unused(bias)

    @property
    def _last(self) -> ir.Node:
        """The node that makes the layer's result."""
        return self.product if self.added is None else self.added

    def _bias(self, added: ir.Node, width: int) -> ir.Value:
        """The constant as one value a column: the one that is there, or a new one in that shape."""
        given = linear.constant_side(added)
        values = query.constant_array(given)
        assert given is not None
        assert values is not None
        if values.shape == (width,):
            return given
        flat = np.broadcast_to(values.reshape(-1), (width,))
        return build.constant(self.scope, self.names.fresh(f"{given.name}_flat"), flat, before=self.product)

    def _rows(self, x: ir.Value, rows: dict[ir.Value, ir.Value]) -> ir.Value:
        if x not in rows:
            width = self._sizes()[0]
            name = self.names.fresh(f"{x.name}_rows")
            shape = self._constant(name, "shape", [-1, width])
            rows[x] = self._make("Reshape", [x, shape], name, ir.Shape([None, width])).outputs[0]
        return rows[x]

    def _restore(self, x: ir.Value, made: ir.Value, width: int) -> None:
        """Reshape `made`, or a Relu or Clip of it, to the axes of `x`, under the name of the former result."""
        last = self._last.outputs[0]
        limit = last.consumers()[0] if is_private(last) else None
        if limit is not None and (limit.op_type not in LIMITS or limit.domain or limit.graph is not self.product.graph):
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
            stamp=self.stamp,
        )
        reshape.outputs[0].metadata_props.update(last.metadata_props)
        last.replace_all_uses_with(reshape.outputs[0], replace_graph_outputs=True)
        if limit is None:
            self.scope.insert_before(self._last, reshape)
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
            stamp=self.stamp,
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
            stamp=self.stamp,
        )
        self.scope.insert_before(self.product, made)
        return made

    def _sizes(self) -> tuple[int, int]:
        """Rows and columns of the matrix that the product reads."""
        stored = query.constant_tensor(self.product.inputs[1] if self.transposed is None else self.transposed)
        assert stored is not None
        rows, columns = stored.shape.numpy()
        return (rows, columns) if self.transposed is None else (columns, rows)
