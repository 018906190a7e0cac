"""Sensitivity analysis: cost of each quantizer or layer, alone, left out of all others, and one after the other.

Quantizing one tensor at a time and measuring the output ranks layers by sensitivity (Wu et al., "Integer Quantization
for Deep Learning Inference: Principles and Empirical Evaluation", 2020, "Partial Quantization"). That tells where mixed
precision (:attr:`onnxqat.placement.table_overrides.Overrides.node_bits`) or float is worth its price.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy.typing as npt
import onnx_ir as ir

from onnxqat import metrics, notebook_progress
from onnxqat.bridge.switched_module import SwitchedModule
from onnxqat.data import non_finite_data
from onnxqat.data import preprocess as lines
from onnxqat.data.data import Data
from onnxqat.data.recorded import Recorded, remarks_on_float
from onnxqat.errors import UsageError
from onnxqat.graph import io
from onnxqat.runtime import broken_model
from onnxqat.runtime.session import Session, main_values
from onnxqat.types import Remark
from onnxqat.validation import recorded_widths, relief_lists, remedies
from onnxqat.validation.check_inputs import load_both, open_data
from onnxqat.validation.profile_meters import Outputs, TensorMeter, Unit, layers_of, point, sensitivity
from onnxqat.validation.profile_result import By, CurvePoint, LayerProfile, Measure, ProfileReport, TensorProfile, Way

if TYPE_CHECKING:
    from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
    from onnxqat.data.preprocess import Preprocess

__all__ = ["CHEAP", "LIMIT", "LayerProfile", "ProfileReport", "TensorProfile", "profile"]

Array = npt.NDArray[Any]
LIMIT = 64
"""Samples looked at by default: each quantizer takes a forward pass of its own."""
CHEAP = 2000
"""Largest number of things to switch times samples at which a way is taken without being asked for."""


@notebook_progress.shown("profile")
@broken_model.guard("float_model", "qdq_model")
def profile(
    float_model: io.ModelSource,
    qdq_model: io.ModelSource,
    data: Any = None,
    *,
    by: By = "tensor",
    ways: Sequence[Way] | None = None,
    sort: Measure | None = None,
    min_sqnr: float | None = None,
    preprocess: str | Preprocess | None = None,
    batch_size: int | None = None,
    limit: int | None = LIMIT,
    random_data: bool = False,
    score: metrics.ScoreSource | None = None,
    labels: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> ProfileReport:
    """Measure the sensitivity to every quantizer or layer of a QDQ model.

    It runs in torch, one forward pass a switched thing, way and batch; the float model runs in onnxruntime. Neither is
    changed.

    Args:
        float_model: the original: path or model.
        qdq_model: the quantized model, of this or any other tool.
        data: what :func:`onnxqat.data.data.open_data` takes.
        by: switch single tensors, or all quantizers that a node reads.
        ways: ``alone``: only one on; ``off``: all on but one; ``cumulative``: all on, and then one after the other off, the
            most sensitive first, which reads the data a second time. By default ``alone``, and the other two where the
            things to switch times the samples are at most :data:`CHEAP`.
        sort: order of rows and of the cumulative way: ``sqnr``, ``cosine``, ``mse``, ``lsb`` (of the tensor, all on) or
            ``score``; by default the score where there is one.
        min_sqnr: signal to noise in dB that the list of nodes to exclude is to reach; by default 20 dB, and where the
            output has that with all quantizers on, half of the noise that it has (3 dB more).
        preprocess: preprocessing line for image folders.
        batch_size: largest number of samples in a batch; see :func:`onnxqat.validation.check_inputs.open_data`.
        limit: largest number of samples.
        random_data: with no `data`, use random numbers.
        score: metric or function of a :class:`onnxqat.metrics.Predictor`, computed for each row and way too, a pass over
            the data for each; a function of a file cannot be. See :func:`onnxqat.metrics.resolve`.
        labels: file or folder of labels, for a metric that reads one.
        progress: called with batches done and their number, when known.

    Raises:
        ModelError: ``model-not-quantized``, ``model-invalid``, and what :func:`onnxqat.graph.io.load` raises.
        DataError: ``data-missing``, ``data-format`` for the cumulative way over data that can be read only once, and
            what the data source raises.
        UsageError: ``option-invalid``, ``name-unknown``, ``score-failed``, ``score-output``.
        UnsupportedError: ``operator-unsupported``: the bridge does not have an operator.
    """
    measure = _checked(by, ways, sort, score)
    metrics.check_labels(score, labels)
    original, quantized = load_both(float_model, qdq_model)
    recorded = Recorded.of(quantized, qdq_model)
    opened = open_data(original, data, preprocess, batch_size, limit, random_data=random_data, recorded=recorded)
    work = _Work(original, quantized, by, measure)
    reference = metrics.Predictor.of_session(work.session, float_model)
    chosen = None if score is None else metrics.resolve(score, data=opened, reference=reference, labels=labels)
    taken = work.choose_ways(ways, opened, limit)
    count = None if opened.batches is None else opened.batches * (2 if "cumulative" in taken else 1)
    for done, (feeds, _) in enumerate(opened.labelled(), start=1):
        work.batch(feeds, f"batch {done - 1} of {opened.name}", taken)
        if progress is not None:
            progress(done, count)
    scored = None if chosen is None else work.score(chosen, reference, taken)
    curve = work.curve(opened, chosen, progress, count) if "cumulative" in taken else ()
    tensors, layers = work.tensors(), work.layers()
    backend = quantized.metadata_props.get("onnxqat.backend")
    output_db = work.outputs.worst.sqnr_db
    level = relief_lists.level(output_db) if min_sqnr is None else min_sqnr
    exclude = relief_lists.exclude(tensors, layers, curve, by, level)
    return ProfileReport(
        float_model=io.name_of(float_model),
        qdq_model=io.name_of(qdq_model),
        data=opened.name,
        samples=work.samples,
        tensors=tensors,
        layers=layers,
        output_db=output_db,
        remarks=(*remarks_on_float(quantized, float_model, original), *work.remarks, *opened.remarks),
        by=by,
        ways=taken,
        sort=measure,
        curve=curve,
        level_db=level,
        exclude=exclude,
        bits_of=relief_lists.bits_of(exclude, layers, backend),
        score=scored,
        backend=backend,
        widths=recorded_widths.widths(quantized.metadata_props, work.weight_bits()),
        source=os.fspath(remedies.calibration_of(recorded) or remedies.data_of(data, recorded) or ""),
        preprocess="" if opened.transform is None else lines.line(opened.transform.steps),
    )


def _checked(by: str, ways: Sequence[str] | None, sort: str | None, score: object) -> Measure:
    """The measure to sort by; all choices are names that exist.

    Raises:
        UsageError: ``option-invalid``.
    """
    measure = sort or ("sqnr" if score is None else "score")
    given = [("by", by, By), ("sort", measure, Measure), *(("ways", way, Way) for way in ways or ())]
    for name, choice, choices in given:
        if choice not in get_args(choices):
            raise UsageError("option-invalid", f"{name} is {choice!r}", hint=", ".join(get_args(choices)))
    if measure == "score" and score is None:
        raise UsageError(
            "option-invalid", "there is no score to sort by", hint="give a score too, as with --score top1"
        )
    return measure  # type: ignore[return-value]  # checked to be one of its names


class _Work:
    """The module, the session and the sums; sees one batch at a time."""

    def __init__(self, original: ir.Model, quantized: ir.Model, by: By, measure: Measure) -> None:
        self.switched = SwitchedModule(quantized)
        self.remarks = list(self.switched.remarks)
        self._by, self._measure = by, measure
        known = main_values(original.graph)
        self.meters: list[TensorMeter] = []
        for quantizer, module in self.switched.found:
            reference = str(quantizer.input.name) if quantizer.role == "activation" else None
            self.meters.append(TensorMeter(quantizer, module, reference if reference in known else None))
        self._layers = layers_of(self.meters)
        self.units = [m.unit for m in self.meters] if by == "tensor" else [layer.unit for layer in self._layers]
        self.shared = list(dict.fromkeys(m.reference for m in self.meters if m.reference is not None))
        self.session = Session(original, optimize=False, tensors=self.shared, what="the float model")
        self.outputs = Outputs()
        self.samples = 0

    def weight_bits(self) -> list[int]:
        """Bits of the quantized weights, in graph order."""
        return [quantizer.qparams.qtype.bits for quantizer, _ in self.switched.found if quantizer.role == "weight"]

    def choose_ways(self, ways: Sequence[Way] | None, opened: Data, limit: int | None) -> tuple[Way, ...]:
        """The ways to go: those asked for, or all that are cheap; a remark names what is left out."""
        if ways is not None:
            if "cumulative" in ways:
                opened.check_repeatable("the cumulative way reads it twice")
            # The order of the cumulative way comes from another one.
            needed = () if "alone" in ways or "off" in ways else ("alone",)
            return tuple(way for way in get_args(Way) if way in (*ways, *needed))
        found = [limit, None if opened.batches is None else opened.batches * opened.batch_size]
        samples = min((count for count in found if count is not None), default=CHEAP + 1)
        if len(self.units) * samples > CHEAP:
            text = (
                f"only alone was measured: {len(self.units)} {self._by}s times {samples} samples are more than {CHEAP:,};"
                " ask for the rest with --ways alone,off,cumulative, or for fewer samples with --limit"
            )
            self.remarks.append(Remark(text, (), "profile"))
            return ("alone",)
        return ("alone", "off", "cumulative") if opened.repeatable else ("alone", "off")

    def batch(self, feeds: Mapping[str, Array], called: str, ways: Sequence[Way]) -> None:
        """Measure on one batch."""
        run = self.switched.run
        plain, off = run(feeds, on=(), inner=True)
        non_finite_data.check(feeds, plain, called)
        outputs, tensors = run(feeds, on=self.switched.every, inner=True)
        references = dict(feeds) | self.session.run(feeds, self.shared)
        self.outputs.add(outputs, plain)
        for meter in self.meters:
            without = off[meter.target]
            meter.add(tensors[meter.target], without, references[meter.reference] if meter.reference else without)
        for unit in self.units:
            if "alone" in ways:
                unit.alone = unit.alone or Outputs()
                unit.alone.add(run(feeds, on=unit.modules)[0], plain)
            if "off" in ways:
                unit.off = unit.off or Outputs()
                unit.off.add(run(feeds, on=self.switched.without(unit.modules))[0], plain)
        first = next(iter(feeds.values()))
        self.samples += first.shape[0] if first.ndim else 1

    def score(self, chosen: metrics.Score, reference: metrics.Predictor, ways: Sequence[Way]) -> metrics.Scored:
        """Score both models, and the quantized one with each thing switched."""
        runs = {"float": reference, "quantized": self._predictor(self.switched.every, "the quantized module")}
        scored = metrics.compare(chosen, runs)
        for unit in self.units:
            if "alone" in ways:
                unit.alone_score = chosen(self._predictor(unit.modules, f"the module with {unit.name} alone"))
            if "off" in ways:
                rest = self.switched.without(unit.modules)
                unit.off_score = chosen(self._predictor(rest, f"the module without {unit.name}"))
        return scored

    def curve(
        self,
        opened: Data,
        chosen: metrics.Score | None,
        progress: Callable[[int, int | None], None] | None,
        count: int | None,
    ) -> tuple[CurvePoint, ...]:
        """The outputs with one thing after the other off, the most sensitive first."""
        order = self._sorted_units()
        off: list[FakeQuantize] = []
        sets = [self.switched.without(off)]
        for unit in order:
            off += unit.modules
            sets.append(self.switched.without(off))
        sums = [Outputs() for _ in sets]
        for done, (feeds, _) in enumerate(opened.labelled(), start=1):
            plain = self.switched.run(feeds, on=())[0]
            for on, outputs in zip(sets, sums, strict=True):
                outputs.add(self.switched.run(feeds, on=on)[0], plain)
            if progress is not None:
                progress(done if count is None else count // 2 + done, count)
        found = []
        for number, (on, outputs) in enumerate(zip(sets, sums, strict=True)):
            name = order[number - 1].name if number else ""
            value = None if chosen is None else chosen(self._predictor(on, f"the module with {number} in float"))
            found.append(point(number, name, outputs, value))
        return tuple(found)

    def tensors(self) -> tuple[TensorProfile, ...]:
        """The tensors, the one that costs most first."""
        found = [meter.result() for meter in self.meters]
        return tuple(sorted(found, key=lambda row: -sensitivity(row, self._measure, row.all_steps)))

    def layers(self) -> tuple[LayerProfile, ...]:
        """The layers, the one that costs most first."""
        found = [layer.result() for layer in self._layers]
        # Where tensors were switched, the sum of their noise is all that is known of a layer.
        measure = self._measure if self._by == "layer" or self._measure == "lsb" else "sqnr"
        return tuple(sorted(found, key=lambda row: -sensitivity(row, measure, row.all_steps)))

    def _sorted_units(self) -> list[Unit]:
        meters = self.meters if self._by == "tensor" else self._layers
        rows = [(meter.unit, meter.result()) for meter in meters]
        return [unit for unit, row in sorted(rows, key=lambda r: -sensitivity(r[1], self._measure, r[1].all_steps))]

    def _predictor(self, on: Sequence[Any], name: str) -> metrics.Predictor:
        return self.switched.predictor(on, self.session.inputs, self.session.output_names, name)
