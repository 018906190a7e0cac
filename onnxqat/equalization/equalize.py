"""Equalize a prepared model: the methods that were chosen, one after the other, each where it has a place and helps."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxqat import discover
from onnxqat.backends.equalizations import Choice
from onnxqat.backends.schema import Backend
from onnxqat.calibration.held_samples import FEWEST
from onnxqat.data.data import Data
from onnxqat.equalization.channel_ranges import ChannelRanges
from onnxqat.equalization.held_out import GAIN, HeldOut, Quantize
from onnxqat.equalization.method import Method, Situation
from onnxqat.passes import _base
from onnxqat.placement.table_overrides import NodeSelection
from onnxqat.types import Remark

METHODS = "onnxqat.equalization.methods"


def equalize(
    model: ir.Model,
    table: Backend,
    chosen: NodeSelection,
    data: Data | None,
    choices: Sequence[Choice],
    quantize: Quantize,
    *,
    compares: bool = True,
) -> tuple[Remark, ...]:
    """Run the equalizations of `choices` on the main graph of `model`, in place.

    All ranges of channels cost one pass over the data, where any method has a place; a method that works on what
    another changed costs a further one. What nobody asked for by name stays where the outputs of the quantized network
    have :data:`~onnxqat.equalization.held_out.GAIN` of their noise, or less, on samples that are held out.

    Args:
        model: prepared float model.
        table: backend table, overrides applied.
        chosen: nodes that the user took out; they are left as they are.
        data: calibration data; None: methods that need none run, if they were asked for by name.
        choices: of :func:`onnxqat.backends.equalizations.choices`.
        quantize: makes quantized copies to compare.
        compares: there is time for that; otherwise what would have to be compared is left out.

    Returns:
        Remarks of the passes that ran, and reasons why others did not.
    """
    choices = [c for c in choices if c.asked or (data is not None and (compares or not _method(c).tried))]
    repeatable = data is not None and data.repeatable
    ranges = ChannelRanges(model, data if repeatable else None)
    runs = [
        (choice, _method(choice), Situation(model, table, chosen, ranges, choice.asked, choice.value))
        for choice in choices
    ]
    wanted = {choice.name: method.tensors(situation) for choice, method, situation in runs}
    for choice, method, _ in runs:
        ranges.want(wanted[choice.name], every_sample=method.every_sample, rows=method.rows)
    if data is not None and not repeatable and any(wanted.values()):
        return (Remark("channels were not equalized: the calibration data can be read only once", (), "calibrate"),)
    comparison = _Comparison(model, data, quantize)
    remarks: list[Remark] = []
    for choice, method, situation in runs:
        step = method.made(situation)
        if step is None:
            if choice.asked:
                text = f"{choice.name} found nothing to equalize in this model, with {table.backend} and these data"
                remarks.append(Remark(text, (), "calibrate"))
            continue
        if method.tried and not choice.asked and not comparison.favours(step, remarks):
            continue
        done = _base.rewrite(model, [step])
        remarks.extend(done.remarks)
        if done.changed:
            ranges.forget(wanted[choice.name])
    return tuple(remarks)


def _method(choice: Choice) -> Method:
    made = discover.load(METHODS, choice.name).Method()
    assert isinstance(made, Method)
    return made


class _Comparison:
    """Comparison of the model as it is with the same after a pass; the held-out samples are run when first needed."""

    def __init__(self, model: ir.Model, data: Data | None, quantize: Quantize) -> None:
        self._model, self._data, self._quantize = model, data, quantize
        self._held: HeldOut | None = None
        self._noise: float | None = None

    def favours(self, step: _base.Pass, remarks: list[Remark]) -> bool:
        """Check whether `step` helps; where it does not, a remark says so."""
        candidate = self._model.clone()
        if not _base.rewrite(candidate, [step]).changed or self._data is None:
            return False
        if self._held is None:
            self._held = HeldOut(self._model, self._data, self._quantize)
        if not self._held.can_tell:
            text = f"{step.name} was left out: it takes {FEWEST} held-out samples to tell if it helps"
            remarks.append(Remark(f"{text}; --equalize {step.name} runs it without", (), "calibrate"))
            return False
        if self._noise is None:
            self._noise = self._held.noise(self._model)
        after = self._held.noise(candidate)
        if self._noise is None or after is None:
            return False
        if after > self._noise * GAIN:
            text = f"{step.name} was left out: it does not help on held-out samples"
            remarks.append(Remark(text, (), "calibrate"))
            return False
        self._noise = after
        return True
