"""Noise that each quantizer of a module brings to the outputs, all of them from a few backward passes.

With random signs v and the Jacobian J of the outputs f, ``E[(v J e)^2]`` is the squared change of the outputs by an error e
of one tensor (Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1989), as far as that is small, and
``v J`` is the gradient of ``v f``. Unlike in a diagonal of the Fisher information, errors of one tensor are not taken for
independent: those of a smooth image are all alike, and a convolution that compares neighbours makes much or little of that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.switched_module import SwitchedModule
from onnxqat.graph.quantizer import Quantizer

Array = npt.NDArray[Any]

DRAWS = 8
"""Draws of signs for each batch, one backward pass each. One draw is off by a factor of two in the middle (the square of a
normal variable), the mean of eight by a half, and what is looked for differs by factors of ten."""


def of_each(
    switched: SwitchedModule,
    batches: Sequence[Mapping[str, Array]],
    *,
    outputs: Collection[str] = (),
    weights: Mapping[str, Array] | None = None,
    draws: int = DRAWS,
    parts: Sequence[Mapping[str, Array]] = (),
) -> dict[str, float]:
    """Noise that each quantizer alone brings to the outputs, as a share of their signal, by the name of its tensor.

    Where the dequantized tensor is an output of the graph, that has the name that the float tensor had.

    Args:
        switched: the module of the quantized model.
        batches: samples; their activations and gradients are in memory at once, batch by batch.
        outputs: those that count, each by its own signal; empty: all that hold floats.
        weights: values that constants had before they were rounded into the model, which is where their error is.
        draws: of signs for each batch.
        parts: for each batch, by output, the number of the part that each value belongs to, each part by its own signal;
            an output without counts as one.
    """
    switched.switch(())
    noise = {name_of(quantizer): 0.0 for quantizer, _ in switched.found}
    signs = np.random.default_rng(0)
    for feeds, numbers in zip(batches, parts or [{}] * len(batches), strict=True):
        for tensor, squared in _of_batch(switched, feeds, outputs, weights or {}, signs, draws, numbers).items():
            noise[tensor] += squared / len(batches)
    return noise


def _of_batch(
    switched: SwitchedModule,
    feeds: Mapping[str, Array],
    outputs: Collection[str],
    weights: Mapping[str, Array],
    signs: np.random.Generator,
    draws: int,
    parts: Mapping[str, Array],
) -> dict[str, float]:
    """Noise by tensor on one batch: one forward pass, and one backward pass for each draw; see :func:`of_each`."""
    tensors = {id(module): name_of(quantizer) for quantizer, module in switched.found}
    modules = {id(module): module for _, module in switched.found}
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    handles = [module.register_forward_hook(Probe(found, key)) for key, module in modules.items()]
    try:
        result = switched.module(*switched.arguments(feeds))
    finally:
        for handle in handles:
            handle.remove()
    named = zip(switched.module.output_names, result if isinstance(result, tuple) else (result,), strict=True)
    counted = [
        _normalized(value, parts.get(name))
        for name, value in named
        if _counts(value) and (not outputs or name in outputs)
    ]
    keys, probes = list(found), [probe for probe, _ in found.values()]
    errors = [_error(modules[key], found.pop(key)[1], weights.get(tensors[key])) for key in keys]
    noise = dict.fromkeys(tensors.values(), 0.0)
    for _ in range(draws if counted else 0):
        total = torch.stack([(value * _signs(signs, value)).sum() for value in counted]).sum()
        gradients = torch.autograd.grad(total, probes, retain_graph=True, allow_unused=True)
        for key, error, gradient in zip(keys, errors, gradients, strict=True):
            if gradient is not None:
                change = float((gradient * error).nan_to_num().sum(dtype=torch.float64))
                noise[tensors[key]] += change**2 / draws
    return noise


def name_of(quantizer: Quantizer) -> str:
    """Return the name of the tensor of `quantizer`, that of the output where it is one of the graph."""
    return next((str(v.name) for v in quantizer.outputs if v.is_graph_output()), quantizer.tensor)


def _counts(value: Any) -> bool:
    return torch.is_tensor(value) and value.is_floating_point() and value.requires_grad


def _normalized(value: torch.Tensor, parts: Array | None = None) -> torch.Tensor:
    """`value` with a length of 1, so that outputs of any size count alike; with numbers of `parts`, each of them."""
    squares = value.detach().double().square()
    if parts is None or parts.shape != tuple(value.shape):
        size = float(squares.sum().sqrt())
        return value.float() / size if size else value.float()
    numbers = torch.from_numpy(parts).reshape(-1)
    sizes = torch.bincount(numbers, squares.reshape(-1)).sqrt()
    sizes[sizes == 0] = 1
    return value.float() / sizes[numbers].reshape(value.shape).float()


def _signs(draw: np.random.Generator, value: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(draw.choice(np.asarray([-1, 1], np.float32), tuple(value.shape)))


def _error(module: FakeQuantize, values: torch.Tensor, before: Array | None) -> torch.Tensor:
    """Error of what a quantizer gives, float32: against the `values` that it reads, or against those `before`."""
    module.state = "quantize"
    try:
        with torch.no_grad():
            given: torch.Tensor = module(values).float()
    finally:
        module.state = "float"
    if before is None or before.size != values.numel():
        return given - values.float()
    return given - torch.from_numpy(np.array(before, np.float32)).reshape(given.shape)


class Probe:
    """A forward hook that adds a tensor of zeros to what a module gives, whose gradient is that of the result.

    Args:
        found: gets the zeros and the result of the module, detached, under `key`.
        key: any number that stands for the module.
    """

    def __init__(self, found: dict[int, tuple[torch.Tensor, torch.Tensor]], key: int) -> None:
        self._found, self._key = found, key

    def __call__(self, module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
        """Register the probe, and add it to `output`."""
        probe = torch.zeros_like(output, requires_grad=True)
        self._found[self._key] = (probe, output.detach())
        return output + probe
