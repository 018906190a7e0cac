"""Weights of a model's outputs and their channels in the squared difference to the teacher, measured over data.

A squared difference over the teacher's mean square of one picture rewards silence: most scores of a detector are
close to 0, quantization noise is larger than them, and 0 has the smaller error. So sizes are measured over data
before training, and what the quantized model does not transmit yet counts little:

* ``P``, variance of the teacher over samples: the error of the best output that does not depend on the input;
* ``E``, error of the calibrated model;
* a channel is divided by ``N = max(P, min(4 E**2 / P, 1000 E))``: by ``P`` up to an error of half of it; a channel
  that is mostly noise counts less the noisier it is, so that many of them do not outvote a few that carry the
  information, and still something, so that it does not drift;
* an output is divided by the mean of ``P / N``, so the best constant has an error of 1 in each output, 0 at least 1,
  and the teacher 0;
* places of a detector count as much as there is an object (:mod:`onnxqat.training.objective.relevance`), in ``P`` and ``E`` too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from onnxqat.training.data.batches import Batch
from onnxqat.training.data.holdout import size
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.execution.execution import Execution
from onnxqat.training.loop.step import ask, call
from onnxqat.training.objective import relevance as relevances
from onnxqat.training.objective.features import FeatureLoss
from onnxqat.training.objective.losses import Loss, Objective, channel_axes
from onnxqat.training.objective.relevance import CLASSES, DifferenceWeights, Relevance
from onnxqat.training.objective.teachers import CouncilLoss

SAMPLES = 64
"""Samples that the sizes of outputs are measured on."""

FEW = 8
"""Fewest samples whose variance at one element counts; fewer are taken together with the positions of a channel."""

LARGEST = 2**22
"""Values of one sample of an output up to which sums of each are held: 40 bytes a value, 160 MiB."""

HELD = 2**25
"""Values of an output that are held, to see where its objects are: with the teacher's 256 MiB."""

_NOISE = 4.0  # a channel counts in full up to an error of half its variance: 4 E**2 / P equals P there
_DEAD = 1000.0  # a channel without any variance has an error of a thousandth at the start
_ROUNDING = 1e-12  # squares of float32 have no digits left this far below the others of a tensor
_RARE = 1e-4  # probabilities share a unit: a class that is next to never seen counts as one that is seen in few samples


class Moments:
    """Sums over samples of an output: of weights, the teacher's values, their squares, and squares of the differences.

    Args:
        shape: of the output for one sample.
        device: where they are held.
        total: the sum of a tensor over all processes.
    """

    def __init__(self, shape: Sequence[int], device: torch.device, total: Callable[[Tensor], Tensor]) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.outside = torch.zeros(tuple(shape), dtype=torch.float64, device=device)
        self.sums = torch.zeros((4, *shape), dtype=torch.float64, device=device)
        self._total = total
        self._held: list[tuple[Tensor, Tensor]] = []
        self._room = HELD if len(shape) > 1 else 0  # boxes and scores of many places have two dimensions or more

    def add(self, student: Tensor, teacher: Tensor) -> None:
        """Take in samples (N, ...)."""
        student, teacher = student.detach(), teacher.detach()  # an output can be a parameter itself
        self.count += len(teacher)
        self.outside += ((teacher < 0) | (teacher > 1)).double().sum(0)
        self.sums += _sums(student, teacher, None)
        if teacher.numel() <= self._room:
            self._held.append((student, teacher))
            self._room -= teacher.numel()

    def weights(self) -> tuple[DifferenceWeights, float]:
        """Find the weights of the squared differences, the same in all processes.

        Returns:
            Them; and the weighted mean error of the student, below 1 where it is nearer to the teacher than any constant
            is.
        """
        count, outside, sums = (self._total(x) for x in (self.count, self.outside, self.sums))
        axis = _axis(sums[2] / count.clamp_min(1), int(count))
        zeros = _by_channel(sums[2], axis) == 0  # as behind a Pad; that they lie in [0, 1] says nothing
        scores = (_by_channel(outside, axis) == 0) & ~zeros
        held = self._total(count.new_tensor(sum(len(teacher) for _, teacher in self._held)))
        relevance = None
        if axis is not None and float(held):
            places = [teacher for _, teacher in self._held]
            relevance = relevances.find(places, axis + 1, scores.flatten(), self._total)
        if relevance is not None:
            parts = [_sums(student, teacher, relevance) for student, teacher in self._held]
            sums, count = self._total(sum(parts, torch.zeros_like(self.sums))), held
        kinds = None if relevance is None else relevance.kinds().reshape(scores.shape)
        weight, error = _of_channels(sums, scores, axis, few=int(count) < FEW, kinds=kinds)
        unit = _by_channel(sums[0] / count.clamp_min(1), axis)  # mean weight of the places
        by_channel = (weight / unit).clamp_max(torch.finfo(torch.float32).max).float().unsqueeze(0)
        return DifferenceWeights(by_channel, relevance), error


