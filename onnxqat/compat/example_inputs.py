"""Example inputs that a torch module states by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

SAMPLES = 2  # of an input whose shape alone is stated; a batch of 1 would look like an axis to broadcast


def stated_inputs(module: nn.Module) -> Any:
    """Return the example inputs that `module` states, None where it states none.

    1. ``example_input_array``, as Lightning's modules have it: a tensor, a sequence or a mapping.
    2. ``input_size`` (C, H, W) in the dict ``pretrained_cfg`` or ``default_cfg``, as timm's have it: zeros (2, C, H, W).
    """
    given = getattr(module, "example_input_array", None)
    if given is not None:
        return given
    for name in ("pretrained_cfg", "default_cfg"):
        stated = getattr(module, name, None)
        size = stated.get("input_size") if isinstance(stated, Mapping) else None
        if isinstance(size, (tuple, list)) and all(isinstance(length, int) and length > 0 for length in size):
            return torch.zeros(SAMPLES, *size)
    return None
