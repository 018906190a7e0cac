"""Progressive widths: a run begins on finer grids and ends on those of the file.

Zhuang et al., "Towards Effective Low-bitwidth Convolutional Neural Networks", CVPR 2018, section 3.2; APoT trains so,
too. A grid of more bits here has ``2 ** (bits - own)`` steps in the place of one: codes and zero point times that
number, the scale divided by it. Range and zero stay exactly where they are, the codes of the file are among the finer
ones, and the way back is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.errors import UsageError
from onnxqat.training.callbacks.callback import Callback, Run
from onnxqat.training.optim import learning_rates

WIDEST = 8
SHARE = 0.5
"""Part of the run that the widths before the file's own have together."""


class Progressive(Callback):
    """Sets the resolution of grids by step.

    The widths that are larger than the narrowest of the file share the first half of the run in equal parts, the file's
    own widths have the rest. A quantizer of the file is never narrower than there; biases whose scale is derived follow.
    Scales start each width with a fresh state of the optimizer, and where its steps do not follow the size of a
    parameter, steps of finer scales are smaller by the same number.

    Args:
        widths: bits, falling, each from 2 to 8; what is not wider than the file may be left out.

    Raises:
        UsageError: ``option-invalid``.
    """

    name = "progressive"

    def __init__(self, widths: Sequence[int]) -> None:
        falls = list(widths) == sorted(set(widths), reverse=True)
        if not widths or not falls or not all(2 <= width <= WIDEST for width in widths):
            raise UsageError(
                "option-invalid", f"progressive widths {list(widths)} do not fall from 8 to 2 bits or less"
            )
        self.widths = tuple(widths)
        self._bits = WIDEST
        self._finer: dict[str, int] = {}
        self._moved: list[tuple[Tensor, Tensor, int]] = []

    def start(self, run: Run) -> None:
        """See the base class.

        Raises:
            UsageError: ``option-invalid`` where no grid is narrower than the widths, or the run is too short for them.
        """
        self._run = run
        self._quantizers = {path: q for path, q in quantizers(run.module) if _can_be_finer(q)}
        narrowest = min((q.qtype.bits for q in self._quantizers.values()), default=WIDEST)
        self._wide = [width for width in self.widths if width > narrowest]
        if not self._wide:
            raise UsageError(
                "option-invalid",
                f"progressive widths {list(self.widths)}: no grid of the model is narrower",
                hint="the file's own widths come last by themselves; name wider ones",
            )
        total = run.schedule.total_steps
        if int(total * SHARE) < len(self._wide):
            raise UsageError("option-invalid", f"{total} steps are too few for {len(self._wide)} wider grids")
        for path, finer in self._finer.items():  # a resumed run: tensors are in these units already
            if path in self._quantizers:
                _set_codes(self._quantizers[path], finer)

    def width(self, step: int) -> int:
        """Bits that no grid may be narrower than in step `step`; 0 at the end of the run."""
        length = int(self._run.schedule.total_steps * SHARE)
        stage = step * len(self._wide) // length
        return self._wide[stage] if stage < len(self._wide) else 0

    def before_step(self, step: int) -> None:
        """See the base class."""
        width = self.width(step)
        factors = {path: 2 ** max(0, width - q.qtype.bits) for path, q in self._quantizers.items()}
        if any(self._quantizers[path].finer != factor for path, factor in factors.items()):
            self._set_factors(factors)

    @torch.no_grad()
    def _set_factors(self, factors: Mapping[str, int]) -> None:
        done: set[int] = set()
        average = self._run.average.values if self._run.average is not None else {}
        keys = {id(p): key for key, p in self._run.module.named_parameters()}
        for path, q in self._quantizers.items():
            ratio = factors[path] / q.finer
            _set_codes(q, factors[path])
            for tensor, by in ((q.scale, 1.0 / ratio), (q.zero_point, ratio)):
                if id(tensor) not in done:
                    done.add(id(tensor))
                    tensor.copy_(tensor.double() * by)  # exact: powers of two
            self._run.optimizer.state.pop(q.scale, None)
            key = keys.get(id(q.scale), "")
            if key in average and id(average[key]) not in done:
                done.add(id(average[key]))
                average[key].mul_(1.0 / ratio)

    @torch.no_grad()
    def after_backward(self, step: int) -> None:
        """See the base class."""
        self._moved = []
        if learning_rates.follows_size(type(self._run.optimizer).__name__.lower()):
            return
        finer = {id(q.scale): q for q in self._quantizers.values() if q.finer > 1 and q.scale.requires_grad}
        self._moved = [(q.scale, q.scale.detach().clone(), q.finer) for q in finer.values()]

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """See the base class."""
        for scale, before, finer in self._moved:
            scale.copy_(before + (scale - before) / finer)
        self._moved = []

    @property
    def may_keep(self) -> bool:
        """See the base class: on finer grids nothing may be kept."""
        return all(q.finer == 1 for q in self._quantizers.values())

    def restored(self, run: Run) -> None:
        """See the base class."""
        self.start(run)

    def state_dict(self) -> dict[str, Any]:
        """See the base class."""
        return {path: q.finer for path, q in self._quantizers.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See the base class."""
        self._finer = {path: int(finer) for path, finer in state.items()}


def _can_be_finer(q: FakeQuantize) -> bool:
    """Integer grids of less than 8 bits, scaled by a parameter of their own, with zero where a file has it."""
    if q.derived or q.qtype.is_float or q.role == "bias" or q.qtype.bits >= WIDEST:
        return False
    if q.role == "weight" and (q.transforms_weight or q.freezes_weights):
        return False  # such a method has its own idea of the grid
    return not (q.symmetric and q.qtype.middle != 0)


def _set_codes(q: FakeQuantize, finer: int) -> None:
    """Make the smallest and largest code of `q` `finer` times those of the file."""
    for end in ("quant_min", "quant_max"):
        setattr(q, end, getattr(q, end) // q.finer * finer)
    q.finer = finer
