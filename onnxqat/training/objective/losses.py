"""Training losses: labels, a teacher, or a mix of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from onnxqat.errors import DataError, UsageError
from onnxqat.subgraphs.boundary import CUT_SELECTION
from onnxqat.training.objective.relevance import DifferenceWeights

Distance = Literal["auto", "kl", "mse"]
OutputKind = Literal["logits", "probabilities"]
Objective: TypeAlias = Callable[[Sequence[Tensor], "Tensor | None", Any], Tensor]
"""Any loss: outputs, labels of the batch or None, the teacher's outputs or None -> a scalar."""

VALUES_A_CHANNEL = 64
"""Fewest values of a batch that a channel's mean square may rest on."""

IGNORED = -100
"""The integer label that torch's cross entropy leaves out."""

PROBABILITY_TOLERANCE = 1e-3
"""Largest distance of the sum of a sample's probabilities from 1: half floats, rounded to four digits."""

TEMPERATURE = 4.0
"""Temperature of the softmax of teacher and student, where the user gives none."""

_SMALLEST_PROBABILITY = 1e-12
_SMALLEST_POWER = 1e-12


@dataclasses.dataclass(frozen=True)
class Loss:
    """``alpha * teacher part + (1 - alpha) * label part``; with only one of the two, that one alone.

    * Labels: cross entropy on the first output, classes on axis 1: outputs (N, C) or (N, C, ...) and integer labels
      (N,) or (N, ...), or class probabilities of the shape of the output. Of tokens the classes are on the last axis:
      outputs (N, T, C) and labels (N, T). The label -100 is left out; where all are, the loss is 0.
    * Teacher, ``"kl"``: ``T**2 * KL(softmax(teacher / T) || softmax(student / T))`` over the classes, which of outputs
      (N, T, C) without labels are on the last axis too, mean over the rest (Hinton et al., "Distilling the Knowledge in
      a Neural Network", 2015).
    * Teacher, ``"mse"``: squared difference, so weighted that boxes do not drown scores: by `weights`, which
      :func:`onnxqat.finetune` measures over the data (:mod:`onnxqat.training.objective.output_weights`), else by the teacher's
      mean square in each channel of the batch (:func:`channel_power`); the mean over channels, then over outputs.
    * ``"auto"``: ``"kl"`` for a single output of shape (N, C) with C > 1 that is known to be of classes: there are
      labels, or it is probabilities, or a `temperature` is given. Else ``"mse"``: the output may be an embedding or
      coordinates, and the divergence sees neither a shift of all values nor those that are small beside the largest.

    A function ``loss(outputs, labels, teacher_outputs)`` of your own takes the place of an instance.

    Attributes:
        alpha: weight of the teacher, 0 to 1.
        temperature: T of the KL divergence; None: :data:`TEMPERATURE`. At 1 a confident teacher says little more than
            its class, and a hundred samples are overfitted.
        distance: how far student and teacher are apart.
        outputs: what a classifier's output is; ``"probabilities"`` for a model that ends in Softmax.
        teacher_outputs: the same of the teacher; None: as `outputs`.
        label_smoothing: part of the label that is spread over all classes, 0 to 1 (Szegedy et al., "Rethinking the
            Inception Architecture for Computer Vision", CVPR 2016, section 7).
        weights: of the squared differences of each output, float32 that broadcasts to its shape; None for one whose
            batch decides. Empty: all of them.
    """

    alpha: float = 0.5
    temperature: float | None = None
    distance: Distance = "auto"
    outputs: OutputKind = "logits"
    teacher_outputs: OutputKind | None = None
    label_smoothing: float = 0.0
    weights: tuple[DifferenceWeights | None, ...] = dataclasses.field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise UsageError("option-invalid", f"alpha is {self.alpha}; it lies between 0 and 1")
        if not self._temperature > 0.0:
            raise UsageError("option-invalid", f"the temperature is {self.temperature}; it must be > 0")
        if self.distance not in ("auto", "kl", "mse"):
            raise UsageError("option-invalid", f"there is no distance {self.distance!r}", hint="auto, kl or mse")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UsageError("option-invalid", f"label_smoothing is {self.label_smoothing}; it must be >= 0 and < 1")

    def __call__(
        self, outputs: Sequence[Tensor], labels: Tensor | None = None, teacher: Sequence[Tensor] | None = None
    ) -> Tensor:
        """The scalar loss, float32.

        Args:
            outputs: what the student returned.
            labels: labels of the batch, None without.
            teacher: what the teacher returned for the same batch, None without.

        Raises:
            DataError: ``data-labels`` with neither labels nor a teacher, or labels of a shape that does not fit.
        """
        if labels is None and teacher is None:
            raise DataError("data-labels", "there are neither labels nor a teacher to learn from")
        axis = class_axis(outputs[0], labels)
        by_label = None if labels is None else self._labels(outputs[0].movedim(axis, 1), labels)
        by_teacher = None if teacher is None else self._teacher(outputs, teacher, axis, has_labels=labels is not None)
        if by_label is None or by_teacher is None:
            alone = by_teacher if by_label is None else by_label
            assert alone is not None
            return alone
        return self.alpha * by_teacher + (1.0 - self.alpha) * by_label

    def _labels(self, output: Tensor, labels: Tensor) -> Tensor:
        expected = output.shape[:1] + output.shape[2:]
        if output.ndim < 2 or labels.shape not in (expected, output.shape):
            raise DataError(
                "data-labels",
                f"labels of shape {tuple(labels.shape)} do not fit the output of shape {tuple(output.shape)}",
                hint="integer labels have the output's shape without the class axis 1",
            )
        _check_type(labels, output)
        logits = _logits(output, self.outputs)
        if labels.is_floating_point():
            return functional.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        # The mean over no label, as in a batch of which all are left out, would be 0 / 0.
        total = functional.cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction="sum")
        return total / (labels != IGNORED).sum().clamp_min(1)

    def check_labels(self, outputs: Sequence[Tensor], labels: Tensor) -> None:
        """Refuse labels that say nothing of the classes of the first output; they are looked at where they came from.

        Args:
            outputs: what the student returned.
            labels: as :meth:`__call__` takes them, on the CPU, so that no GPU has to be waited for.

        Raises:
            DataError: ``data-labels`` for a class that the output does not have, and for float labels that are no
                probabilities of classes, such as several ones in a row.
        """
        if outputs[0].ndim < 2 or not labels.numel():
            return
        classes = outputs[0].shape[class_axis(outputs[0], labels)]
        if not labels.is_floating_point():
            numbers = labels.numpy()  # as steps are looked at for what torch reads
            wrong = numbers[((numbers < 0) & (numbers != IGNORED)) | (numbers >= classes)]
            if len(wrong):
                raise DataError(
                    "data-labels",
                    f"a label is {int(wrong[0])}; the output has the classes 0 to {classes - 1}",
                    hint=f"count classes from 0; {IGNORED} leaves a sample out",
                )
        elif labels.shape == outputs[0].shape:
            sums = labels.float().numpy().sum(1)
            wrong = sums[abs(sums - 1) > PROBABILITY_TOLERANCE]
            if len(wrong):
                raise DataError(
                    "data-labels",
                    f"float labels are probabilities of the classes; some sum to {float(wrong[0]):g}, not to 1",
                    hint="for several classes at once give a loss of your own, such as binary_cross_entropy_with_logits",
                )

    def _teacher(self, outputs: Sequence[Tensor], teacher: Sequence[Tensor], axis: int, *, has_labels: bool) -> Tensor:
        """Return the loss against the teacher: divergence for logits of classes, else the outputs' relative error."""
        held = self.weights or (None,) * len(outputs)
        paired = len(outputs) == len(teacher)
        # What chooses rows, as NonMaxSuppression, may give other numbers of them; their indices are not compared.
        found = [(s, t, w) for s, t, w in zip(outputs, teacher, held, strict=False) if paired and s.is_floating_point()]
        if not paired or any(s.shape != t.shape for s, t, _ in found):
            shapes = [[tuple(o.shape) for o in side] for side in (outputs, teacher)]
            raise UsageError(
                "option-invalid",
                f"outputs {shapes[0]} of the model and {shapes[1]} of the teacher differ",
                hint=f"give a teacher with the same outputs; of both, {CUT_SELECTION}, such as NonMaxSuppression",
            )
        if not found:
            raise UsageError(
                "option-invalid",
                "the model has no floating-point output to compare with the teacher's",
                hint=f"{CUT_SELECTION}, such as ArgMax",
            )
        found = [(s, t, w) for s, t, w in found if s.numel()] or found[:1]  # one without values says nothing
        student, target, _ = found[0]
        if self.diverges(outputs, has_labels=has_labels):
            return self._divergence(student.movedim(axis, 1), target.movedim(axis, 1))
        if _is_classifier(outputs) and self.outputs != self._kind_of_teacher:
            return relative_error(_probabilities(student, self.outputs), _probabilities(target, self._kind_of_teacher))
        return torch.stack(
            [relative_error(s.float(), t.float(), weight=None if w is None else w.of(t)) for s, t, w in found]
        ).mean()

    def diverges(self, outputs: Sequence[Tensor], *, has_labels: bool) -> bool:
        """Tell if the distance to the teacher is the KL divergence.

        Args:
            outputs: what the student returned.
            has_labels: whether the batch has labels, of classes then.
        """
        if self.distance != "auto":
            return self.distance == "kl"
        is_of_probabilities = "probabilities" in (self.outputs, self._kind_of_teacher)
        return (has_labels or is_of_probabilities or self.temperature is not None) and _is_classifier(outputs)

    @property
    def _temperature(self) -> float:
        return TEMPERATURE if self.temperature is None else self.temperature

    @property
    def _kind_of_teacher(self) -> OutputKind:
        return self.teacher_outputs or self.outputs

    def _divergence(self, student: Tensor, teacher: Tensor) -> Tensor:
        if not student.numel():
            return student.float().sum()
        log_s = functional.log_softmax(_logits(student, self.outputs) / self._temperature, dim=1)
        log_t = functional.log_softmax(_logits(teacher, self._kind_of_teacher) / self._temperature, dim=1)
        return (log_t.exp() * (log_t - log_s)).sum(1).mean() * self._temperature**2


