"""Noise at the outputs that each layer brings at each width, as a share of their signal.

``measured``: the layer alone on its grid, one pass for each width. ``gradient``: one backward pass for all. With random
signs v and the Jacobian J of the outputs f, ``E[(v J e)^2]`` is the squared change of the outputs by an error e (Hutchinson,
"A stochastic estimator of the trace of the influence matrix", 1989), as far as that is small; ``v J`` is the gradient of
``v f``, and ``J^T J`` the Fisher information of outputs with Gaussian noise. Errors of different output channels of a weight
count as independent, which keeps the variance low, and so do all errors of an activation, as in a diagonal of the Fisher
information (HAWQ-V2, Dong et al., NeurIPS 2020, has that of the second derivative).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from onnxqat.bit_allocation.candidates import Layer, Widths
from onnxqat.bit_allocation.rounding_errors import Errors
from onnxqat.bridge.switched_module import SwitchedModule
from onnxqat.data.data import Data
from onnxqat.validation.profile_meters import Outputs

if TYPE_CHECKING:
    import torch

    from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize

Array = npt.NDArray[Any]
Method = Literal["auto", "measured", "gradient"]

CHEAP = 2000
"""Largest number of passes of one sample that ``auto`` measures with; beyond, it takes gradients."""
BATCH = 4
"""Samples a backward pass: all activations and their gradients are in memory at once."""
LOUDEST = 1e6
"""Largest share of noise that is told apart from more."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """Noise of one layer.

    Attributes:
        weights: by width of the weight.
        activation: of its inputs at the table's own width.
        activation_bits: that width.
    """

    weights: dict[int, float]
    activation: float
    activation_bits: int

    def of(self, widths: Widths) -> float:
        """Return the noise at these widths, its share of the signal; an LSB less per bit of the activation is a quarter."""
        if widths.is_float:
            return 0.0
        return self.weights[widths.weight] + self.activation * 4.0 ** (self.activation_bits - widths.activation)


def choose(method: Method, layers: Sequence[Layer], samples: int) -> Literal["measured", "gradient"]:
    """The method that `method` stands for, by the number of passes of one sample."""
    passes = sum(len(layer.specs) + 1 for layer in layers) * samples
    if method == "auto":
        return "measured" if passes <= CHEAP else "gradient"
    return method


def noises(
    switched: SwitchedModule,
    layers: Sequence[Layer],
    data: Data,
    method: Literal["measured", "gradient"],
    errors: Errors,
    progress: Callable[[int, int | None], None] | None = None,
) -> list[Noise]:
    """Noise of each of `layers` on `data`.

    Args:
        switched: module of the quantized model whose quantizers have the table's widths.
        layers: with the specs of their weights by width.
        data: samples.
        method: how.
        errors: of the weights of `layers`.
        progress: called with batches done and their number, when known.
    """
    work = _Layers(switched, layers, errors)
    step = work.measure if method == "measured" else work.differentiate
    for done, feeds in enumerate(data, start=1):
        step(feeds)
        if progress is not None:
            progress(done, data.batches)
    return work.result()


class _Layers:
    """The quantizers of layers by role, errors of their weights by width, and the sums."""

    def __init__(self, switched: SwitchedModule, layers: Sequence[Layer], errors: Errors) -> None:
        self.switched, self.layers = switched, layers
        by_tensor = {str(q.tensor): (q, module) for q, module in switched.found if q.role == "weight"}
        self.weights = [by_tensor[layer.tensor][1] for layer in layers]
        self.errors = [errors[layer.tensor] for layer in layers]
        self.inputs = [_inputs(switched, layer) for layer in layers]
        shared = [id(module) for modules in self.inputs for module in modules]
        self.shares = {key: 1 / shared.count(key) for key in shared}
        self.of_weights: list[dict[int, float]] = [dict.fromkeys(layer.specs, 0.0) for layer in layers]
        self.of_inputs = dict.fromkeys(shared, 0.0)
        self._meters: dict[tuple[int, int], Outputs] = {}
        self.batches = 0
        self._random = np.random.default_rng(0)

    def measure(self, feeds: Mapping[str, Array]) -> None:
        """One pass for each width of each layer, and one for its inputs."""
        import torch

        run = self.switched.run
        plain = run(feeds, on=())[0]
        self.batches += 1
        for number, weight in enumerate(self.weights):
            for width, error in self.errors[number].items():
                shifted = torch.tensor(error)
                handle = weight.register_forward_hook(lambda _m, _i, out, by=shifted: out + by)
                try:
                    self._meters.setdefault((number, width), Outputs()).add(run(feeds, on=())[0], plain)
                finally:
                    handle.remove()
        for key, module in {id(m): m for modules in self.inputs for m in modules}.items():
            self._meters.setdefault((-1, key), Outputs()).add(run(feeds, on=[module])[0], plain)

    def differentiate(self, feeds: Mapping[str, Array]) -> None:
        """One forward and one backward pass for all."""
        import torch

        from onnxqat.bridge.quantizer_noise import Probe

        found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        watched = {id(m): m for modules in ([*self.weights], *self.inputs) for m in modules}
        handles = [module.register_forward_hook(Probe(found, key)) for key, module in watched.items()]
        try:
            self._backward(feeds)
        finally:
            for handle in handles:
                handle.remove()
        self.batches += 1
        squares = {key: probe.grad for key, (probe, _) in found.items() if probe.grad is not None}
        for number, weight in enumerate(self.weights):
            gradient = squares.get(id(weight))
            for width, error in self.errors[number].items():
                if gradient is not None:
                    self.of_weights[number][width] += _change(gradient.numpy(), error, self.layers[number].axis)
        for key in self.of_inputs:
            if key in squares:
                values, module = found[key][1], watched[key]
                module.state = "quantize"
                with torch.no_grad():
                    error = module(values) - values
                module.state = "float"
                self.of_inputs[key] += float((squares[key].double() ** 2 * error.double() ** 2).sum())

    def _backward(self, feeds: Mapping[str, Array]) -> None:
        import torch

        module = self.switched.module
        self.switched.switch(())
        result = module(*self.switched.arguments(feeds))
        outputs = result if isinstance(result, tuple) else (result,)
        total: Any = 0.0
        for output in outputs:
            size = float(torch.linalg.vector_norm(output.detach().double())) if output.is_floating_point() else 0.0
            if size and output.requires_grad:
                signs = torch.from_numpy(self._random.choice(np.asarray([-1, 1], np.float32), output.shape))
                total = total + (output.float() * signs).sum() / size
        if torch.is_tensor(total):
            torch.autograd.backward(total)
        module.zero_grad(set_to_none=True)

    def result(self) -> list[Noise]:
        """The noises over all batches so far."""
        found = []
        for number, layer in enumerate(self.layers):
            if self._meters:
                weights = {width: _share(self._meters[number, width]) for width in layer.specs}
                inputs = {key: _share(self._meters[-1, key]) for key in map(id, self.inputs[number])}
            else:
                count = max(self.batches, 1)
                weights = {width: min(value / count, LOUDEST) for width, value in self.of_weights[number].items()}
                inputs = {key: min(self.of_inputs[key] / count, LOUDEST) for key in map(id, self.inputs[number])}
            activation = sum(noise * self.shares[key] for key, noise in inputs.items())
            found.append(Noise(weights, activation, layer.default.activation))
        return found


def _inputs(switched: SwitchedModule, layer: Layer) -> list[FakeQuantize]:
    """The quantizers of activations that a layer reads."""
    found = {}
    for quantizer, module in switched.found:
        readers = [node for node, _ in quantizer.uses]
        if quantizer.role == "activation" and any(str(node.name) == layer.placed for node in readers):
            found[id(module)] = module
    return list(found.values())


def _change(gradient: Array, error: Array, axis: int) -> float:
    """Squared change of the outputs by the error of a weight, from one draw of signs, float64."""
    others = tuple(i for i in range(error.ndim) if i != axis)
    return float(((gradient.astype(np.float64) * error).sum(axis=others) ** 2).sum())


def _share(outputs: Outputs) -> float:
    decibels = outputs.worst.sqnr_db
    return LOUDEST if np.isnan(decibels) else float(min(10.0 ** (-decibels / 10), LOUDEST))
