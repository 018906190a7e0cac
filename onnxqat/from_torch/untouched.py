"""A module is as it was after it was exported: training flags, buffers, random generators."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """All submodules in evaluation mode, without gradients; flags, buffers and random generators come back at the end.

    Attention is computed by its parts: torch's fused kernels for evaluation have no ONNX form.

    The flags are set one by one: ``module.eval()`` may be a module's own, and merge weights or change its structure.
    """
    flags = [(m, m.training) for m in module.modules()]
    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the one that modules may draw from
    fused = torch.backends.mha.get_fastpath_enabled()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices), torch.no_grad():
        try:
            for submodule, _ in flags:
                submodule.training = False
            torch.backends.mha.set_fastpath_enabled(False)
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fused)
            for submodule, training in flags:
                submodule.training = training
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002
