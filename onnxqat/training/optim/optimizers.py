"""Optimizers by torch's names with the parameter groups of quantization-aware training; the guard of scales."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from onnxqat.bridge.quantizers.state import parameter_ids, quantizers
from onnxqat.errors import UsageError
from onnxqat.training.optim import learning_rates

Groups: TypeAlias = "list[dict[str, Any]]"
Make: TypeAlias = Callable[[Groups], Optimizer]
"""An optimizer of your own: parameter groups, each with its learning rate and weight decay -> optimizer."""

SMALL_WEIGHTS = -6
"""Power of two of the mean size below which weights are small: layers of hundreds of inputs, normalized ones, have
2**-6 and more. A first layer on pixels from 0 to 255 has 2**-9, where a step of Adam at 1e-4 is 3 codes of 8 bits."""

UNFIT = {
    "lbfgs": "it calls the model several times a step",
    "muon": "it takes matrices only, and scales and biases are none",
    "sparseadam": "it takes sparse gradients only",
}
"""Optimizers of torch that cannot take part, and why."""


def names() -> list[str]:
    """The optimizers of this torch by their names in lower case."""
    return sorted(set(_classes()) - set(UNFIT))


def _classes() -> dict[str, type[Optimizer]]:
    found = (value for value in vars(torch.optim).values() if inspect.isclass(value))
    return {kind.__name__.lower(): kind for kind in found if issubclass(kind, Optimizer) and kind is not Optimizer}


def scales(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters of quantizers by state dict key, each once (quantizers may share a scale)."""
    inside = parameter_ids(module)
    return {key: p for key, p in module.named_parameters() if id(p) in inside and p.requires_grad}


def parameter_groups(
    module: nn.Module,
    *,
    learning_rate: float,
    scale_learning_rate: float | None = None,
    weight_decay: float = 0.0,
    relative_scales: bool = False,
    relative_weights: bool = False,
    factors: Mapping[str, float] | None = None,
) -> Groups:
    """Groups ``weights`` (two dimensions or more, decayed), ``biases`` (the rest, not decayed) and ``scales``.

    Args:
        module: the module; frozen parameters are left out.
        learning_rate: of weights and biases.
        scale_learning_rate: of the parameters of quantizers; None: `learning_rate`, or see `relative_scales`.
        weight_decay: of the weights. A decayed scale would shrink the grid under the weights, so scales have none.
        relative_scales: for optimizers whose steps do not depend on the size of the gradient (Adam). Without an
            explicit `scale_learning_rate`, scales are grouped by their power of two and each group learns at
            `learning_rate` times that power, so that a step changes a scale by about that fraction.
        relative_weights: for the same optimizers, where the rate is not the user's: weights below
            ``2**SMALL_WEIGHTS`` learn at a rate that falls with their size.
        factors: see :func:`onnxqat.training.optim.learning_rates.factors`; tensors of another factor than 1 have groups of
            their own.

    Raises:
        UsageError: ``pattern-no-match``, ``option-invalid`` for a factor.
    """
    learned = scales(module)
    own = learning_rates.factors(module, factors or {})
    found: dict[str, dict[str, Any]] = {}
    for key, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        name, rate, decay = "weights" if parameter.ndim >= 2 else "biases", learning_rate, 0.0
        if key in learned:
            name = "scales"
            if scale_learning_rate is not None:
                rate = scale_learning_rate
            elif relative_scales:
                power = _power(parameter)
                name, rate = f"scales of 2^{power}", learning_rate * 2.0**power
        elif name == "weights":
            decay = weight_decay
            power = _power(parameter)
            if relative_weights and power < SMALL_WEIGHTS:
                name, rate = f"weights of 2^{power}", learning_rate * 2.0 ** (power - SMALL_WEIGHTS)
        factor = own.get(key, 1.0)
        if factor != 1.0:
            name += f" x {factor:g}"
        group = {"name": name, "params": [], "weight_decay": decay, "lr": rate * factor}
        found.setdefault(name, group)["params"].append(parameter)
    return sorted(found.values(), key=_order)


def _power(parameter: nn.Parameter) -> int:
    """The power of two that the values are nearest to."""
    size = float(parameter.detach().abs().mean())
    return round(math.log2(size)) if 0 < size < math.inf else 0


def _order(group: dict[str, Any]) -> tuple[int, int, str]:
    """Weights, biases, scales from small to large: the same groups in the same order for the same model."""
    role, _, rest = group["name"].partition(" of 2^")
    kind = next(index for index, name in enumerate(("weights", "biases", "scales")) if role.startswith(name))
    return kind, int(rest.partition(" ")[0]) if rest else 0, group["name"]