def class_axis(output: Tensor, labels: Tensor | None) -> int:
    """Return the axis of the classes of `output`: 1, or -1 of tokens (N, T, C), whose labels are (N, T).

    Labels that fit both, with as many tokens as classes, are taken for (N, C, T), as torch's cross entropy takes them.
    """
    if output.ndim != 3:
        return min(1, output.ndim - 1)
    if labels is None:
        return -1
    fits_channels = labels.shape in (output.shape, output.shape[:1] + output.shape[2:])
    return -1 if not fits_channels and labels.shape == output.shape[:2] else 1


def _is_classifier(outputs: Sequence[Tensor]) -> bool:
    """Tell if there is one floating-point output, of shape (N, C) with C > 1."""
    floats = [o for o in outputs if o.is_floating_point()]
    floats = [o for o in floats if o.numel()] or floats
    return len(floats) == 1 and floats[0].ndim == 2 and floats[0].shape[1] > 1


def _check_type(labels: Tensor, output: Tensor) -> None:
    """Refuse labels whose type is none of class numbers."""
    if labels.shape == output.shape:  # shares of the classes
        return
    if labels.is_floating_point():
        kind = str(labels.dtype).removeprefix("torch.")
        raise DataError(
            "data-labels", f"labels of type {kind} are not class numbers", hint="store them as integers, from 0 on"
        )