def _sums(student: Tensor, teacher: Tensor, relevance: Relevance | None) -> Tensor:
    """Sums over samples, of weights by themselves, with the teacher's values, their squares and squared differences."""
    s, t = student.double(), teacher.double()
    values = [torch.ones_like(t), t, t.square(), (s - t).square()]
    if relevance is not None:
        weight = relevance.of(teacher).double()
        values = [weight * x for x in values]
    return torch.stack([x.sum(0) for x in values])


def _of_channels(
    sums: Tensor, scores: Tensor, axis: int | None, *, few: bool, kinds: Tensor | None
) -> tuple[Tensor, float]:
    """Weights of channels in the mean of squared differences that are weighted by place, and what it is at the start.

    Args:
        sums: see :func:`_sums`.
        scores: which channels are probabilities; of the shape of a sample, with sizes of 1 but for the channels.
        axis: of channels in a sample.
        few: there are too few samples for the variance at one element.
        kinds: number of the kind of each channel, see :meth:`Relevance.kinds`: kinds count alike, however many channels
            they have, and classes beside an objectness share their power, since few pictures have one of a class.
    """
    weight, value, square, error = sums
    whole = _by_channel(weight, axis)
    own, noise = (_by_channel(x, axis) / whole for x in (square, error))
    mean = _by_channel(value, axis) / whole if few else value / weight.clamp_min(torch.finfo(torch.float64).tiny)
    power = _by_channel(square - 2 * mean * value + mean.square() * weight, axis) / whole
    if not bool((power > _ROUNDING * own).any()):  # a constant teacher: the error itself is the only unit
        unit = next(float(x) for x in (noise.mean(), own.mean(), torch.ones(())) if float(x) > 0)
        return torch.full_like(power, 1 / unit), 0.0
    share = torch.full_like(power, 1 / power.numel())
    if kinds is not None:
        found = [kinds == kind for kind in range(CLASSES + 1)]
        share = torch.stack([of_kind / of_kind.sum() for of_kind in found if bool(of_kind.any())]).mean(0)
        power, noise = (torch.where(kinds == CLASSES, x[kinds == CLASSES].mean(), x) for x in (power, noise))
    power = torch.maximum(power, _ROUNDING * torch.maximum(own, power.mean()))  # > 0, where all of a kind are 0, too
    power = torch.maximum(power, torch.where(scores, _RARE, _ROUNDING) * _mean_of_kind(power, scores))
    noisy = torch.minimum(_NOISE * noise.square() / power, _DEAD * noise)
    norm = torch.maximum(power, noisy)
    weights = share * power.numel() / (norm * (share * power / norm).sum())
    return weights, float((noise * weights).mean())


def _axis(square: Tensor, count: int) -> int | None:
    """Axis of one sample along which mean squares differ most; None where the output has one size."""
    axes = channel_axes((count, *square.shape), count * square.numel())
    spread = {a - 1: float(_by_channel(square, a - 1).clamp_min(1e-300).log().std()) for a in axes}
    return max(spread, key=spread.__getitem__, default=None)


def _by_channel(x: Tensor, axis: int | None) -> Tensor:
    dims = [d for d in range(x.ndim) if d != axis]
    return x.mean(dims, keepdim=True) if dims else x


def _mean_of_kind(power: Tensor, scores: Tensor) -> Tensor:
    """Mean power of the channels that are probabilities, or of those that are not, in the place of each."""
    found = torch.zeros_like(power)
    for kind in (scores, ~scores):
        if bool(kind.any()):
            found = torch.where(kind, power[kind].mean(), found)
    return found


