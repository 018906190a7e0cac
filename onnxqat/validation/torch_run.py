"""The torch bridge as one of the runs that are compared; torch is imported only here, inside functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import onnx_ir as ir

from onnxqat.data.sources import as_array
from onnxqat.errors import UnsupportedError
from onnxqat.graph.quantizer import Quantizer
from onnxqat.types import Remark

if TYPE_CHECKING:
    from onnxqat.bridge.module import OnnxModule

Array = npt.NDArray[Any]


class TorchRun:
    """A QDQ model as a torch module on the CPU, in evaluation mode.

    Attributes:
        known: tensors that :meth:`run` can return besides the outputs.
    """

    def __init__(self, module: OnnxModule) -> None:
        self._module = module.eval()
        self.known = frozenset(module.tensor_nodes)
        self._calls = {node.name: str(node.target) for node in module.graph.nodes if node.op == "call_module"}

    def run(self, feeds: Mapping[str, Array], names: Sequence[str] = ()) -> dict[str, Array]:
        """The graph outputs and the tensors `names` (those in :attr:`known`) by name."""
        import torch

        from onnxqat.bridge.importing.importer import capture
        from onnxqat.bridge.importing.values import as_input

        pairs = zip(self._module.input_names, self._module.input_types, strict=True)
        arguments = [as_input(torch.tensor(feeds[name]), kind) for name, kind in pairs]
        inner = [name for name in names if name in self.known]
        with torch.inference_mode():
            if inner:
                result, found = capture(self._module, inner)(*arguments)
            else:
                result, found = self._module(*arguments), {}
        outputs = result if isinstance(result, tuple) else (result,)
        values = dict(zip(self._module.output_names, outputs, strict=True)) | found
        return {name: as_array(value) for name, value in values.items() if not isinstance(value, list)}

    def in_integers(self) -> TorchRun | None:
        """The same module computing on codes as the default session does; None where no operator can."""
        from onnxqat.arithmetic import create
        from onnxqat.bridge.integer.find import compute_in_integers
        from onnxqat.bridge.integer.unit import Unit

        module = compute_in_integers(self._module, create("onnxruntime"))
        return TorchRun(module) if any(isinstance(m, Unit) for m in module.modules()) else None

    def quantizer(self, quantizer: Quantizer) -> Callable[[Array], Array] | None:
        """The module of `quantizer` as a function of float32 arrays; None where the bridge made none."""
        path = self._calls.get(self._module.tensor_nodes.get(str(quantizer.outputs[0].name), ""))
        if path is None:
            return None
        module = self._module.get_submodule(path)

        def apply(x: Array) -> Array:
            import torch

            with torch.inference_mode():
                return as_array(module(torch.tensor(x)))

        return apply


def open_torch(model: ir.Model, remarks: list[Remark]) -> TorchRun | None:
    """Import `model`; None, with a remark, where torch is missing or the bridge refuses an operator."""
    try:
        from onnxqat.bridge.importing.importer import to_torch
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        text = "torch is not installed: the model was not compared with the training module (extra: onnxqat[train])"
        remarks.append(Remark(text, source="validate"))
        return None
    try:
        return TorchRun(to_torch(model))
    except UnsupportedError as error:
        remarks.append(Remark(f"not compared with torch: {error.message}", source="validate"))
        return None
