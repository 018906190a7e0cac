"""A QDQ model executed in integers: outputs, codes of every tensor on a grid, and how far the sums of layers reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from onnxqat.arithmetic import Accumulator, Arithmetic, Rounding, create
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.integer import float_operators, numpy_run
from onnxqat.bridge.integer.layers import Layer
from onnxqat.bridge.integer.reached import Reached
from onnxqat.bridge.integer.unit import Unit
from onnxqat.bridge.lowering import control_flow
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.data.sources import as_array
from onnxqat.errors import ModelError, UsageError
from onnxqat.graph import io, quantized_forms

Array = npt.NDArray[Any]
Engine: TypeAlias = Literal["torch", "numpy"]


@dataclasses.dataclass(frozen=True)
class Run:
    """Results of one batch.

    Attributes:
        outputs: graph outputs by name, without sequences, which have no numbers of their own.
        codes: int64 codes by tensor, of every tensor that is quantized, weights and biases aside, and without the bodies
            of Loop and Scan, which compute a tensor many times.
    """

    outputs: dict[str, Array]
    codes: dict[str, Array]


@dataclasses.dataclass(frozen=True)
class Sums:
    """The sums of a layer.

    Attributes:
        tensor: of the result; of the input where no quantizer reads the result.
        kernel: ``Convolution`` or ``Matrix``.
        largest: largest magnitude of a sum, bias included, of all batches so far.
        bits: of the accumulator that holds it.
        input: quantized tensor that the layer reads.
        weight: the same of its second input.
        reached: record of its sums and inputs.
    """

    tensor: str
    kernel: str
    largest: int
    bits: int
    input: str
    weight: str
    reached: Reached

    @staticmethod
    def of(layer: Layer) -> Sums:
        """The sums of `layer`, which keeps a record of them."""
        reached = layer.reached or Reached()
        size, (x, w) = int(reached.largest), layer.sources[:2]
        return Sums(layer.tensor, type(layer).__name__, size, size.bit_length() + 1, x.tensor, w.tensor, reached)


class IntegerModel:
    """A QDQ model on codes, in numpy arrays; see :func:`to_integer`.

    Attributes:
        module: the torch module that computes, in evaluation mode.
        arithmetic: of its kernels.
        engine: what computes.
    """

    def __init__(self, module: OnnxModule, arithmetic: Arithmetic, engine: Engine = "torch") -> None:
        self.module, self.arithmetic, self.engine = module.eval(), arithmetic, engine
        self._layers = [unit for unit in module.modules() if isinstance(unit, Layer)]
        for layer in self._layers:
            layer.reached = Reached()

    @property
    def kernels(self) -> list[tuple[str, str]]:
        """Tensor and kernel of each operator that computes on codes, bodies of If, Loop and Scan first."""
        units = (unit for unit in self.module.modules() if isinstance(unit, Unit))
        return [(unit.tensor, unit.kernel_name) for unit in units]

    def float_operators(self) -> list[str]:
        """List the tensors that something computes in float between quantizers, in graph order, bodies last."""
        return float_operators.of(self.module)

    def run(self, feeds: Mapping[str, Array]) -> Run:
        """Execute one batch.

        Args:
            feeds: arrays by input name.

        Raises:
            CheckError: ``accumulator-overflow``.
        """
        recorder = _Recorder(self.module, self.engine)
        with torch.no_grad():
            found = recorder.run(*(torch.from_numpy(np.array(feeds[name])) for name in self.module.input_names))
        outputs = found if isinstance(found, tuple) else (found,)
        named = zip(self.module.output_names, outputs, strict=True)
        return Run({name: as_array(v) for name, v in named if not isinstance(v, list)}, recorder.codes)

    def sums(self) -> tuple[Sums, ...]:
        """Largest sums of each layer so far, and the bits that hold them; 0 of those in a branch that no batch took."""
        return tuple(Sums.of(layer) for layer in self._layers)


class _Recorder(fx.Interpreter):
    """Keeps the codes of what quantizers give."""

    def __init__(self, module: OnnxModule, engine: Engine) -> None:
        super().__init__(module)
        self.codes: dict[str, Array] = {}
        self._engine: Engine = engine

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call one; the bodies that it is given are run in the same way."""
        return super().call_function(target, tuple(self._run_alike(target, a) for a in args), kwargs)

    def _run_alike(self, target: Any, argument: Any) -> Any:
        if not isinstance(argument, OnnxModule):
            return argument
        inner = _Recorder(argument, self._engine)
        if target in control_flow.BRANCHING:
            inner.codes = self.codes
        return inner.run

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run one, and keep codes."""
        held = self.fetch_attr(str(target))
        result = numpy_run.execute(held, args, kwargs) if self._engine == "numpy" else held(*args, **kwargs)
        quantizer = held.quantizer if isinstance(held, Unit) else held
        if isinstance(quantizer, FakeQuantize) and quantizer.role == "activation" and quantizer.block_size is None:
            grid = Unit.grid_of(quantizer, result.ndim)
            codes = (result / grid.scale).round() + grid.zero_point
            self.codes[quantizer.tensor] = codes.to(torch.int64).numpy()
        return result


def to_integer(
    model: io.ModelSource,
    *,
    arithmetic: str | Arithmetic = "onnxruntime",
    accumulator: Accumulator | None = None,
    rounding: Rounding | None = None,
    engine: Engine = "torch",
) -> IntegerModel:
    """Lower a QDQ model to execution in integers.

    Operators between quantizers compute on codes as the kernels of a target do; what is not quantized computes in
    float. With ``onnxruntime`` the outputs are those of its default session, bit for bit.

    Args:
        model: path or model; it is not changed.
        arithmetic: ``onnxruntime``, ``fixed-point``, ``litert``, ``shift`` (:mod:`onnxqat.arithmetic`), or one that is made.
        accumulator: where layers keep their sums; None: 32 bits that wrap around.
        rounding: None: the arithmetic's own.
        engine: ``torch``, or ``numpy``, which gives the same bits and takes longer.

    Raises:
        UsageError: ``name-unknown``, ``option-invalid``.
        ModelError: ``model-not-quantized``, ``model-form``, and what :func:`onnxqat.to_torch` raises.
        UnsupportedError: ``operator-unsupported``.
    """
    if engine not in get_args(Engine):
        raise UsageError(
            "option-invalid", f"there is no engine {engine!r}", hint=f"one of: {', '.join(get_args(Engine))}"
        )
    made = create(arithmetic, accumulator=accumulator, rounding=rounding) if isinstance(arithmetic, str) else arithmetic
    graph = io.load(model)
    module = to_torch(graph, arithmetic=made)
    if not module.quantizers:
        raise quantized_forms.refusal(graph, "the model") or ModelError(
            "model-not-quantized", "the model has no quantizer to compute on codes", hint="first: onnxqat insert-qdq"
        )
    return IntegerModel(module, made, engine)
