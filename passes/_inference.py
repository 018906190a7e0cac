"""Types and shapes that the file does not state, inferred on a copy so that the model stays as it is."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import query, shapes, walk


class Inferred:
    """Types and shapes of all values of a model as it is now, those of the file first; rewriting may follow."""

    def __init__(self, model: ir.Model) -> None:
        copy = model.clone()
        shapes.infer(copy)
        self._twins: dict[int, ir.Value] = {}
        for scope, other in zip(walk.scopes(model), walk.scopes(copy), strict=True):
            for mine, theirs in zip(walk.values(scope), walk.values(other), strict=True):
                self._twins[id(mine)] = theirs

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Element type of `value`, or None where it is unknown."""
        if value is None or value.dtype is not None:
            return None if value is None else value.dtype
        twin = self._twins.get(id(value))
        return None if twin is None else twin.dtype

    def shape(self, value: ir.Value | None) -> tuple[int | None, ...] | None:
        """Sizes of `value`, None for a symbolic one; None where even the rank is unknown."""
        if value is None:
            return None
        shape = value.shape
        if query.static_shape(value) is None:
            twin = self._twins.get(id(value))
            shape = twin.shape if twin is not None and twin.shape is not None else shape
        return None if shape is None else tuple(d if isinstance(d, int) else None for d in shape)

    def rank(self, value: ir.Value | None) -> int | None:
        """Number of dimensions of `value`, or None."""
        if value is not None and value.shape is not None:
            return len(value.shape)
        shape = self.shape(value)
        return None if shape is None else len(shape)
