"""Einsum of two operands as a MatMul, which targets have on integers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused
from onnxqat.passes._parts import Parts
from onnxqat.passes._selective import SelectivePass
from onnxqat.passes._setting import Setting

FIRST_OPSET = 13
"""From here on the axes of Unsqueeze and Squeeze are an input."""


class EinsumToMatmul(SelectivePass):
    """An Einsum that sums two operands over one index becomes Transpose, MatMul and Transpose.

    No table has a kernel on integers for it, so that it would run in float; MatMul most have.

    1. A constant operand is the second of the MatMul, as weights are, and is transposed in the file.
    2. Indices of one operand alone are all axes of the product but the last, where the other operand has 1.
    3. The last operator keeps the names of node and result.
    4. Left alone, with the reason: other numbers of operands, an ellipsis, an index twice in one operand, a sum over no
       index, over several or over one that a single operand has, operator sets before 13, and functions, which state no types.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        y = Einsum<equation = "bqd,bkd->bqk">(q, k)
        t = Transpose<perm = [0, 2, 1]>(k)  y = MatMul(q, t)
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for tables with a row for MatMul and none for Einsum."""
        return cls(setting) if "MatMul" in setting.operators and "Einsum" not in setting.operators else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Write out; see the class."""
        log, stamp = Log(), {build.CREATED_BY: self.name}
        for scope, node in walk.nodes_to_edit(model):
            if node.op_type != "Einsum" or node.domain or node.outputs[0].dtype != ir.DataType.FLOAT:
                continue
            if self.stays_float(node):
                continue
            found = _product(node) if query.opset(model, scope) >= FIRST_OPSET else "the operator set is too old"
            if isinstance(found, str):
                log.left(f"Einsum stays: {found}", node)
                continue
            _write(Parts(scope, node, context.names, stamp), found)
            log.did("Einsum became MatMul", node)
        return log.result()


@dataclasses.dataclass(frozen=True)
class _Product:
    """A product of matrices by the letters of an equation.

    Attributes:
        operands: of the MatMul, with the letters of their axes.
        shared: letters that both have and the result has too.
        first: letters that the first operand alone has.
        second: letters that the second operand alone has.
        summed: the letter over which the product sums.
        result: letters of the result.
        sizes: of the letters, as far as they are known.
    """

    operands: tuple[tuple[ir.Value, str], tuple[ir.Value, str]]
    shared: str
    first: str
    second: str
    summed: str
    result: str
    sizes: Mapping[str, Any]

    def shape(self, letters: Sequence[str]) -> ir.Shape:
        """Shape of a tensor with these axes; an empty letter is an axis of size 1."""
        return ir.Shape([self.sizes.get(letter) if letter else 1 for letter in letters])


def _product(node: ir.Node) -> _Product | str:
    """Return the product that an Einsum is, or the reason why it is none."""
    equation = str(query.attribute(node, "equation", "")).replace(" ", "")
    given, arrow, result = equation.partition("->")
    terms, values = given.split(","), [value for value in node.inputs if value is not None]
    if len(terms) != 2 or len(values) != 2:
        return "it has not two operands"
    if "." in equation:
        return "its equation has an ellipsis"
    if any(len(set(term)) < len(term) for term in (*terms, result)):
        return "an index is twice in one operand"
    if not arrow:
        result = "".join(sorted(letter for letter in set("".join(terms)) if "".join(terms).count(letter) == 1))
    sides = list(zip(values, terms, strict=True))
    if query.constant_tensor(values[0]) is not None and query.constant_tensor(values[1]) is None:
        sides.reverse()
    (a, of_a), (b, of_b) = sides
    summed = [letter for letter in of_a if letter in of_b and letter not in result]
    if len(summed) != 1:
        return "it sums over no index or several"
    first, second = ("".join(c for c in mine if c not in other) for mine, other in ((of_a, of_b), (of_b, of_a)))
    if not set(first + second) <= set(result):
        return "it sums over an index of one operand"
    sizes: dict[str, Any] = {}
    for value, term in ((a, of_a), (b, of_b)):
        if value.shape is None or value.shape.rank() != len(term):
            return "the rank of an operand is unknown"
        for letter, size in zip(term, value.shape, strict=True):
            if isinstance(size, int) and isinstance(sizes.get(letter, size), int) and sizes.get(letter, size) != size:
                return "an operand is repeated along an axis"
            sizes[letter] = sizes[letter] if isinstance(sizes.get(letter), int) else size
    shared = "".join(letter for letter in result if letter in of_a and letter in of_b)
    return _Product(((a, of_a), (b, of_b)), shared, first, second, summed[0], result, sizes)


def _write(parts: Parts, product: _Product) -> None:
    """Put the operators in the place of the node."""
    shared, summed = list(product.shared), product.summed
    *of_first, row = list(product.first) or [""]
    *of_second, column = list(product.second) or [""]
    # Where one operand alone has further axes, MatMul repeats the other one along them by itself.
    plain = not shared and not (of_first and of_second)
    inner = [*of_first, *of_second]
    left = [*shared, *([] if plain and not of_first else inner), row, summed]
    right = [*shared, *([] if plain and not of_second else inner), summed, column]
    operands = [
        _arranged(parts, product, value, letters, [c if c in letters else "" for c in axes])
        for (value, letters), axes in zip(product.operands, (left, right), strict=True)
    ]
    axes = [*shared, *inner, row, column]
    found = parts.made("MatMul", *operands, shape=product.shape(axes))
    if gone := [place for place, letter in enumerate(axes) if not letter]:
        axes = [letter for letter in axes if letter]
        found = parts.made("Squeeze", found, gone, shape=product.shape(axes))
    if axes != list(product.result):
        order = [axes.index(letter) for letter in product.result]
        found = parts.made("Transpose", found, shape=product.shape(list(product.result)), attributes={"perm": order})
    read = [value for value, _ in product.operands]
    parts.close(found)
    for value in read:
        drop_unused(value)


def _arranged(parts: Parts, product: _Product, value: ir.Value, letters: str, axes: Sequence[str]) -> ir.Value:
    """Return `value`, whose axes are `letters`, with the axes `axes`, of which empty ones have size 1."""
    order = [letters.index(letter) for letter in axes if letter]
    if order != sorted(order):
        array = query.constant_array(value) if query.reads(value) == 1 and not value.is_graph_output() else None
        if array is not None:
            name = parts.names.fresh(f"{value.name}_matrix")
            value = build.constant(parts.scope, name, array.transpose(order), before=parts.node)
        else:
            shape = product.shape([letters[place] for place in order])
            value = parts.made("Transpose", value, shape=shape, attributes={"perm": order})
    added = [place for place, letter in enumerate(axes) if not letter]
    return parts.made("Unsqueeze", value, added, shape=product.shape(axes)) if added else value
