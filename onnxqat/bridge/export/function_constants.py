"""Constants of calls of integer functions, which follow from scales and weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from torch import Tensor

from onnxqat.graph import io, query
from onnxqat.integer_functions import calls
from onnxqat.integer_functions.calls import Place
from onnxqat.integer_functions.definition import DOMAIN, CodeGrid

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class FunctionConstants:
    """The calls of a model, as their file has them.

    Attributes:
        places: in graph order.
        weights: names of the float tensors that are constants of calls in the file.
    """

    places: tuple[Place, ...] = ()
    weights: frozenset[str] = frozenset()

    def values(self, tensors: Mapping[str, Tensor], current: Callable[[str], Array]) -> dict[str, Array]:
        """Return constants that are no longer those of the file, by their names.

        Args:
            tensors: float tensors of the module, by name.
            current: gives the value that a constant of the file will have.
        """
        found: dict[str, Array] = {}
        for here in self.places:
            weights = {
                name: tensors[calls.weight_name(here, name)].cpu().numpy().astype(np.float64)
                for name in here.function.weights
                if calls.weight_name(here, name) in tensors
            }
            x = [_grid(source, here.function.x, current) for source in here.sources]
            y = _grid(here.result, here.function.y, current)
            made = here.function.constants_of(x, y, here.call(weights))
            found |= {str(value.name): made[name] for name, value in here.constants.items()}
        return found


def _grid(node: ir.Node, storage: str, current: Callable[[str], Array]) -> CodeGrid:
    """Grid of a quantizer once the file is written; its scale and zero point have one element."""
    scale = node.inputs[1]
    zero = query.input_at(node, 2)
    assert scale is not None
    code = 0 if zero is None else int(current(str(zero.name)).reshape(()))
    return CodeGrid(float(np.float32(current(str(scale.name)).reshape(()))), code, storage)


def of_model(model: ir.Model) -> FunctionConstants:
    """Find the calls of `model`."""
    found = tuple(calls.places(model)) if any(key[0] == DOMAIN for key in model.functions) else ()
    names = {calls.weight_name(here, name) for here in found for name in here.function.weights}
    return FunctionConstants(found, frozenset(names))


def of_proto(proto: onnx.ModelProto, source: io.ModelSource) -> FunctionConstants:
    """Find the calls of `proto`, which is read from `source` where it has any."""
    has_functions = any(function.domain == DOMAIN for function in proto.functions)
    return of_model(io.load(source)) if has_functions else FunctionConstants()