def _logits(output: Tensor, kind: OutputKind) -> Tensor:
    output = output.float()
    return output.clamp_min(_SMALLEST_PROBABILITY).log() if kind == "probabilities" else output


def _probabilities(output: Tensor, kind: OutputKind) -> Tensor:
    return output.float() if kind == "probabilities" else output.float().softmax(1)


def channel_power(teacher: Tensor) -> Tensor:
    """Mean squares of `teacher` along the axis whose entries differ most in size, 1 or the last; else of the whole.

    Detectors put boxes and scores side by side, some along axis 1, others along the last; the spread of the
    logarithms of the mean squares tells which. A mean square needs values to rest on: axes with fewer than
    :data:`VALUES_A_CHANNEL` of them for each entry do not count, and neither do tensors of less than three dimensions.
    The axis is chosen on the device, so that nobody waits for it.

    Channels of probabilities, whose values all lie in [0, 1], share their mean: most scores of a picture are close to
    0, and relative to themselves the noise of their quantization would be larger than anything.

    Args:
        teacher: float32, any shape.

    Returns:
        A tensor that broadcasts to the shape of `teacher`; > 0.
    """
    found = [_power_along(teacher, axis) for axis in channel_axes(teacher.shape, teacher.numel())]
    if not found or teacher.ndim < 3:
        return _mean_square(teacher, None)
    first, *others = found
    return torch.where(first.log().std() >= others[0].log().std(), first, others[0]) if others else first


