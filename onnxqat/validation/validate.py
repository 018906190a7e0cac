"""Is the quantized model the float model, and do torch and onnxruntime agree on it?"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import former_names, metrics, notebook_progress
from onnxqat.analysis import random_draws
from onnxqat.data import inputs as model_inputs
from onnxqat.data import non_finite_data
from onnxqat.data import preprocess as lines
from onnxqat.data.recorded import Recorded, remarks_on_float
from onnxqat.errors import DataError, ModelError
from onnxqat.graph import io, qdq, query, sizes, walk
from onnxqat.graph.layers import LAYERS
from onnxqat.graph.quantizer import Quantizer
from onnxqat.metrics._accuracy import AccuracyMeter
from onnxqat.metrics._closeness import Difference
from onnxqat.metrics._paired import Paired, pair
from onnxqat.runtime import broken_model, non_finite
from onnxqat.runtime.session import Session, main_values
from onnxqat.subgraphs.boundary import CUT_SELECTION
from onnxqat.types import Remark
from onnxqat.validation import first_divergence, machine, parity, remedies, result, saturated_sums, verdicts
from onnxqat.validation.accuracy import AccuracyLimits
from onnxqat.validation.check_inputs import load_both, open_data
from onnxqat.validation.compare import FLOAT_ROUNDING, OutputMeter, Variation
from onnxqat.validation.kernel_codes import KernelCodes
from onnxqat.validation.remedies import Given
from onnxqat.validation.result import (
    DEFAULT,
    FLOAT,
    INTEGERS,
    PLAIN,
    TORCH,
    Limits,
    TensorNoise,
    ValidationReport,
    judge,
)
from onnxqat.validation.torch_run import open_torch

if TYPE_CHECKING:
    from onnxqat.data.preprocess import Preprocess

Array = npt.NDArray[Any]
Runs = dict[str, dict[str, Array]]

PAIRS = (
    (PLAIN, FLOAT),
    (DEFAULT, FLOAT),
    (TORCH, FLOAT),
    (TORCH, PLAIN),
    (TORCH, DEFAULT),
    (DEFAULT, PLAIN),
    (INTEGERS, DEFAULT),
)
PIECE_BYTES = 2**28
FEW = 4
"""Samples on which every tensor is looked at for NaN; the inputs of quantizers are on all of them."""


@former_names.renamed(min_sqnr_db="min_parity_sqnr")
@notebook_progress.shown("validate")
@broken_model.guard("float_model", "qdq_model")
def validate(
    float_model: io.ModelSource,
    qdq_model: io.ModelSource,
    data: Any = None,
    *,
    preprocess: str | Preprocess | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    random_data: bool = False,
    use_torch: bool = True,
    tensor_samples: int | None = 512,
    max_differing_top1: int | None = None,
    max_differing_top1_default: int | None = None,
    min_parity_sqnr: float = 10.0,
    score: metrics.ScoreSource | Sequence[metrics.ScoreSource] | None = None,
    labels: str | os.PathLike[str] | None = None,
    max_drop: float | None = None,
    min_sqnr: float | None = None,
    backend: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> ValidationReport:
    """Run both models over `data`, batch by batch, and compare outputs, quantizers and tensors.

    An output of shape (N, C), C > 1, where it is the only one, is a classifier's: its top-1 is compared, and with
    labels its accuracy. Neither model is changed.

    Args:
        float_model: the original: path or model.
        qdq_model: the quantized model, of this or any other tool.
        data: what :func:`onnxqat.data.data.open_data` takes.
        preprocess: preprocessing line for image folders.
        batch_size: largest number of samples in a batch; see :func:`onnxqat.validation.check_inputs.open_data`.
        limit: largest number of samples.
        random_data: with no `data`, compare on random numbers.
        use_torch: compare with the torch bridge as well.
        tensor_samples: number of samples, at the start of the data, on which inner tensors are compared; None for all.
        max_differing_top1: see :class:`onnxqat.validation.result.Limits`.
        max_differing_top1_default: the same.
        min_parity_sqnr: the same, of torch against onnxruntime, in dB.
        score: metrics or functions of a :class:`onnxqat.metrics.Predictor`, one or several, computed for the float model
            and the quantized one; see :func:`onnxqat.metrics.resolve`.
        labels: file or folder of labels, for a metric that reads one.
        max_drop: see :class:`onnxqat.validation.accuracy.AccuracyLimits`.
        min_sqnr: the same.
        backend: the table that the file is to be deployed with; None: the one that it names.
        progress: called with batches done and their number, when known.

    Raises:
        ModelError: ``model-not-quantized``, ``model-invalid`` (the two have other inputs or outputs),
            ``model-not-runnable``, and what :func:`onnxqat.graph.io.load` raises.
        DataError: ``data-missing`` without data; ``data-non-finite`` where that leaves the float model without a result;
            and what the data source raises.
        UsageError: ``name-unknown``, ``score-failed``, ``score-output``.
    """
    metrics.check_labels(score, labels)
    original, quantized = load_both(float_model, qdq_model)
    recorded = Recorded.of(quantized, qdq_model)
    opened = open_data(original, data, preprocess, batch_size, limit, random_data=random_data, recorded=recorded)
    remarks = [*_first_remarks(quantized, random_data=random_data), *remarks_on_float(quantized, float_model, original)]
    remarks.extend(random_draws.remarks(original))
    work = _Work(original, quantized, remarks, use_torch=use_torch, tensor_samples=tensor_samples)
    reference = work.predictors(float_model, qdq_model)[FLOAT]
    chosen = [metrics.resolve(each, data=opened, reference=reference, labels=labels) for each in metrics.listed(score)]
    accepted = AccuracyLimits(max_drop, min_sqnr)
    accepted.check(chosen)
    for done, (feeds, right) in enumerate(opened.labelled(), start=1):
        work.batch(feeds, right, f"batch {done - 1} of {opened.name}")
        if progress is not None:
            progress(done, opened.batches)
    found = tuple(metrics.compare(each, work.predictors(float_model, qdq_model)) for each in chosen)
    remarks.extend(opened.remarks)
    limits = Limits(max_differing_top1, max_differing_top1_default, min_parity_sqnr, free=work.free)
    report = work.report(io.name_of(float_model), io.name_of(qdq_model), opened.name, found)
    trained = quantized.metadata_props.get("onnxqat.finetuned") == "true"
    line = None if opened.transform is None else lines.line(opened.transform.steps)
    found_data = None if random_data else remedies.data_of(data, recorded)
    learned = remedies.calibration_of(recorded)
    given = Given(report.float_model, report.qdq_model, found_data, line, trained, backend, learned)
    return work.judged(report, limits, accepted, given, random_data=random_data)


def _first_remarks(quantized: ir.Model, *, random_data: bool) -> list[Remark]:
    remarks = []
    if random_data:
        remarks.append(Remark("the data are random: accuracy means nothing", source="data", concern="result"))
    return remarks + machine.saturation(quantized, precise=machine.precise(quantized))


def _float_nodes(model: ir.Model) -> Iterator[tuple[str, str]]:
    """Weighted nodes of which an input does not come out of a DequantizeLinear, with that input.

    Where no activation is quantized, only constants count.
    """
    weights_alone = not any(q.role == "activation" and not q.stored for q in qdq.quantizers(model))
    for node in walk.nodes(model):
        if node.op_type not in LAYERS or node.domain:
            continue
        operands = [v for v in node.inputs[:2] if v is not None and not qdq.is_dequantize(v.producer())]
        bare = [str(v.name) for v in operands if not weights_alone or query.constant_tensor(v) is not None]
        if bare:
            yield query.label(node), " and ".join(bare)


class _Work:
    """The sessions and the sums; sees one batch at a time."""

    def __init__(
        self,
        original: ir.Model,
        quantized: ir.Model,
        remarks: list[Remark],
        *,
        use_torch: bool,
        tensor_samples: int | None,
    ) -> None:
        self.remarks, self.original, self.quantized = remarks, original, quantized
        self.torch = open_torch(quantized, remarks) if use_torch else None
        self.integers = None if self.torch is None else self.torch.in_integers()
        found = parity.activation_quantizers(quantized, remarks)
        self.meters = [parity.QuantizerMeter(q, self.torch.quantizer(q) if self.torch else None) for q in found]
        self.inner = parity.tensors_of(quantized, self.meters)
        self.free = any(q.qparams.scale_bits is None for q in found)
        shared = main_values(original.graph)
        self.outputs = [str(v.name) for v in original.graph.outputs]
        sources_of = [m.source for m in self.meters]
        self.shared = [n for n in dict.fromkeys([*sources_of, *self.outputs]) if n in shared]
        self.float = Session(original, optimize=True, tensors=self.shared, what="the float model")
        if self.float.converted:
            text = "onnxruntime does not run the float model in its own type: it is computed in float32"
            remarks.append(Remark(text, source="validate"))
        self.sums = saturated_sums.watch(quantized) if machine.meant(quantized) else saturated_sums.Watched()
        made = main_values(quantized.graph)
        self.watched = [name for name in dict.fromkeys((*self.inner, *self.sums.codes)) if name in made]
        self.plain = Session(quantized, optimize=False, tensors=self.watched, what="the quantized model")
        self.whole = self._whole_batches()
        self.default = Session(quantized, optimize=True, precise=machine.precise(quantized), what="the quantized model")
        if self.default.unmoved:
            text = (
                "onnxruntime's optimizer fails to make uint8 of int8 activations that it moved, in files of opset 21 and "
                "later: the default session runs without QDQPropagationTransformer"
            )
            remarks.append(Remark(text, source="validate"))
        if self.default.keeps_relu:
            text = (
                "onnxruntime's optimizer drops a Relu in front of codes of 4 bits or float8, which changes the numbers: the "
                "default session runs without ReluQuantRewrite and ClipQuantRewrite, and so should yours"
            )
            remarks.append(Remark(text, source="validate", concern="result"))
        self.kernels = None if self.integers is None else self._kernel_codes(found)
        self.noise = {name: Difference() for name in self.shared}
        self.compared: dict[tuple[str, str, str], OutputMeter] = {}
        self.right: dict[str, AccuracyMeter] = {}
        self.variations: dict[str, Variation] = {}
        self.labelled: bool | None = None
        self.samples = self.tensor_samples = self.float_bad = 0
        self.limit = tensor_samples
        self.size: int | None = None
        self.origin: non_finite.Origin | None = None
        self.parting: first_divergence.Parting | None = None

    def _whole_batches(self) -> tuple[Session, Session]:
        """Sessions of the float and the quantized model for batches that are not cut.

        A tensor that may be fetched is held to the end of a run, whether it is or not: the session that has inner tensors
        takes pieces of a batch, and another one without them whole batches. Weights of more than a piece count for more.
        """
        weights = max(sizes.weights_of(self.original), sizes.weights_of(self.quantized))
        if model_inputs.static_batch(self.plain.inputs) is not None or weights > PIECE_BYTES:
            return self.float, self.plain
        return (
            Session(self.original, optimize=True, what="the float model"),
            Session(self.quantized, optimize=False, what="the quantized model"),
        )

    def _kernel_codes(self, quantizers: Sequence[Quantizer]) -> KernelCodes | None:
        try:
            return KernelCodes(self.quantized, quantizers, self.default.settings)
        except (
            Exception
        ) as error:  # a graph that onnxruntime wrote and does not read: outputs are compared all the same
            reason = str(error).strip().partition("\n")[0][:200]
            text = f"codes are not compared with those of the default session's kernels: {reason}"
            self.remarks.append(Remark(text, source="validate"))
            return None

    def batch(self, feeds: Mapping[str, Array], labels: Array | None, called: str) -> None:
        """Compare the outputs of one batch, and its inner tensors as long as fewer samples than asked were seen."""
        floating, plain = self.whole
        runs: Runs = {FLOAT: floating.run(feeds)}
        non_finite_data.check(feeds, runs[FLOAT], called)
        runs |= {PLAIN: plain.run(feeds), DEFAULT: self.default.run(feeds)}
        if self.torch is not None:
            runs[TORCH] = self.torch.run(feeds)
        first = next(iter(runs[FLOAT].values()))
        if not self.samples:
            dynamic = model_inputs.static_batch(self.plain.inputs) is None
            few = non_finite.few(feeds, FEW, dynamic=dynamic)
            self.origin = non_finite.origin(self.quantized, self.original, [few])
        counted = dict(runs)  # accuracy is not asked of the run in integers
        if self.integers is not None:
            runs[INTEGERS] = self.integers.run(feeds)
        self._compare_outputs(runs)  # first, since it says which shapes do not fit together
        self._count_right(counted, labels)
        count = first.shape[0] if first.ndim else 1
        if self.limit is None or self.tensor_samples < self.limit:
            self._compare_tensors(feeds, count)
        self.samples += count

    def _classifier(self, output: Array) -> bool:
        return len(self.outputs) == 1 and output.ndim == 2 and output.shape[1] > 1

    def _compare_outputs(self, runs: Runs) -> None:
        for run, outputs in runs.items():
            self.variations.setdefault(run, Variation()).update(outputs)
        for name, reference in runs[FLOAT].items():
            self.float_bad += int(np.count_nonzero(~np.isfinite(reference))) if reference.dtype.kind == "f" else 0
            for run, against in PAIRS:
                if run not in runs or against not in runs:
                    continue
                value, other = runs[run][name], runs[against][name]
                if value.shape != other.shape:
                    text = f"output {name!r} has shape {list(value.shape)} in one model and {list(other.shape)} in the other"
                    hint = f"give the model that the file was made from; of both, {CUT_SELECTION}, such as NonMaxSuppression"
                    raise ModelError("model-invalid", text, hint=hint)
                key = (name, run, against)
                if key not in self.compared:
                    self.compared[key] = OutputMeter(self._classifier(reference))
                self.compared[key].update(value, other)

    def _count_right(self, runs: Runs, labels: Array | None) -> None:
        reference = next(iter(runs[FLOAT].values()))
        if not self._classifier(reference):
            return
        if self.labelled is None:
            self.labelled = labels is not None
        if self.labelled != (labels is not None):
            raise DataError("data-labels", "some batches have labels and some have none")
        right = reference.argmax(axis=1) if labels is None else labels
        for run, outputs in runs.items():
            self.right.setdefault(run, AccuracyMeter()).update(next(iter(outputs.values())), right)

    def _compare_tensors(self, feeds: Mapping[str, Array], count: int) -> None:
        dynamic = model_inputs.static_batch(self.plain.inputs) is None
        splits = dynamic and count > 1 and all(a.ndim and a.shape[0] == count for a in feeds.values())
        if splits and self.size is None:
            self.size = self._samples_that_fit({name: array[:1] for name, array in feeds.items()})
        done = 0
        for piece in parity.pieces(feeds, self.size if splits else None):
            self._compare_piece(piece, self.samples + done)
            done += len(next(iter(piece.values()))) if splits else count
            if self.limit is not None and self.tensor_samples + done >= self.limit:
                break
        self.tensor_samples += done

    def _samples_that_fit(self, one: Mapping[str, Array]) -> int:
        # Both runs hold the tensors, and comparing them makes copies in float64 and int64.
        held = sum(a.nbytes for a in self.plain.run(one, self.watched).values()) * 2
        held += sum(a.nbytes for a in self.float.run(one, self.shared).values())
        return max(1, PIECE_BYTES // max(held, 1))

    def _compare_piece(self, piece: Mapping[str, Array], first: int) -> None:
        ort = dict(piece) | self.plain.run(piece, list(dict.fromkeys([*self.watched, *self.outputs])))
        own = dict(piece) | self.torch.run(piece, self.inner) if self.torch is not None else {}
        for meter in self.meters:
            pair = (ort[meter.source], ort[meter.target])
            meter.update(*pair)
            if meter.source in own and meter.target in own:
                meter.update_network(pair, (own[meter.source], own[meter.target]))
        self._compare_integers(piece)
        self.sums.update(ort)
        for name, value in self.float.run(piece, self.shared).items():
            if name in ort and ort[name].shape == value.shape:
                self.noise[name].update(ort[name], value)
        if self.torch is None or self.parting is not None:
            return
        if first_divergence.worst(own, ort, [*self.inner, *self.outputs]) > FLOAT_ROUNDING:
            self.parting = first_divergence.locate(self.quantized, self.torch, piece, first)

    def _compare_integers(self, piece: Mapping[str, Array]) -> None:
        if self.integers is None or self.kernels is None:
            return
        meters = [m for m in self.meters if m.target in self.kernels.tensors & self.integers.known]
        mine, kernels = self.integers.run(piece, [m.target for m in meters]), self.kernels.run(piece)
        for meter in meters:
            meter.update_integers(mine[meter.target], kernels[meter.target])

    def _paired(self, run: str) -> Paired | None:
        return None if run == FLOAT else pair(self.right[FLOAT].answers(), self.right[run].answers())

    def predictors(self, original: io.ModelSource, quantized: io.ModelSource) -> dict[str, metrics.Predictor]:
        """The models as scores see them, by run; `original` and `quantized` are what the caller gave."""
        floating, plain = self.whole
        sessions = ((FLOAT, floating, original), (PLAIN, plain, quantized), (DEFAULT, self.default, quantized))
        return {run: metrics.Predictor.of_session(session, model) for run, session, model in sessions}

    def judged(
        self,
        report: ValidationReport,
        limits: Limits,
        accuracy: AccuracyLimits,
        given: Given,
        *,
        random_data: bool,
    ) -> ValidationReport:
        """`report` with its verdicts; its failures are the reasons of those that are red."""
        broken = result.broken(report.outputs, report.quantizers, self.float_bad)
        broken += result.dead({run: variation.seen for run, variation in self.variations.items()})
        broken += [] if self.origin is None else [f"not finite where the float model is: {self.origin}"]
        parity = [*judge(report.outputs, report.quantizers, limits), *verdicts.parted_sessions(report.outputs)]
        own = [s for s in report.scores if not random_data or s.against == "function"]
        found = verdicts.judge_accuracy(report.outputs, report.accuracies, accuracy, own, samples=report.samples)
        if random_data and not own:
            found = ("amber", f"not judged on random data; {found[1]}")
        saturated = self.sums.hit and machine.saturates()
        answers = verdicts.verdicts(
            report, parity=parity, broken=broken, accuracy=found, given=given, saturated=saturated
        )
        failures = [*broken, *parity, *([found[1]] if found[0] == "red" and not broken else [])]
        failures += [v.reason for v in answers if v.name == "deployment" and v.status == "red"]
        return dataclasses.replace(report, verdicts=answers, failures=tuple(failures))

    def report(self, original: str, quantized: str, data: str, scores: tuple[metrics.Scored, ...]) -> ValidationReport:
        """The sums as a report, not judged yet."""
        outputs = tuple(meter.result(*key) for key, meter in self.compared.items())
        quantizers = tuple(meter.result() for meter in self.meters)
        against = "labels" if self.labelled else "top-1 of the float model"
        doubt = self.right[FLOAT].doubt_of_labels() if self.labelled else None
        doubts = () if doubt is None else (Remark(doubt, source="validate", concern="result"),)
        accuracies = (meter.result(run, against, self._paired(run)) for run, meter in self.right.items())
        noise = {n: d for n, d in self.noise.items() if d.elements}
        return ValidationReport(
            float_model=original,
            qdq_model=quantized,
            backend=self.quantized.metadata_props.get("onnxqat.backend"),
            data=data,
            samples=self.samples,
            tensor_samples=self.tensor_samples,
            accuracies=tuple(accuracies),
            outputs=outputs,
            quantizers=quantizers,
            tensors=tuple(TensorNoise(n, d.sqnr_db, n in self.outputs) for n, d in noise.items()),
            first_parting=self.parting,
            float_nodes=tuple(_float_nodes(self.quantized)),
            scores=scores,
            failures=(),
            remarks=(*self.remarks, *doubts, *self.sums.remarks(self.tensor_samples)),
        )
