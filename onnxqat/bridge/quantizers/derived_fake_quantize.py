"""The quantizer of a bias whose scale follows from those of its layer's input and weight."""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from onnxqat.bridge.kernels import fastest
from onnxqat.bridge.kernels.reference import SMALLEST_SCALE
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.errors import UnsupportedError, UsageError
from onnxqat.types import QParams


class _Through(torch.autograd.Function):
    """Fake-quantize with the gradient of the identity."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, axis: int | None
    ) -> Tensor:
        return fastest.fake_quantize(x, scale, zero_point, quant_min, quant_max, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None, None, None, None, None


class DerivedFakeQuantize(FakeQuantize):
    """The quantizer of a bias: int32, zero point 0, ``scale = activation scale * weight scale`` (float32 product).

    It has no parameter of its own and follows the two quantizers as they train. They are referred to, not
    registered, so the state dict holds them once; the reference survives ``deepcopy`` and ``pickle`` of the module
    that holds all three.

    Codes of more than 24 bits are handled in float64, the dequantized value is ``float32(code) * scale`` as
    DequantizeLinear computes it from int32.

    The gradient passes straight through to the bias. None goes to the two scales: the grid is so fine
    that ``d x' / d scale = round(v) - v`` is rounding noise of mean zero, and it does not saturate in practice.

    Args:
        qparams: the bias's parameters as they are in the file; scale of shape () or (C,).
        activation: the quantizer of the layer's input, per tensor.
        weight: the quantizer of the layer's weight.
        tensor: the ONNX name of the bias.
        stored_as: ``"int32"``; ``"float"`` for a bias that stays float in the file, with values on this grid; ``"computed"``
            for one that the graph computes and rounds to it.

    Raises:
        UnsupportedError: ``quantizer-unsupported`` when the product does not have the shape of the bias's scale.
    """

    derived = True

    def __init__(
        self,
        qparams: QParams,
        *,
        activation: FakeQuantize,
        weight: FakeQuantize,
        tensor: str,
        stored_as: Literal["int32", "float", "computed"] = "int32",
    ) -> None:
        super().__init__(qparams, tensor=tensor, role="bias", symmetric=True)
        self.stored_as: Literal["int32", "float", "computed"] = stored_as
        # A tuple, because nn.Module registers modules that are set as attributes.
        self._sources = (activation, weight)
        self._shape = tuple(qparams.scale.shape)
        product = np.broadcast_shapes(tuple(activation.zero_point.shape), tuple(weight.zero_point.shape))
        one = math.prod(product) == 1  # quantizers write one number for the bias of a layer with one output channel
        if activation.axis is not None or (product != self._shape and not one):
            raise UnsupportedError(
                "quantizer-unsupported",
                f"bias {tensor!r} has a scale of shape {self._shape}; activation times weight gives {product}",
            )

    @property
    def activation(self) -> FakeQuantize:
        """The quantizer of the layer's input."""
        return self._sources[0]

    @property
    def weight(self) -> FakeQuantize:
        """The quantizer of the layer's weight."""
        return self._sources[1]

    def _allocate(self, qparams: QParams) -> None:
        self.register_buffer("zero_point", torch.zeros(qparams.scale.shape, dtype=torch.int32), persistent=False)

    def effective_scale(self) -> Tensor:
        """Activation scale times weight scale, float32, detached."""
        activation, weight = self._sources
        with torch.no_grad():
            product = activation.effective_scale() * weight.effective_scale()
            product = product.clamp_(min=SMALLEST_SCALE)
            return product.expand(self._shape) if self._shape else product.reshape(())

    def differentiable(
        self, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None, gradient_scale: float
    ) -> Tensor:
        """The gradient passes straight through."""
        grid = (self.quant_min, self.quant_max, axis)
        return cast(Tensor, _Through.apply(x, scale, zero_point, *grid))  # type: ignore[no-untyped-call]

    def observe(self, x: Tensor) -> None:
        """Nothing: the scale follows from the two quantizers."""

    def reset_observed(self) -> None:
        """Nothing is observed."""

    def apply_observed(self) -> None:
        """Nothing: the scale follows from the two quantizers."""

    def set_qparams(self, qparams: QParams) -> None:
        """Refused: the scale follows from the two quantizers.

        Raises:
            UsageError: ``option-invalid``, always.
        """
        raise UsageError("option-invalid", f"the scale of bias {self.tensor!r} is derived; set those of its layer")
