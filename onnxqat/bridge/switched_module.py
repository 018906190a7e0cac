"""A quantized model in torch whose quantizers are switched one by one, or in any set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import onnx_ir as ir

from onnxqat import metrics
from onnxqat.data.inputs import InputInfo
from onnxqat.data.sources import as_array
from onnxqat.graph import qdq
from onnxqat.graph.quantizer import Quantizer
from onnxqat.types import Remark

if TYPE_CHECKING:
    import torch

    from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize

Array = npt.NDArray[Any]


class SwitchedModule:
    """The module of a QDQ model, and runs of it with some of its quantizers on.

    Args:
        quantized: the QDQ model; it is not changed.

    Attributes:
        found: each quantizer of the file that has a module, with that.
        every: all modules of quantizers.
        remarks: quantizers that have none.
    """

    def __init__(self, quantized: ir.Model) -> None:
        from onnxqat.bridge.importing.importer import capture, to_torch
        from onnxqat.bridge.quantizers import state

        self.remarks: list[Remark] = []
        self.module = to_torch(quantized).eval()
        self.every: tuple[FakeQuantize, ...] = tuple(q for _, q in state.quantizers(self.module))
        calls = {n.name: str(n.target) for n in self.module.graph.nodes if n.op == "call_module"}
        self.found: list[tuple[Quantizer, FakeQuantize]] = []
        for quantizer in qdq.quantizers(quantized, every=True):
            path = calls.get(self.module.tensor_nodes.get(target_of(quantizer), ""))
            if path is None:
                inner = quantizer.nodes[0].graph is not quantized.graph
                where = "it lies in a body of If, Loop or Scan, or in a function"
                text = f"not measured: {where if inner else 'the bridge computes it with its neighbours'}"
                self.remarks.append(Remark(text, (str(quantizer.tensor),), "profile"))
                continue
            module: Any = self.module.get_submodule(path)
            self.found.append((quantizer, module))
        self._capture = capture(self.module, list(dict.fromkeys(target_of(q) for q, _ in self.found)))

    def run(
        self, feeds: Mapping[str, Array], *, on: Iterable[FakeQuantize], inner: bool = False
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Outputs and, with `inner`, quantized tensors by name, with the quantizers `on` in effect and no others."""
        import torch

        self.switch(on)
        arguments = self.arguments(feeds)
        with torch.inference_mode():
            result, found = self._capture(*arguments) if inner else (self.module(*arguments), {})
        outputs = result if isinstance(result, tuple) else (result,)
        named = dict(zip(self.module.output_names, outputs, strict=True))
        return (
            {name: as_array(value) for name, value in named.items()},
            {name: as_array(value) for name, value in found.items()},
        )

    def switch(self, on: Iterable[FakeQuantize]) -> None:
        """Put the quantizers `on` in effect and no others."""
        for quantizer in self.every:
            quantizer.state = "float"
        for quantizer in on:
            quantizer.state = "quantize"

    def arguments(self, feeds: Mapping[str, Array]) -> list[torch.Tensor]:
        """The inputs of the module, in its order."""
        import torch

        from onnxqat.bridge.importing.values import as_input

        pairs = zip(self.module.input_names, self.module.input_types, strict=True)
        return [as_input(torch.tensor(feeds[name]), kind) for name, kind in pairs]

    def without(self, off: Iterable[FakeQuantize]) -> list[FakeQuantize]:
        """All quantizers but those in `off`."""
        left_out = {id(quantizer) for quantizer in off}
        return [quantizer for quantizer in self.every if id(quantizer) not in left_out]

    def predictor(
        self, on: Sequence[FakeQuantize], inputs: Sequence[InputInfo], outputs: Sequence[str], name: str
    ) -> metrics.Predictor:
        """The module with the quantizers `on` in effect and no others, as a score sees it."""

        def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
            return self.run(feeds, on=on)[0]

        return metrics.Predictor(run, inputs, outputs, name=name)


def target_of(quantizer: Quantizer) -> str:
    """Name of the dequantized tensor that stands for a quantizer."""
    return str(quantizer.outputs[0].name)
