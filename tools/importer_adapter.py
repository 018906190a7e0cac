"""Adapter of the bridge for a harness that runs ONNX's backend tests: load a model, run it on numpy arrays."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

import onnxqat
from onnxqat.bridge.importing import values
from onnxqat.bridge.importing.importer import OnnxModule, to_torch
from onnxqat.errors import ModelError, UnsupportedError


class Onnxqat:
    """The bridge, quantizers on."""

    name = "onnxqat"
    UNSUPPORTED = (UnsupportedError, ModelError)

    def version(self) -> str:
        torch.set_num_threads(1)
        return onnxqat.__version__

    def load(self, model: onnx.ModelProto) -> OnnxModule:
        return to_torch(model)

    def run(self, handle: OnnxModule, inputs: dict[str, np.ndarray], outputs: list[str]) -> list[np.ndarray]:
        given = [self._tensor(inputs[name]) for name in handle.input_names]
        with torch.no_grad():
            result = handle(*given)
        found = result if isinstance(result, tuple) else (result,)
        return [self._array(value, kind) for value, kind in zip(found, handle.output_types, strict=True)]

    def is_unsupported(self, error: Exception, phase: str) -> bool:
        # torch has no kernels for some element types; an error is a refusal, not a wrong number.
        return isinstance(error, (NotImplementedError, RuntimeError)) and "not implemented for" in str(error)

    @staticmethod
    def grad(handle: OnnxModule, inputs: dict[str, np.ndarray]) -> str:
        given = [Onnxqat._tensor(inputs[name]) for name in handle.input_names]
        leaves = [g for g in pytree.tree_leaves(given) if isinstance(g, torch.Tensor)]
        floats = [g.requires_grad_() for g in leaves if g.is_floating_point() and g.element_size() > 1]
        results = [r for r in pytree.tree_leaves(handle(*given)) if isinstance(r, torch.Tensor)]
        found = [r for r in results if r.requires_grad]
        if not floats or not found:
            return "n/a" if not floats else "none"
        sum(r.sum() for r in found).backward()
        gradients = [f.grad for f in floats if f.grad is not None]
        if not gradients:
            return "none"
        return "ok" if all(torch.isfinite(g).all() for g in gradients) else "nonfinite"

    @staticmethod
    def _tensor(array: Any) -> Any:
        if array is None or isinstance(array, (list, tuple)):
            return None if array is None else [Onnxqat._tensor(element) for element in array]
        if not isinstance(array, (np.ndarray, np.generic)):
            raise UnsupportedError("operator-unsupported", f"an input of type {type(array).__name__}")
        array = np.asarray(array)
        try:
            dtype = ir.DataType.from_numpy(array.dtype)
            return values.tensor(array, dtype)
        except TypeError as error:
            raise UnsupportedError("operator-unsupported", f"input type: {error}") from None

    @staticmethod
    def _array(value: Any, kind: str) -> Any:
        if value is None or isinstance(value, (list, tuple)):
            return None if value is None else [Onnxqat._array(element, kind) for element in value]
        held = {dtype: name for name, dtype in values.TORCH_DTYPES.items()}
        return values.array(value, ir.DataType[kind] if kind else held[value.dtype])