def make(
    optimizer: str | Make,
    module: nn.Module,
    *,
    learning_rate: float | None = None,
    scale_learning_rate: float | None = None,
    weight_decay: float = 0.0,
    factors: Mapping[str, float] | None = None,
    options: Mapping[str, Any] | None = None,
    batch: int | None = None,
) -> Optimizer:
    """The optimizer of a run over the groups of :func:`parameter_groups`.

    Args:
        optimizer: a name of :func:`names`, or a function of the groups.
        module: the module to train.
        learning_rate: None: :func:`onnxqat.training.optim.learning_rates.default`.
        scale_learning_rate: None: as :func:`parameter_groups` says.
        weight_decay: of weights of two dimensions or more.
        factors: learning rates by pattern, see :func:`onnxqat.training.optim.learning_rates.factors`.
        options: other arguments of the optimizer, such as ``{"betas": (0.9, 0.98)}``. SGD and RMSprop have a momentum
            of 0.9 where none is given.
        batch: samples in a step, for the default rate.

    Raises:
        UsageError: ``option-invalid`` for an unknown name or option, a rate that is not positive or nothing to train;
            ``name-unknown``; ``pattern-no-match``.
    """
    key = optimizer.lower().replace("_", "").replace("-", "") if isinstance(optimizer, str) else ""
    kind = _kind(str(optimizer), key) if isinstance(optimizer, str) else None
    rate = learning_rates.default(key, module, batch) if learning_rate is None else learning_rate
    for value in (rate, rate if scale_learning_rate is None else scale_learning_rate):
        if not (math.isfinite(value) and value >= 0):
            raise UsageError("option-invalid", f"a learning rate is {value}; it must be finite and >= 0")
    groups = parameter_groups(
        module,
        learning_rate=rate,
        scale_learning_rate=scale_learning_rate,
        weight_decay=weight_decay,
        relative_scales=not learning_rates.follows_size(key),
        relative_weights=learning_rate is None and not learning_rates.follows_size(key),
        factors=factors,
    )
    if not groups:
        raise UsageError("option-invalid", "the module has no trainable parameter")
    if kind is None:
        return _of_user(cast(Make, optimizer), groups, options)
    arguments = {"momentum": 0.9} if key in ("sgd", "rmsprop") else {}
    try:
        return cast(Optimizer, cast(Any, kind)(groups, lr=rate, **{**arguments, **(options or {})}))
    except (TypeError, ValueError) as error:
        raise UsageError("option-invalid", f"optimizer {optimizer!r}: {error}") from None


def _kind(given: str, key: str) -> type[Optimizer]:
    classes = _classes()
    if key in UNFIT:
        raise UsageError("option-invalid", f"optimizer {given!r} does not fit: {UNFIT[key]}")
    if key not in classes:
        raise UsageError("option-invalid", f"there is no optimizer {given!r}", hint=f"one of: {', '.join(names())}")
    return classes[key]


def _of_user(make_one: Make, groups: Groups, options: Mapping[str, Any] | None) -> Optimizer:
    if options:
        raise UsageError("option-invalid", "an optimizer of your own takes no options; give them where you make it")
    wanted = {id(p) for group in groups for p in group["params"]}
    made = make_one(groups)
    if not isinstance(made, Optimizer):
        raise UsageError("option-invalid", f"optimizer gave a {type(made).__name__}, not a torch.optim.Optimizer")
    if {id(p) for group in made.param_groups for p in group["params"]} != wanted:
        raise UsageError(
            "option-invalid", "the optimizer does not hold exactly the parameters of the groups it was given"
        )
    return made


class ScaleGuard:
    """Limits what one step does to a scale: at least half, at most twice what it was. So no scale reaches zero.

    A scale behind a Clip does not pass its ``largest_scale`` either (:mod:`onnxqat.bridge.quantizers.clip_in_front`).

    Call :meth:`before` in front of and :meth:`after` behind ``optimizer.step()``; neither waits for the device.

    Attributes:
        limited: how often a scale tensor was limited, a tensor on the device of the scales.
    """

    FACTOR = 2.0

    def __init__(self, module: nn.Module) -> None:
        found = {id(q.scale): q for _, q in quantizers(module) if not q.derived and q.scale.requires_grad}
        self._scales: list[Tensor] = [q.scale for q in found.values()]
        self._largest = [math.inf if q.largest_scale is None else q.largest_scale for q in found.values()]
        self._before: list[Tensor] = []
        device = self._scales[0].device if self._scales else torch.device("cpu")
        self.limited = torch.zeros((), dtype=torch.int64, device=device)

    @torch.no_grad()
    def before(self) -> None:
        """Remember the scales."""
        if self._scales:
            self._before = list(torch._foreach_mul(self._scales, 1.0))  # noqa: SLF001 - one launch for all scales

    @torch.no_grad()
    def after(self) -> None:
        """Bring every scale back into its limits and count."""
        if not self._scales:
            return
        change = torch._foreach_mul(self._scales, -1.0)  # noqa: SLF001
        torch._foreach_maximum_(self._scales, torch._foreach_mul(self._before, 1.0 / self.FACTOR))  # noqa: SLF001
        torch._foreach_minimum_(self._scales, torch._foreach_mul(self._before, self.FACTOR))  # noqa: SLF001
        torch._foreach_add_(change, self._scales)
        sizes = torch.stack(list(torch._foreach_norm(change, float("inf"))))  # noqa: SLF001
        self.limited += (sizes > 0).sum()
        torch._foreach_clamp_max_(self._scales, self._largest)