def channel_axes(shape: Sequence[int], values: int) -> list[int]:
    """Axes of an output that may be its channels: 1 and the last, where `values` in all are enough for each entry.

    Args:
        shape: of the output, samples along axis 0.
        values: how many there are, of all batches.
    """
    axes = sorted({1, len(shape) - 1}) if len(shape) >= 2 else []
    return [a for a in axes if shape[a] > 1 and values >= VALUES_A_CHANNEL * shape[a]]


def relative_error(student: Tensor, teacher: Tensor, *, weight: Tensor | None = None, floor: float = 0.0) -> Tensor:
    """Weighted mean squared difference, float32 scalar; without weights, relative to the teacher's mean squares.

    Args:
        student: float32, any shape.
        teacher: the same shape.
        weight: of each squared difference, broadcasts to that shape; None: one over :func:`channel_power`.
        floor: part of the mean square of the whole tensor that a channel counts as at least, without `weight`.

    Returns:
        The error; 0 of tensors without values, such as the boxes of a picture in which there are none.
    """
    if not student.numel():
        return student.sum()
    if weight is not None:
        return ((student - teacher).square() * weight.to(student.device)).mean()
    power = channel_power(teacher)
    if floor:
        power = torch.maximum(power, floor * _mean_square(teacher, None))
    return ((student - teacher).square() / power).mean()


def _power_along(x: Tensor, axis: int) -> Tensor:
    """Mean square of each entry of `axis`; those of probabilities have their mean."""
    dims = [d for d in range(x.ndim) if d != axis]
    power = _mean_square(x, axis)
    scores = ((x >= 0) & (x <= 1)).all(dim=dims[0], keepdim=True) if dims else (x >= 0) & (x <= 1)
    for dim in dims[1:]:
        scores = scores.all(dim=dim, keepdim=True)
    shared = (power * scores).sum() / scores.sum().clamp_min(1)
    return torch.where(scores, shared, power)


def _mean_square(x: Tensor, axis: int | None) -> Tensor:
    """Mean square of `x` along all axes but `axis`, which stay with size 1; never 0."""
    dims = [d for d in range(x.ndim) if d != axis]
    return (
        x.square().mean(dims, keepdim=True).clamp_min(_SMALLEST_POWER)
        if dims
        else x.square().clamp_min(_SMALLEST_POWER)
    )
