"""MatMulNBits with constant codes as a DequantizeLinear in blocks, so that its weight gets a float master; and back.

The operator keeps several codes in a byte, one scale per block of a row. As a quantizer of stored integers the layer
trains like any other; written back, the codes are packed as they were. Left as they are: zero points that are floats,
scales of 0, constants that something else reads too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph import query, walk

NOTE = "onnxqat.packing"  # key of a value's in-memory notes
BLOCKED_OPSET = 21  # of DequantizeLinear in blocks
CODES, SCALES, ZERO_POINTS = 1, 2, 3

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Packing:
    """Layout of a matrix of codes in bytes: each row on its own, low bits first, padded at its end.

    Attributes:
        bits: bits per code; 2, 4 or 8.
        rows: rows of the matrix.
        columns: columns of the matrix.
        centred: whether codes are seen less ``2 ** (bits - 1)``, the zero point where none is stated.
    """

    bits: int
    rows: int
    columns: int
    centred: bool

    def unpack(self, packed: Array) -> Array:
        """The codes (rows, columns), int8 where centred, else uint8."""
        codes = self._unpacked(packed)[:, : self.columns]
        return (codes.astype(np.int16) - 2 ** (self.bits - 1)).astype(np.int8) if self.centred else codes

    def pack(self, codes: Array, packed: Array) -> Array:
        """Return `packed` with other codes; the padding of rows stays."""
        every = self._unpacked(packed)
        every[:, : self.columns] = codes.astype(np.int16) + 2 ** (self.bits - 1) * self.centred
        shifted = every.reshape(self.rows, -1, 8 // self.bits) << self._shifts()
        return np.asarray(np.bitwise_or.reduce(shifted, axis=-1).astype(np.uint8).reshape(packed.shape))

    def _unpacked(self, packed: Array) -> Array:
        spread = packed.reshape(self.rows, -1, 1) >> self._shifts() & np.uint8(2**self.bits - 1)
        return np.asarray(spread.astype(np.uint8).reshape(self.rows, -1))

    def _shifts(self) -> Array:
        return np.arange(0, 8, self.bits, dtype=np.uint8)


def packings(values: Iterable[ir.Value]) -> dict[str, Packing]:
    """Return the packing in the file of those of `values` that :func:`expose` unpacked, by name."""
    return {str(v.name): found for v in values if isinstance(found := v.meta.get(NOTE), Packing)}


def expose(model: ir.Model) -> None:
    """Put DequantizeLinear in front of each MatMulNBits whose weight can have a master; the model is changed."""
    made: dict[tuple[int, ...], ir.Value] = {}
    for node in list(walk.nodes(model)):
        if node.op_type != "MatMulNBits" or node.domain != "com.microsoft":
            continue
        key = tuple(id(v) for v in node.inputs[CODES : ZERO_POINTS + 1])
        if key not in made:  # else the layers share a weight, and are alike: see _is_own
            layout = _layout(node)
            if layout is None:
                continue
            made[key] = _dequantized(node, *layout)
        node.replace_input_with(CODES, made[key])
        for index in (SCALES, ZERO_POINTS):
            if index < len(node.inputs):
                node.replace_input_with(index, None)


def _layout(node: ir.Node) -> tuple[Packing, int] | None:
    """Return the packing of the weight and the size of a block; None where the node stays as it is."""
    rows, columns, block = (int(query.attribute(node, name, 0)) for name in ("N", "K", "block_size"))
    bits = int(query.attribute(node, "bits", 4))
    prepacked = int(query.attribute(node, "weight_prepacked", 0))
    given = [*node.inputs, None, None, None, None]
    codes, scales, zeros, group = given[CODES : ZERO_POINTS + 2]
    if bits not in (2, 4, 8) or prepacked or group is not None or min(rows, columns, block) < 1:
        return None
    blocks = -(-columns // block)
    sizes = {
        CODES: rows * blocks * block * bits // 8,
        SCALES: rows * blocks,
        ZERO_POINTS: rows * -(-blocks * bits // 8),
    }
    for index, value in ((CODES, codes), (SCALES, scales), (ZERO_POINTS, zeros)):
        array = query.constant_array(value)
        if value is None and index == ZERO_POINTS:
            continue
        if value is None or array is None or array.size != sizes[index] or not _is_own(node, value, index):
            return None
        wrong_type = index != SCALES and array.dtype != np.uint8
        if wrong_type or (index == SCALES and not (np.isfinite(array) & (array != 0)).all()):
            return None
    return Packing(bits, rows, columns, zeros is None), block


def _is_own(node: ir.Node, value: ir.Value, index: int) -> bool:
    """Check whether `value` is an initializer that only layers like `node` read."""
    if value.producer() is not None or value.is_graph_input() or value.is_graph_output():
        return False
    form = _form(node)
    return all(
        place == index
        and other.op_type == "MatMulNBits"
        and other.inputs[1:5] == node.inputs[1:5]
        and _form(other) == form
        for other, place in value.uses()
    )


def _form(node: ir.Node) -> list[Any]:
    """Sizes and widths that say how the weights of a MatMulNBits are packed."""
    return [query.attribute(node, name, 0) for name in ("N", "K", "block_size", "bits")]


def _dequantized(node: ir.Node, layout: Packing, block: int) -> ir.Value:
    """The weight as the result of a new DequantizeLinear in front of `node`."""
    blocks = -(-layout.columns // block)
    given = list(node.inputs[CODES : ZERO_POINTS + 1])
    parts = [layout, None, dataclasses.replace(layout, columns=blocks)]
    kind = ir.DataType[f"{'' if layout.centred else 'U'}INT{layout.bits}"]
    for value, part in zip(given, parts, strict=False):
        if value is None:
            continue
        array = query.constant_array(value)
        assert array is not None
        if part is None:
            tensor = ir.Tensor(np.asarray(array).reshape(layout.rows, blocks), name=value.name)
        else:
            tensor = ir.Tensor(part.unpack(array).astype(kind.numpy()), dtype=kind, name=value.name)
            value.meta[NOTE] = part
        value.const_value = tensor
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
    scales = given[SCALES - CODES]
    assert scales is not None
    assert given[0] is not None
    result = ir.Value(
        name=f"{given[0].name}_dequantized",
        type=scales.type,
        shape=ir.Shape([layout.rows, layout.columns]),
    )
    added = ir.node(
        "DequantizeLinear",
        [v for v in given if v is not None],
        {"axis": 1, "block_size": block},
        outputs=[result],
        version=BLOCKED_OPSET,
    )
    assert node.graph is not None
    node.graph.insert_before(node, added)
    return result
