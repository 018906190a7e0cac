"""The state switches of MQBench and Knight: what a model does from here on, by role and never by a part of a name."""

from __future__ import annotations

import logging

from torch import nn

from onnxqat import discover
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize, State
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.compat import prepared
from onnxqat.compat.observing import detach
from onnxqat.types import Role

_log = logging.getLogger(__name__)

QUANTIZER_TYPES: dict[str, tuple[Role, ...]] = {
    "fake_quant": ("activation", "weight", "bias"),
    "weight_fake_quant": ("weight",),
    "act_fake_quant": ("activation",),
    "weight": ("weight",),
    "activation": ("activation",),
}
"""Roles that a ``quantizer_type`` stands for: MQBench's names, and the roles' own."""


def enable_calibration(model: nn.Module) -> None:
    """Observe and do not quantize: the model computes in float. Run some batches, then :func:`enable_quantization`.

    Args:
        model: as for :func:`enable_calibration_woquantization`.
    """
    _switch(model, "fake_quant", "calibrate")


def enable_calibration_woquantization(model: nn.Module, quantizer_type: str = "fake_quant") -> None:
    """Observe and do not quantize, for one type of quantizers; all others are off.

    Args:
        model: what ``prepare_by_platform`` returned, or a module around it.
        quantizer_type: ``"fake_quant"`` (all), ``"weight_fake_quant"`` or ``"act_fake_quant"``.

    Raises:
        UsageError: ``name-unknown``, with close matches.
    """
    _switch(model, quantizer_type, "calibrate")


def enable_calibration_quantization(model: nn.Module, quantizer_type: str = "fake_quant") -> None:
    """Observe and quantize with what was seen so far, for one type of quantizers; all others are off.

    A quantizer sees what those in front of it have quantized.

    Args:
        model: as for :func:`enable_calibration_woquantization`.
        quantizer_type: the same.

    Raises:
        UsageError: ``name-unknown``.
    """
    _switch(model, quantizer_type, "calibrate_quantized")


def enable_quantization(model: nn.Module, weight_cali_on: bool = False, act_cali_on: bool = False) -> None:
    """Quantize with the scales that calibration leads to, which training may move from here on.

    Args:
        model: as for :func:`enable_calibration_woquantization`.
        weight_cali_on: weights go on observing, and their scales follow the range, also while training.
        act_cali_on: the same for activations.
    """
    roles = {"weight": weight_cali_on, "activation": act_cali_on}
    _settle_calibration(model)
    for quantizer in _quantizers(model):
        quantizer.state = "calibrate_quantized" if roles.get(quantizer.role, False) else "quantize"
    if weight_cali_on or act_cali_on:
        _attach(model)
    _log.info("quantizers are on")


def disable_all(model: nn.Module) -> None:
    """Neither observe nor quantize: bit for bit the float model.

    Args:
        model: as for :func:`enable_calibration_woquantization`.
    """
    for quantizer in _quantizers(model):
        quantizer.state = "float"
    _log.info("quantizers are off")


def enable_all(model: nn.Module) -> None:
    """Observe and quantize, all quantizers.

    Args:
        model: as for :func:`enable_calibration_woquantization`.
    """
    _switch(model, "fake_quant", "calibrate_quantized")


def _switch(model: nn.Module, quantizer_type: str, state: State) -> None:
    if quantizer_type not in QUANTIZER_TYPES:
        raise discover.unknown("quantizer_type", quantizer_type, list(QUANTIZER_TYPES))
    roles = QUANTIZER_TYPES[quantizer_type]
    _attach(model)
    for quantizer in _quantizers(model):
        quantizer.state = state if quantizer.role in roles else "float"
    _log.info("%s: %s", quantizer_type, state)


def _quantizers(model: nn.Module) -> list[FakeQuantize]:
    return [quantizer for _, quantizer in quantizers(model)]


def _attach(model: nn.Module) -> None:
    for module, found in prepared.prepared_modules(model):
        if found.calibration is not None:
            found.calibration.observing.attach(module, module.quantizers)


def _settle_calibration(model: nn.Module) -> None:
    detach(model)
    planned: set[int] = set()
    for module, found in prepared.prepared_modules(model):
        prepared.settle(module, found)
        if found.calibration is not None:
            planned.update(id(quantizer) for quantizer in _quantizers(module))
    for quantizer in _quantizers(model):
        # Quantizers of a file that came with its own have no plan: minimum and maximum are what there is.
        if quantizer.derived:
            continue
        seen = bool((quantizer.observed_min <= quantizer.observed_max).all())
        if seen and id(quantizer) not in planned and quantizer.state != "quantize":
            quantizer.apply_observed()
        quantizer.reset_observed()
