"""Operators on codes (QLinearConv, QGemm) become float operators between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import build, data_movement, edit, qdq, quantized_forms, query, scale_defects, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, remove_with_constants
from onnxqat.passes._inference import Inferred
from onnxqat.passes._qoperator_rules import FORMS, Form, Operand, RankOf
from onnxqat.passes.raise_opset import RaiseOpset

PER_AXIS_OPSET = 13  # the first in which DequantizeLinear has an axis
QUANTIZED = "_quantized"  # what onnxruntime's quantizer appends to the names of codes


class QoperatorToQdq(Pass):
    """QOperator form becomes QDQ form: the same grids, codes and constants, written as pairs.

    1. QLinearConv, QLinearMatMul and com.microsoft's QGemm, QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu,
       QLinearSoftmax, QLinearConcat, QLinearWhere, QLinearReduceMean and pools of averages: the float operator, a
       DequantizeLinear in front of each operand and a QuantizeLinear behind.
    2. Integer weights stay as they are, behind a DequantizeLinear. An int32 bias gets one whose scale is the product
       of those of input and weight, as the operator has it.
    3. Data movement on codes (Reshape, Transpose, MaxPool, Pad, Concat of one grid): the same between pairs of that
       grid. A constant of codes that is read on two grids becomes two constants.
    4. Left alone, with the reason: channels last, scales that are computed where a bias needs their product, one
       scale per row, dynamic quantization, and operators on codes without a row here.

    Names of tensors, nodes and constants stay; new ones derive from them.

    Tolerance: ties. The operator multiplies its accumulator by one float32 factor, the pairs divide a float sum by
    the scale: results differ by one code where that falls on either side of a half. onnxruntime's default session
    makes the same operators of the pairs. ::

        y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz, b)
        c = Conv(DequantizeLinear(x, xs, xz), DequantizeLinear(w, ws, wz), DequantizeLinear(b, xs * ws))
        y = QuantizeLinear(c, ys, yz)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Rewrite; see the class."""
        log = Log()
        if not any(quantized_forms.is_qoperator(n) or qdq.is_quantize(n) for n in walk.nodes(model)):
            return log.result()
        inferred = Inferred(model)
        for scope in walk.scopes(model):
            stamp = {build.CREATED_BY: self.name}
            _Scope(scope, context.names, log, query.opset(model, scope), inferred.rank, stamp).rewrite()
        if log.changed:
            edit.remove_unused(model)
        return log.result()


def to_qdq_form() -> list[Pass]:
    """Return the passes that make QDQ form of QOperator form, whatever the opset."""
    return [RaiseOpset(PER_AXIS_OPSET), QoperatorToQdq()]


@dataclasses.dataclass(frozen=True)
class _Grid:
    """Scale and zero point that codes were made with."""

    scale: ir.Value
    zero_point: ir.Value | None

    def same(self, other: _Grid | None) -> bool:
        """Return True where the constants are the same values of the graph."""
        return other is not None and self.scale is other.scale and self.zero_point is other.zero_point


class _Scope:
    """One scope under the rewrite."""

    def __init__(
        self, scope: walk.Scope, names: build.Names, log: Log, opset: int, rank_of: RankOf, stamp: dict[str, str]
    ) -> None:
        self.scope, self.names, self.log, self.opset, self.stamp = scope, names, log, opset, stamp
        self.rank_of = rank_of
        self.grids: dict[int, _Grid] = {}
        self.floats: dict[tuple[int, int, int], ir.Value] = {}
        self.held: list[ir.Value | None] = []  # values of the keys, which no new ones may take the ids of

    def rewrite(self) -> None:
        """Rewrite the nodes in their order; grids are handed on from producers to consumers."""
        for node in list(self.scope):
            form = FORMS.get((node.domain, node.op_type))
            if qdq.is_quantize(node):
                self._note(node.outputs[0], node.inputs[1], query.input_at(node, 2))
            elif form is not None:
                self._convert(node, form(node, self.rank_of))
            elif any(id(v) in self.grids for v in node.inputs) and not qdq.is_dequantize(node):
                self._move(node)

    def _note(self, codes: ir.Value, scale: ir.Value | None, zero_point: ir.Value | None) -> None:
        if scale is not None:
            self.grids[id(codes)] = _Grid(scale, zero_point)
            self.held.append(codes)

    def _convert(self, node: ir.Node, form: Form | str) -> None:
        """Replace an operator on codes by its float operator between pairs, or log the reason for which it stays."""
        reason = form if isinstance(form, str) else self._refusal(node, form)
        if reason is not None or isinstance(form, str):
            self.log.left(f"{node.op_type} stays as it is: {reason}", node)
            return
        read = [node.inputs[i] for i in form.plain]
        read += [self._dequantized(node, operand) for operand in form.operands]
        if form.bias is not None:
            read.append(self._bias(node, form))
        output = node.outputs[0]
        base = str(output.name)
        name = self.names.fresh(base.removesuffix(QUANTIZED) if base.endswith(QUANTIZED) else f"{base}_float")
        made = build.node(
            form.op_type,
            read,
            [name if form.scale is not None else base],
            self._attributes(form),
            dtype=ir.DataType.FLOAT,
            shape=output.shape,
            name=node.name,
            stamp=self.stamp,
        )
        if form.op_type == "ReduceMean" and self.opset >= 18:  # axes became an input
            axes = np.asarray(form.attributes["axes"], np.int64)
            made.resize_inputs(2)
            made.replace_input_with(1, build.constant(self.scope, self.names.fresh(f"{name}_axes"), axes, before=node))
        self.scope.insert_before(node, made)
        result = made.outputs[0]
        if form.scale is not None:
            scale = node.inputs[form.scale]
            zero = self._fitted(node, scale, query.input_at(node, form.zero_point))
            zero = zero or self._zero(node, output.dtype or node.inputs[form.operands[0].codes].dtype)  # type: ignore[union-attr]
            result = self._quantized(node, result, scale, zero, output)
        self._replace(node, output, result)
        self.log.did("operators on codes became float operators between pairs", made)

    def _refusal(self, node: ir.Node, form: Form) -> str | None:
        per_channel = any(operand.axis is not None for operand in form.operands)
        if per_channel and self.opset < PER_AXIS_OPSET:
            return f"scales per channel need opset {PER_AXIS_OPSET}"
        if form.op_type == "ReduceMean" and self.opset >= 18 and "axes" not in form.attributes:
            return "its axes are not stated"
        if form.bias is not None and any(query.constant_array(node.inputs[o.scale]) is None for o in form.operands):
            return "the scale of its bias is computed"
        places = [o.scale for o in form.operands] + ([] if form.scale is None else [form.scale])
        for scale in filter(None, (query.constant_tensor(node.inputs[place]) for place in places)):
            problem = scale_defects.defect(np.asarray(scale.numpy(), np.float32))
            if problem:
                return f"its scale {scale.name!r} {problem}"
        for operand in form.operands:
            misfit = _misfit(node, operand.scale, operand.zero_point, spread=operand.axis is not None)
            if misfit:
                return misfit
        return None if form.scale is None else _misfit(node, form.scale, form.zero_point, spread=False)

    def _attributes(self, form: Form) -> dict[str, object]:
        if form.op_type == "ReduceMean" and self.opset >= 18:
            return {name: value for name, value in form.attributes.items() if name != "axes"}
        return form.attributes

    def _dequantized(self, node: ir.Node, operand: Operand) -> ir.Value | None:
        codes, scale = node.inputs[operand.codes], node.inputs[operand.scale]
        zero = self._fitted(node, scale, query.input_at(node, operand.zero_point))
        return self._float(node, codes, scale, zero, operand.axis)

    def _fitted(self, node: ir.Node, scale: ir.Value | None, zero: ir.Value | None) -> ir.Value | None:
        """`zero` in the shape of `scale`, which a pair needs and an operator on codes does not."""
        array, size = query.constant_array(zero), query.constant_array(scale)
        if zero is None or array is None or size is None or array.shape == size.shape:
            return zero
        name = self.names.fresh(f"{zero.name}_{'channels' if size.size > array.size else 'shaped'}")
        values = np.broadcast_to(array.reshape(-1), size.size).reshape(size.shape).copy()
        return build.constant(self.scope, name, values, zero.dtype, before=node)

    def _float(
        self,
        before: ir.Node,
        codes: ir.Value | None,
        scale: ir.Value | None,
        zero: ir.Value | None,
        axis: int | None = None,
    ) -> ir.Value | None:
        """The dequantized value of `codes`, one for all that read it with the same parameters."""
        if codes is None or scale is None:
            return None
        key = id(codes), id(scale), id(zero)
        if key not in self.floats:
            base = str(codes.name)
            held = query.constant_tensor(codes)
            if held is not None and any(other == id(codes) for other, *_ in self.floats):
                # Codes that are read on two grids are two constants, each to be trained on its own.
                codes = build.constant(self.scope, self.names.fresh(base), held.numpy(), held.dtype, before=before)
            made = build.node(
                qdq.DEQUANTIZE,
                [codes, scale] if zero is None else [codes, scale, zero],
                [self.names.fresh(f"{base.removesuffix(QUANTIZED)}_{qdq.DEQUANTIZED}")],
                {} if axis is None else {"axis": axis},
                dtype=ir.DataType.FLOAT,
                shape=codes.shape,
                name=self.names.fresh(f"{base}_{qdq.DEQUANTIZE}"),
                stamp=self.stamp,
            )
            self.scope.insert_before(before, made)
            self.floats[key] = made.outputs[0]
            self.held += [codes, scale, zero]
        return self.floats[key]

    def _bias(self, node: ir.Node, form: Form) -> ir.Value | None:
        scales = [query.constant_array(node.inputs[o.scale]) for o in form.operands]
        assert form.bias is not None
        assert scales[0] is not None
        assert scales[1] is not None
        bias = node.inputs[form.bias]
        factor = np.float32(form.bias_factor)
        product = np.asarray(numerics.bias_scale(scales[0].reshape(()), scales[1]) * factor, np.float32)
        product = product.reshape(()) if product.size == 1 else product
        base = "bias" if bias is None else str(bias.name).removesuffix(QUANTIZED)
        scale = build.constant(self.scope, self.names.fresh(f"{base}_scale"), product, before=node)
        zeros = np.zeros(product.shape, np.int32)
        zero = build.constant(self.scope, self.names.fresh(f"{base}_zero_point"), zeros, before=node)
        rank = query.rank(bias) or 1
        return self._float(node, bias, scale, zero, rank - 1 if product.ndim else None)

    def _zero(self, node: ir.Node, dtype: ir.DataType | None) -> ir.Value:
        """Zero point 0 where the operator omits it: QuantizeLinear would take it for uint8."""
        kind = dtype or ir.DataType.UINT8
        name = self.names.fresh(f"{node.outputs[0].name}_zero_point")
        return build.constant(self.scope, name, np.zeros((), kind.numpy()), kind, before=node)

    def _quantized(
        self, before: ir.Node, value: ir.Value, scale: ir.Value | None, zero: ir.Value | None, like: ir.Value
    ) -> ir.Value:
        made = build.node(
            qdq.QUANTIZE,
            [value, scale] if zero is None else [value, scale, zero],
            [str(like.name)],
            dtype=like.dtype or (zero.dtype if zero is not None else ir.DataType.UINT8),
            shape=like.shape,
            name=self.names.fresh(f"{value.name}_{qdq.QUANTIZE}"),
            stamp=self.stamp,
        )
        self.scope.insert_before(before, made)
        self._note(made.outputs[0], scale, zero)
        return made.outputs[0]

    def _replace(self, node: ir.Node, old: ir.Value, new: ir.Value) -> None:
        if new.type is None:
            new.type = old.type
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        remove_with_constants(node)

    def _move(self, node: ir.Node) -> None:
        """Data movement on codes: the operator moves the floats, and its results are quantized on the same grid."""
        parts = _moved_parts(node)
        held = [self.grids.get(id(part)) for part in parts]
        if not parts or held[0] is None or not all(held[0].same(grid) for grid in held):
            self.log.left(f"{node.op_type} reads codes and stays as it is", node)
            return
        grid = held[0]
        read = [
            self._float(node, v, grid.scale, grid.zero_point) if any(v is part for part in parts) else v
            for v in node.inputs
        ]
        if node.op_type == "Pad" and query.mode(node) == "constant":
            read = self._padded(node, read, grid)
        counted = 1 if node.op_type in ("MaxPool", "Dropout") else len(node.outputs)  # then come indices, or a mask
        made = ir.Node(
            node.domain,
            node.op_type,
            read,
            list(node.attributes.values()),
            outputs=[self._moved(value) if i < counted else _like(value) for i, value in enumerate(node.outputs)],
            name=node.name,
            doc_string=node.doc_string,
            metadata_props={**node.metadata_props, **self.stamp},
        )
        self.scope.insert_before(node, made)
        results = [
            self._quantized(node, value, grid.scale, grid.zero_point, old) if i < counted else value
            for i, (value, old) in enumerate(zip(made.outputs, node.outputs, strict=True))
        ]
        for old, new in zip(node.outputs, results, strict=True):
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        self.scope.remove(node, safe=True)
        self.log.did("data movement on codes stands between pairs", made)

    def _padded(self, node: ir.Node, read: list[ir.Value | None], grid: _Grid) -> list[ir.Value | None]:
        """Inputs of a Pad with the float value of the code that it fills with, 0 where the node states none."""
        fill = read[2] if len(read) > 2 else None
        if fill is None:
            kind = grid.zero_point.dtype if grid.zero_point is not None else None
            kind = kind or ir.DataType.UINT8
            name = self.names.fresh(f"{node.outputs[0].name}_fill")
            fill = build.constant(self.scope, name, np.zeros((), kind.numpy()), kind, before=node)
        return [*read[:2], self._float(node, fill, grid.scale, grid.zero_point), *read[3:]]

    def _moved(self, codes: ir.Value) -> ir.Value:
        """The float value behind codes that were moved."""
        base = str(codes.name)
        name = self.names.fresh(base.removesuffix(QUANTIZED) if base.endswith(QUANTIZED) else f"{base}_float")
        shape = None if codes.shape is None else codes.shape.copy()
        return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=shape)


def _like(value: ir.Value) -> ir.Value:
    shape = None if value.shape is None else value.shape.copy()
    return ir.Value(name=value.name, type=value.type, shape=shape)


def _moved_parts(node: ir.Node) -> list[ir.Value]:
    """Inputs whose elements make up the results of `node`, that of a Pad with a constant among them."""
    constant = node.op_type == "Pad" and not node.domain and query.mode(node) == "constant"
    first = node.inputs[0] if constant else None
    return data_movement.sources(node) if first is None else [first]


def _misfit(node: ir.Node, scale: int, zero_point: int | None, *, spread: bool) -> str | None:
    """Reason why scale and zero point make no pair; with `spread` one zero point serves a scale for each channel."""
    sizes = query.constant_array(node.inputs[scale])
    zeros = None if zero_point is None else query.constant_array(query.input_at(node, zero_point))
    if sizes is None or zeros is None or zeros.size == sizes.size or (spread and zeros.size == 1):
        return None
    return f"it has {sizes.size} scales and {zeros.size} zero points"