@dataclasses.dataclass(frozen=True)
class Weighted:
    """A loss that knows the sizes of outputs.

    Attributes:
        loss: with weights wherever it compares outputs with a teacher's.
        errors: index of an output -> its weighted error at the start, where weights were measured.
    """

    loss: Objective
    errors: dict[int, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Measure:
    """Measures the outputs of student and teacher as training begins.

    Attributes:
        forward: gives the student's outputs, in eval mode.
        teacher: gives the outputs to imitate.
        names: inputs in the order in which `forward` takes them; None: its own.
        execution: how outputs are computed.
        device: where.
        world: the processes, which measure together.
    """

    forward: nn.Module
    teacher: nn.Module
    names: tuple[str, ...] | None
    execution: Execution
    device: torch.device
    world: ProcessContext

    def weighted(self, loss: Objective, batches: Iterable[Batch]) -> Weighted:
        """Give `loss` the weights of its outputs, where it is one of onnxqat that squares differences.

        Args:
            loss: of the run.
            batches: which are read up to :data:`SAMPLES` samples.
        """
        members = list(loss.losses) if isinstance(loss, CouncilLoss) else [loss]
        if all(_base(member) is None for member in members):
            return Weighted(loss)
        moments: list[dict[int, Moments | None]] = [{} for _ in members]
        seen = 0
        for batch in batches:
            seen += batch.all_samples
            student, teachers = self._outputs(batch, several=isinstance(loss, CouncilLoss))
            bases = [_base(member) for member in members]
            if all(
                base is None
                or base.diverges(_without_inner_tensors(member, student), has_labels=batch.labels is not None)
                for base, member in zip(bases, members, strict=True)
            ):
                return Weighted(loss)
            for member, found, target in zip(members, moments, teachers, strict=True):
                _add(
                    found,
                    _without_inner_tensors(member, student),
                    _without_inner_tensors(member, target),
                    size(batch),
                    self.world.total,
                    counts=bool(batch.weight),
                )
            if seen >= SAMPLES:
                break
        known = [self._weights(found) for found in moments]
        told = []
        for member, weights in zip(members, known, strict=True):
            own = tuple(w for w, _ in weights)
            told.append(member if _base(member) is None else _with_weights(member, own))
        errors = {i: e for weights in known for i, (w, e) in enumerate(weights) if w is not None}
        return Weighted(CouncilLoss(told) if isinstance(loss, CouncilLoss) else told[0], errors)

    @torch.no_grad()
    def _outputs(self, batch: Batch, *, several: bool) -> tuple[Sequence[Tensor], list[Sequence[Tensor]]]:
        held = self.execution.inputs(batch.to(self.device))
        target = ask(self.teacher, held, self.names)
        with self.execution.autocast(self.device):
            student = call(self.forward, held, self.names)
        return student, list(target) if several else [target]

    def _weights(self, found: dict[int, Moments | None]) -> list[tuple[DifferenceWeights | None, float]]:
        results: list[tuple[DifferenceWeights | None, float]] = []
        for index in range(len(found)):
            moments = found[index]
            # Processes may see other shapes: what one of them cannot add up, none uses.
            lost = self.world.total(torch.tensor(float(moments is None), device=self.device))
            results.append((None, 0.0) if moments is None or float(lost) else moments.weights())
        return results


def _base(loss: Objective) -> Loss | None:
    """The :class:`Loss` in `loss`, where its weights are not given."""
    base = loss.base if isinstance(loss, FeatureLoss) else loss
    return base if isinstance(base, Loss) and not base.weights else None


def _without_inner_tensors(loss: Objective, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Outputs without the inner tensors behind them."""
    return outputs[: -len(loss.pairs)] if isinstance(loss, FeatureLoss) else outputs


def _with_weights(loss: Objective, weights: tuple[DifferenceWeights | None, ...]) -> Objective:
    if isinstance(loss, FeatureLoss):
        return dataclasses.replace(loss, base=_with_weights(loss.base, weights))
    assert isinstance(loss, Loss)
    return dataclasses.replace(loss, weights=weights)


def _add(
    found: dict[int, Moments | None],
    student: Sequence[Tensor],
    teacher: Sequence[Tensor],
    samples: int,
    total: Callable[[Tensor], Tensor],
    *,
    counts: bool,
) -> None:
    """Add a batch to the moments of each output; None from where an output has no fixed shape of a sample."""
    for index, (s, t) in enumerate(zip(student, teacher, strict=False)):
        if s.shape == t.shape and (t.ndim == 0 or t.shape[0] != samples):
            s, t = s.unsqueeze(0), t.unsqueeze(0)
        fits = s.is_floating_point() and s.shape == t.shape and 0 < t[0].numel() <= LARGEST
        if not fits:
            found[index] = None
            continue
        moments = found.setdefault(index, Moments(t.shape[1:], t.device, total))
        if moments is None or moments.sums.shape[1:] != t.shape[1:]:
            found[index] = None
        elif counts:
            moments.add(s, t)
