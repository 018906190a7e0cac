"""What a QDQ file breaks of its backend's table, read from the file alone: the planner has no part in it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.backends.schema import Backend, OpRow, TypeRow
from onnxqat.graph import qdq, query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.types import STORAGE, QParams, first_opset

ROUNDING = 1e-6
PROBABILITIES = ("Sigmoid", "HardSigmoid", "Softmax")


def violations(proto: onnx.ModelProto, table: Backend, left_float: frozenset[str]) -> list[str]:
    """Every broken rule, in words; `left_float` are labels of nodes that the plan leaves out with a reason."""
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    return list(_File(ir.from_proto(inferred), table, left_float).violations())


class _File:
    def __init__(self, model: ir.Model, table: Backend, left_float: frozenset[str]) -> None:
        self.model, self.table, self.left_float = model, table, left_float
        self.found = qdq.quantizers(model, every=True)
        self.by_output = qdq.by_output(self.found)
        self.by_input: dict[int, list[Quantizer]] = {}
        for q in self.found:
            self.by_input.setdefault(id(q.input), []).append(q)

    def violations(self) -> Iterator[str]:
        opset = self.model.opset_imports[""]
        if not self.table.opset[0] <= opset <= self.table.opset[1]:
            yield f"opset {opset}"
        if not self.found:
            yield "nothing is quantized"
        for q in self.found:
            if first_opset(q.qparams.qtype.storage) > opset:
                yield f"{q.tensor}: {q.qparams.qtype.storage} in opset {opset}"
        for node in self.model.graph:
            if any(v.dtype not in (None, ir.DataType.FLOAT) for v in node.outputs):
                continue  # shapes and indices
            if not qdq.is_of_quantizer(node) and query.label(node) not in self.left_float:
                row, passes = self._row(node), self._passes(node)
                if row is not None:
                    yield from (f"{query.label(node)} ({node.op_type}): {text}" for text in self._node(node, row))
                elif passes and self.table.placement == "both":
                    yield from (f"{query.label(node)} ({node.op_type}): {text}" for text in self._moved(node))

    def _row(self, node: ir.Node) -> OpRow | None:
        if node.domain:
            return None
        computed = all(v is None or query.constant_tensor(v) is None for v in map(self._float_of, node.inputs))
        kinds = [query.attribute(node, "mode", None), *["computed"] * computed]
        keys = [*(f"{node.op_type}/{kind}" for kind in kinds), node.op_type]
        return next((self.table.ops[key] for key in keys if key in self.table.ops), None)

    def _float_of(self, value: ir.Value | None) -> ir.Value | None:
        """What was quantized where `value` is dequantized, itself otherwise."""
        found = None if value is None else self.by_output.get(id(value))
        return value if found is None else found.input

    def _passes(self, node: ir.Node) -> bool:
        mode = query.attribute(node, "mode", None)
        return not node.domain and bool({node.op_type, f"{node.op_type}/{mode}"} & set(self.table.passthrough))

    # ------------------------------------------------------------------ nodes with a row
    def _node(self, node: ir.Node, row: OpRow) -> Iterator[str]:
        if self._is_inside_a_chain(node):
            if any(id(v) in self.by_output for v in node.inputs[:1]) and not self._may_be_tied(node):
                yield "a pair inside a fused chain"
            return
        for index, value in enumerate(node.inputs):
            slot = row.input_slot(index)
            if value is None or slot is None:
                continue
            kind = self.table.types[slot.use] if slot.use else None
            q = self._grid_of(value)
            if kind is None or not kind.observed:
                yield from self._bias(node, index, kind, q)
            elif query.constant_tensor(value) is None and q is None and slot.axis is not None and len(row.inputs) == 2:
                continue  # weights alone are quantized, and this one is computed
            elif q is None and row.constants == "float" and query.constant_tensor(value) is not None:
                continue  # the compiler folds it into the grid of the other operand
            elif q is None:
                float_input = value.is_graph_input() and self.table.io.inputs == "float"
                exempt = row.elementwise or self._is_added_to(value) or self._is_inside_a_silu(value)
                if not float_input and not exempt:
                    yield f"input {index} ({value.name}) is not quantized"
            else:
                yield from self._grid(node, row, index, q)
        yield from self._outputs(node, row)
        yield from self._ties(node, row)
        yield from self._shifts(node)

    def _bias(self, node: ir.Node, index: int, kind: TypeRow | None, q: Quantizer | None) -> Iterator[str]:
        if kind is None or kind.dtype == "float":
            if q is not None and q.role != "activation":
                yield f"input {index} is quantized"
            return
        weight = self.by_output.get(id(node.inputs[1]))
        if q is None or q.derived_from is None or weight is None:
            yield f"bias of input {index} is not {kind.dtype}"
            return
        codes = query.constant_array(q.input)
        if codes is None or np.abs(codes.astype(np.int64)).max() >= 2 ** ((kind.bits or 32) - 1):
            yield f"bias codes beyond {kind.bits or 32} bits"

    def _grid(self, node: ir.Node, row: OpRow, index: int, q: Quantizer) -> Iterator[str]:
        slot = row.input_slot(index)
        assert slot is not None
        axis, tied = slot.axis, row.share is not None
        kind, qparams = self.table.types[slot.use or ""], q.qparams
        constant = query.constant_tensor(q.input) is not None
        computed = axis is not None and not constant
        if computed:  # a product of two activations: the other slot's type
            kind = self.table.types[row.inputs[0].use or ""]
        storage = slot.dtype or kind.dtype
        unsigned = kind.unsigned if slot.unsigned is None else slot.unsigned
        twin = unsigned and qparams.qtype.storage == f"u{storage}"
        expected = kind.model_copy(update={"dtype": storage})
        expected = expected.without_sign() if twin else expected
        if self.table.first_last_bits and qparams.qtype == expected.with_bits(self.table.first_last_bits).qtype():
            pass
        elif qparams.qtype != expected.qtype():
            yield f"input {index} has {qparams.qtype}, not {expected.qtype()}"
        symmetric = kind.symmetric if slot.symmetric is None else slot.symmetric
        if symmetric and storage in STORAGE and STORAGE[storage][0] < 0 and qparams.zero_point.any():
            yield f"input {index} has a zero point"
        if kind.scale == "pow2" and not _is_power_of_two(qparams.scale):
            yield f"input {index} has a scale that is no power of two"
        plain = node.op_type != "MatMul" or len(q.input.shape or ()) == 2
        per_channel = constant and axis is not None and kind.granularity != "tensor" and not tied and plain
        if (qparams.axis is None) == per_channel:
            yield f"input {index} has axis {qparams.axis}"
        elif per_channel:
            yield from self._axis(node, index, axis, q, kind)

    def _axis(self, node: ir.Node, index: int, axis: int | str | None, q: Quantizer, kind: TypeRow) -> Iterator[str]:
        rank = len(q.input.shape or ())
        gemm = 0 if query.attribute(node, "transB", 0) else 1
        columns = gemm if node.op_type == "Gemm" else rank - 1
        wanted = {"N": columns, "K": rank - 1 - columns}.get(str(axis), axis)
        assert isinstance(wanted, int)
        if q.qparams.axis != wanted % rank or q.qparams.block_size != kind.block:
            yield f"input {index} has axis {q.qparams.axis} in blocks of {q.qparams.block_size}"

    def _outputs(self, node: ir.Node, row: OpRow) -> Iterator[str]:
        if self.table.placement == "inputs" or not row.outputs or row.outputs[0].use is None:
            return
        value = self._behind(node)
        slot = row.outputs[0]
        if row.float_output and not any(map(qdq.is_quantize, value.consumers())):
            return
        maker, users = value.producer(), value.consumers()
        probability = maker is not None and maker.op_type in PROBABILITIES and dataflow.leads_to_output(value)
        if probability and self.table.io.probabilities == "float":
            return
        if not users or not all(map(qdq.is_quantize, users)):
            exempt = self._is_added_to(value) or self._is_fused_behind(value) or self._is_inside_a_silu(value)
            if self._grid_of(value) is None and not exempt:
                yield f"output {value.name} is read in float"
            return
        q = self.by_input[id(value)][0]
        if slot.fixed is not None and value is node.outputs[0]:
            yield from self._fixed(slot.use or "", slot.fixed, q.qparams)

    def _is_inside_a_silu(self, value: ir.Value) -> bool:
        """Whether `value` is the Sigmoid of a SiLU that the table fuses behind a pair."""
        maker, users = value.producer(), value.consumers()
        if maker is None or maker.op_type != "Sigmoid" or [u.op_type for u in users] != ["Mul"]:
            return False
        fused = any(chain.inner == "pair" and "Silu" in chain.chain[-1] for chain in self.table.fused)
        return fused and maker.inputs[0] in users[0].inputs

    def _is_fused_behind(self, value: ir.Value) -> bool:
        """Whether operators alone read `value` that the compiler computes in float, in one kernel with their neighbours."""
        rows = [(self._row(user), query.label(user) in self.left_float) for user in value.consumers()]
        return bool(rows) and all(left or (row is not None and row.elementwise) for row, left in rows)

    def _is_added_to(self, value: ir.Value) -> bool:
        """Whether an Add alone reads `value`, its other operand is quantized, and the table says that it needs no pair."""
        maker, users = value.producer(), value.uses()
        if maker is None or maker.op_type not in self.table.fused_residual_add or len(users) != 1:
            return False
        ((add, index),) = users
        return add.op_type == "Add" and self._grid_of(add.inputs[1 - index]) is not None

    def _fixed(self, name: str, fixed: object, qparams: QParams) -> Iterator[str]:
        scale, zero_point, ends = (getattr(fixed, key) for key in ("scale", "zero_point", "range"))
        if scale is not None:
            right = np.isclose(qparams.scale, scale, rtol=ROUNDING) and qparams.zero_point == zero_point
        else:
            codes = np.asarray([qparams.qtype.quant_min, qparams.qtype.quant_max]) - qparams.zero_point
            low, high = codes * float(qparams.scale)
            right = low <= ends[0] + float(qparams.scale) and high >= ends[1] - 1.01 * float(qparams.scale)
        if not right:
            yield f"output has scale {qparams.scale} and zero point {qparams.zero_point}, not {fixed}"

    def _ties(self, node: ir.Node, row: OpRow) -> Iterator[str]:
        if row.share is None:
            return
        members = [q for v in node.inputs if v is not None and (q := self.by_output.get(id(v))) is not None]
        if row.share == "io" and self.table.placement == "both":
            members += self.by_input.get(id(self._behind(node)), [])[:1]
        if row.convert and any(not m.qparams.same(members[0].qparams) for m in members[1:]):
            yield f"inputs and output differ: {[(m.tensor, float(m.qparams.scale)) for m in members]}"

    def _shifts(self, node: ir.Node) -> Iterator[str]:
        inputs = [self.by_output.get(id(v)) if v is not None else None for v in node.inputs]
        out = self.by_input.get(id(self._behind(node)), [None])[0]
        positions = [None if q is None or q.derived_from else -np.log2(q.qparams.scale) for q in inputs]
        known = [p for p in positions if p is not None]
        values = {"out": None if out is None else -np.log2(out.qparams.scale), "sum_in": sum(known)}
        values |= {"max_in": max(map(np.max, known), default=None), "min_in": min(map(np.min, known), default=None)}
        values |= {f"in{i}": p for i, p in enumerate(positions)}
        for check in self.table.checks:
            terms = [(sign, values.get(what)) for sign, what in check.terms]
            if node.op_type in check.ops and all(v is not None for _, v in terms):
                total = sum(sign * v for sign, v in terms)
                if np.any(total < check.range[0] - 1e-4) or np.any(total > check.range[1] + 1e-4):
                    yield f"{check.shift} = {total}, not in {check.range}"

    # ------------------------------------------------------------------ chains and data movement
    def _is_inside_a_chain(self, node: ir.Node) -> bool:
        return any(node in members for n in self.model.graph for members in [self._members(n)] if members)

    def _members(self, node: ir.Node) -> list[ir.Node]:
        """What comes behind `node` without a pair between, as far as the table fuses it."""
        first = self._added_bias(node)
        for chain in self.table.fused:
            value, members = (first[-1] if first else node).outputs[0], list[ir.Node]()
            for step in chain.chain[1:] if node.op_type in chain.chain[0] else ():
                users = value.consumers()
                if "Silu" in step and sorted(u.op_type for u in users) == ["Mul", "Sigmoid"]:
                    members = sorted(users, key=lambda u: u.op_type == "Mul")
                elif len(users) == 1 and users[0].op_type in step:
                    members = [users[0]]
            if members:
                return first + members
        return first

    @staticmethod
    def _added_bias(node: ir.Node) -> list[ir.Node]:
        """The Add of a constant behind a product with a stored matrix, which is the bias of that layer."""
        users = node.outputs[0].consumers()
        if node.op_type != "MatMul" or len(users) != 1 or users[0].op_type != "Add":
            return []
        constant = [v for v in users[0].inputs if v is not None and query.constant_tensor(v) is not None]
        return [users[0]] if constant else []

    def _may_be_tied(self, node: ir.Node) -> bool:
        return any(chain.when == "clip_is_redundant" and node.op_type in chain.chain[1] for chain in self.table.fused)

    def _behind(self, node: ir.Node) -> ir.Value:
        members = self._members(node)
        return (members[-1] if members else node).outputs[0]

    def _grid_of(self, value: ir.Value) -> Quantizer | None:
        """The quantizer whose grid `value` lies on; behind data movement that of its inputs, for a table that says so."""
        found, node = self.by_output.get(id(value)), value.producer()
        if found is not None or node is None or self.table.data_movement == "pair":
            return found
        row = self._row(node)
        tied = node.op_type == "Concat" and row is not None and row.share == "io"
        moved = [v for v in node.inputs if v is not None] if tied else list(node.inputs[:1]) * self._passes(node)
        grids = [None if v is None else self._grid_of(v) for v in moved]
        alike = bool(grids) and all(g and grids[0] and g.qparams.same(grids[0].qparams) for g in grids)
        return grids[0] if alike else None

    def _moved(self, node: ir.Node) -> Iterator[str]:
        value = node.inputs[0]
        source = self._grid_of(value) if value is not None else None
        if self.table.data_movement == "no_pair" and source is not None:
            return
        for output in node.outputs:
            made = self.by_input.get(id(output), [None])[0]
            if (source is None) != (made is None):
                if output.consumers() and not (source is not None and output.is_graph_output()):
                    yield "only one side of data movement is quantized"
            elif source is not None and made is not None and not source.qparams.same(made.qparams):
                yield f"data movement changes the grid from {source.qparams.scale} to {made.qparams.scale}"


def _is_power_of_two(scale: np.ndarray) -> bool:
    return bool((np.frexp(scale)[0] == 0.5).all())
