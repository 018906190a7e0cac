"""From a float model and data to a QDQ file that keeps its accuracy, proven and handed off, within a budget of time."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxqat import metrics
from onnxqat.autotune import variants
from onnxqat.autotune.budget import Budget
from onnxqat.autotune.reconstruction import rebuild
from onnxqat.autotune.scoring import LARGEST_SAMPLES, TARGETS, Judge, Measure
from onnxqat.autotune.tuning import Tuning
from onnxqat.autotune.variants import Variant
from onnxqat.deployment.bundle import check_target
from onnxqat.deployment.fold_batchnorm import fold_batchnorm
from onnxqat.deployment.handoff import handoff
from onnxqat.errors import CheckError, DataError, QatError
from onnxqat.graph import atomic, files_read, io, provenance, qdq
from onnxqat.graph.staging import scratch
from onnxqat.insertion.insert import insert_qdq
from onnxqat.metrics._limits import AGREEMENT, LABELLED
from onnxqat.passes import convert_to_float32
from onnxqat.placement.table_overrides import Overrides
from onnxqat.runtime import broken_model
from onnxqat.runtime.session import Session
from onnxqat.types import Remark
from onnxqat.validation.check_inputs import check_outputs, open_data
from onnxqat.validation.validate import validate
from onnxqat.verdict import MIN_SQNR

if TYPE_CHECKING:
    from onnxqat.data.data import Data
    from onnxqat.data.preprocess import Preprocess
    from onnxqat.deployment.result import HandoffReport
    from onnxqat.validation.result import ValidationReport

MODEL, BUNDLE = "model.qdq.onnx", "bundle"
SO_FAR = "so_far.qdq.onnx"
"""The best of a search that was interrupted; the files of an earlier run stay as they are."""

SHARE = 5
"""One sample in :data:`SHARE` is held out for judging."""

CALIBRATION_SAMPLES = 512
CALIBRATION_TIME = 0.4
"""Share of the budget after which no further way to calibrate is tried."""

FEW_BITS = 4
"""Largest width of weights that are trained with BatchNormalization kept, where the table can fold it afterwards."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One quantized model that was tried.

    Attributes:
        name: how it was made.
        drop: what it loses on the held-out samples; see :class:`onnxqat.autotune.scoring.Judge`.
        seconds: wall time, judging included.
    """

    name: str
    drop: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class AutoResult:
    """Result of :func:`auto`.

    Attributes:
        model: path of the QDQ file, the best of all attempts.
        attempts: in the order in which they were made.
        chosen: name of the best.
        drop: its loss.
        target_drop: largest loss that meets the target.
        measure: kind of the loss: ``accuracy``, ``agreement``, ``noise`` or ``score``.
        score: of the float model and of the best, on held-out samples; None where none was asked for.
        float_accuracy: top-1 of the float model as a share, where there are labels.
        samples: held-out samples that judged.
        validation: of the model, on held-out samples.
        bundle: of the hand-off; None where the compiler failed.
        failures: why checks failed; empty when all passed.
        remarks: what is worth knowing.
        seconds: wall time.
        cut_short: whether the budget ended a search that might have gained more.
    """

    model: Path
    attempts: tuple[Attempt, ...]
    chosen: str
    drop: float
    target_drop: float
    measure: str
    score: metrics.Scored | None
    float_accuracy: float | None
    samples: int
    validation: ValidationReport
    bundle: HandoffReport | None
    failures: tuple[str, ...]
    remarks: tuple[Remark, ...]
    seconds: float
    cut_short: bool = False

    @property
    def passed(self) -> bool:
        """Check whether nothing failed."""
        return not self.failures


@broken_model.guard("model")
def auto(
    model: io.ModelSource,
    backend: str = "onnxruntime-cpu",
    *,
    data: Any,
    output: str | os.PathLike[str],
    preprocess: str | Preprocess | None = None,
    batch_size: int = 32,
    limit: int | None = None,
    budget: float = 600.0,
    target_drop: float | None = None,
    overrides: Overrides | None = None,
    keep_io_types: bool = True,
    score: metrics.ScoreSource | None = None,
    labels: str | os.PathLike[str] | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> AutoResult:
    """Calibrate, fine-tune where that is not enough, validate and hand off: the best within a budget of time.

    1. Every fifth sample is held out and judges. The first ways to calibrate are tried until one loses at most
       `target_drop`: the table's own, other observers, compensated rounding.
    2. Where none does, the best is fine-tuned, with the labels and against the float model, until the loss is small
       enough or the budget is used up. Weights of 4 bits and less are trained with BatchNormalization kept, which is
       folded afterwards.
    3. The best of all is validated and handed to the compiler of `backend`.

    The budget bounds how much is tried, not the first calibration and the proofs, which every run has. A search that is
    interrupted leaves the best of its attempts as ``so_far.qdq.onnx``, judged and not proven.

    Args:
        model: float model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        backend: name of a backend table, or path of one.
        data: what :func:`onnxqat.data.data.open_data` takes; it is read more than once.
        output: folder for ``model.qdq.onnx`` and ``bundle/``.
        preprocess: preprocessing line for image folders.
        batch_size: samples a batch, where the model does not prescribe it.
        limit: largest number of samples.
        budget: seconds of wall time.
        target_drop: what may be lost: points of top-1, percent of noise, or units of `score` (of ``sqnr`` percent of
            noise); None: what :data:`onnxqat.autotune.scoring.TARGETS` says of the measure, or the metric itself.
        overrides: user choices that win over the table.
        keep_io_types: of a model in float16, bfloat16 or double: inputs and outputs keep their types, or become float32.
        score: metric or function of a :class:`onnxqat.metrics.Predictor`, higher is better, such as the mAP of a detector;
            it replaces the judgement on outputs, for the float model too. See :func:`onnxqat.metrics.resolve`.
        labels: file or folder of labels, for a metric that reads one.
        seed: of training.
        device: of training; None: CUDA where there is one.
        progress: called with a line at the beginning of each phase.

    Raises:
        ModelError: ``model-already-quantized``, and everything that :func:`onnxqat.graph.io.load` raises.
        DataError: ``data-missing``, ``data-format`` (data that can be read only once), and what the source raises.
        BackendError: ``backend-unknown``, ``backend-table``, ``backend-opset``.
        UsageError: ``pattern-no-match``, ``option-invalid``, ``name-unknown``, ``score-failed``, ``score-output``.
    """
    clock = Budget(budget)
    original = io.load(model)
    check_outputs(original)
    origin = provenance.float_model(model, original)
    if not keep_io_types:
        original = convert_to_float32.convert(original, keep_io_types=False)
    if data is None:
        raise DataError("data-missing", "there is no data to learn from", hint="give --data")
    for name in (MODEL, SO_FAR):
        files_read.plan(Path(output) / name)
    opened = open_data(original, data, preprocess, batch_size, limit, random_data=False)
    check_target(Path(output) / BUNDLE)
    tell = progress if progress is not None else lambda _: None
    with scratch() as folder:
        search = _Search(
            original, backend, opened, overrides or Overrides(), clock, target_drop, score, labels, folder, tell
        )
        try:
            search.calibrate()
            if search.best[0].drop > search.target_drop:
                search.tune(seed, device)
        except KeyboardInterrupt:
            if search.attempts:
                _save_best(search, Path(output) / SO_FAR, origin)
            raise
        return _prove(search, Path(output), origin)


class _Search:
    """The attempts so far, and what each new one needs."""

    def __init__(
        self,
        original: ir.Model,
        backend: str,
        data: Data,
        overrides: Overrides,
        clock: Budget,
        target_drop: float | None,
        score: metrics.ScoreSource | None,
        labels: str | os.PathLike[str] | None,
        folder: Path,
        tell: Callable[[str], None],
    ) -> None:
        self.original, self.backend, self.overrides, self.clock = original, backend, overrides, clock
        self.folder, self.tell = folder, tell
        self.remarks: list[Remark] = []
        self.attempts: list[tuple[Attempt, Path, Variant | None]] = []
        tell("float model")
        self.training, self.held = _parts(data, self.remarks)
        self.calibration = _calibration(self.training)
        session = Session(original, optimize=True, what="the float model")
        self.judge = Judge(session, self.held)
        self._score: metrics.Score | None = None
        self.float_score: float | None = None
        self._values: dict[Path, float] = {}
        self.cut_short = False
        if score is not None:
            reference = metrics.Predictor.of_session(session, io.save(original, folder / "float.onnx"))
            self._score = metrics.resolve(score, data=self.held, reference=reference, labels=labels)
            self.float_score = self._score(reference)
        self.measure: Measure = self.judge.measure if self._score is None else "score"
        usual = TARGETS[self.measure] if self._score is None else self._score.default_drop
        self.target_drop = usual if target_drop is None else target_drop

    @property
    def best(self) -> tuple[Attempt, Path, Variant | None]:
        """The attempt that loses least, the earliest of equal ones."""
        return min(self.attempts, key=lambda made: made[0].drop)

    def calibrate(self) -> None:
        """Try the ways to calibrate until one is good enough, or their time is over."""
        waiting = list(variants.first_variants(self.overrides))
        while waiting:
            variant = waiting.pop(0)
            self._insert(variant)
            if self._is_finished(CALIBRATION_TIME * self.clock.seconds):
                return
            best = self.best[2]
            if not waiting and best is not None:
                waiting += self._following(variant, best)

    def _following(self, last: Variant, best: Variant) -> list[Variant]:
        """The next variant on top of the best: cross-layer equalization, then compensated rounding."""
        if last.rounding != "auto":
            return []
        following = variants.equalized(best, self.original) if last.equalize is True else None
        following = following or variants.compensated(best)
        return [] if following is None else [following]

    def tune(self, seed: int, device: str | None) -> None:
        """Fine-tune the best so far; where that is not enough, reconstruct it with the time that is left."""
        if importlib.util.find_spec("torch") is None:
            self._remark("torch is not installed: nothing was fine-tuned (pip install 'onnxqat[train]')")
            return
        _, calibrated, variant = self.best
        began = time.monotonic()
        start, kept = self._with_batch_norm(calibrated, variant)
        first = next(iter(self.training.labelled()))

        def deploy(trained: Path) -> Path:
            return Path(fold_batchnorm(trained, output=self.folder / "folded.onnx").model) if kept else trained

        tuning = Tuning(
            data=self.training,
            labelled=first[1] is not None,
            teacher=self.original,
            judge=self.judge if self._score is None else None,
            drop_of=self._drop,
            deploy=deploy,
            target_drop=self.target_drop,
            seed=seed,
            device=device,
        )
        target = self.folder / "tuned.onnx"
        self.tell("fine-tune")
        reserve = 2 * max(a.seconds for a, _, _ in self.attempts)
        tuned = tuning.run(start, target, self.clock, reserve=reserve)
        self.remarks.extend(() if tuned.remark is None else (tuned.remark,))
        self.cut_short = tuned.cut_short
        if tuned.trained:
            self._judge("fine-tuned", deploy(target), None, began)
        if not self._is_finished(self.clock.seconds - reserve):
            self._rebuild(calibrated, reserve, seed, device)

    def _rebuild(self, start: Path, reserve: float, seed: int, device: str | None) -> None:
        """Reconstruct the best of the calibrated files."""
        self.tell("reconstruct")
        began, target = time.monotonic(), self.folder / "reconstructed.onnx"
        try:
            done = rebuild(
                start,
                target,
                self.training,
                self.original,
                self.clock,
                reserve=reserve,
                seed=seed,
                device=device,
            )
        except QatError as error:
            self._remark(f"nothing was reconstructed: {error.message}")
            return
        if done:
            self._judge("reconstructed", target, None, began)

    def _with_batch_norm(self, start: Path, variant: Variant | None) -> tuple[Path, bool]:
        """`start`, or at few bits the same with BatchNormalization kept, where model and table have it."""
        quantized = qdq.quantizers(io.load(start))
        bits = min((q.qparams.qtype.bits for q in quantized if q.role == "weight"), default=8)
        if bits > FEW_BITS or variant is None or variant.overrides.exact:
            return start, False
        if not any(node.op_type == "BatchNormalization" for node in self.original.graph):
            return start, False
        path = self.folder / "kept.onnx"
        try:
            insert_qdq(
                self.original,
                self.backend,
                calibration=self.calibration,
                output=path,
                overrides=variant.overrides,
                rounding=variant.rounding,
                equalize=variant.equalize,
                batch_norm="keep",
            )
        except QatError as error:
            self._remark(f"BatchNormalization was folded before training: {error.message}")
            return start, False
        return path, True

    def _insert(self, variant: Variant) -> None:
        self.tell(variant.name)
        began, path = time.monotonic(), self.folder / f"{len(self.attempts)}.onnx"
        try:
            result = insert_qdq(
                self.original,
                self.backend,
                calibration=self.calibration,
                output=path,
                overrides=variant.overrides,
                rounding=variant.rounding,
                equalize=variant.equalize,
                batch_norm="fold",
            )
        except QatError as error:
            if not self.attempts:
                raise
            self._remark(f"{variant.name}: {error.message}")
            return
        if not self.attempts:
            self.remarks.extend(result.remarks)
        self._judge(variant.name, path, variant, began)

    def _judge(self, name: str, path: Path, variant: Variant | None, began: float) -> None:
        drop = self._drop(path)
        self.attempts.append((Attempt(name, drop, time.monotonic() - began), path, variant))

    def _drop(self, path: Path) -> float:
        """Return the loss of a quantized file: of the score that was asked for, else as the judge measures it."""
        if self._score is not None and self.float_score is not None:
            self._values[path] = self._score(metrics.Predictor.of(path))
            return self._score.drop(self.float_score, self._values[path])
        return self.judge.drop(Session(io.load(path), optimize=False, what="the quantized model").run)

    def scored(self, path: Path) -> metrics.Scored | None:
        """The score of the float model and of a quantized file that was judged; None where there is none."""
        if self._score is None or self.float_score is None:
            return None
        before, after = self.float_score, self._values[path]
        drops = {"quantized": self._score.drop(before, after)}
        values = {"float": before, "quantized": after}
        return metrics.Scored(self._score.name, self._score.against, values, drops, self._score.limits)

    def _is_finished(self, seconds: float) -> bool:
        return self.best[0].drop <= self.target_drop or self.clock.spent > seconds

    def _remark(self, text: str) -> None:
        self.remarks.append(Remark(text, source="auto"))


def _parts(data: Data, remarks: list[Remark]) -> tuple[Data, Data]:
    """Split `data` into parts to learn from and to judge on; fewer than :data:`SHARE` batches serve as both."""
    training, held = data.split(SHARE)
    try:
        next(iter(training))
        next(iter(held))
        return training, held
    except DataError as error:
        if error.code not in ("data-missing", "data-shape"):
            raise
    text = f"{data.name} gives fewer than {SHARE} batches: what learns from them is judged on them, too"
    remarks.append(Remark(text, source="auto"))
    return data, data


def _calibration(training: Data) -> Data:
    """Samples from all over `training`, where it can be read by number."""
    samples = training.samples
    if samples is not None and samples >= 2 * CALIBRATION_SAMPLES:
        training = training.split(samples // CALIBRATION_SAMPLES)[1]
    return training.first(CALIBRATION_SAMPLES)


def _limits(search: _Search) -> tuple[float | None, float | None]:
    """Limits of validation, points of top-1 and dB, that let pass what the target lets pass."""
    if search.measure in ("accuracy", "agreement"):
        usual = LABELLED.red if search.measure == "accuracy" else AGREEMENT.red
        return max(search.target_drop, usual), None
    if search.measure == "noise":
        return None, min(MIN_SQNR, -20 * math.log10(max(search.target_drop, 1e-9) / 100))
    return None, -math.inf  # a score of the user's judges


def _save_best(search: _Search, target: Path, origin: tuple[str, str]) -> Path:
    """The best of all attempts as a file that says what it was made from."""
    atomic.make_folder(target.parent)
    quantized = io.load(search.best[1])
    recorded = dataclasses.replace(provenance.of(quantized), float_model=origin[0], float_sha256=origin[1])
    provenance.write(quantized, recorded)
    return Path(io.save(quantized, target))


def _prove(search: _Search, output: Path, origin: tuple[str, str]) -> AutoResult:
    best, path, _ = search.best
    written = _save_best(search, output / MODEL, origin)
    search.tell("validate")
    max_drop, min_sqnr = _limits(search)
    proof = validate(search.original, written, search.held.first(LARGEST_SAMPLES), max_drop=max_drop, min_sqnr=min_sqnr)
    failures = [f"validate: {failure}" for failure in proof.failures]
    search.tell("hand off")
    try:
        # What was proven on all held-out samples is not judged again on a few of them; only the compiler's numbers are.
        known = min_sqnr if search.measure == "noise" else -math.inf
        bundle = handoff(written, search.backend, output / BUNDLE, data=search.held, min_sqnr=known)
        failures += [f"handoff: {failure}" for failure in bundle.failures]
    except CheckError as error:
        bundle = None
        failures.append(f"handoff: {error.message}")
    if best.drop > search.target_drop:
        failures.append(
            f"the best of {len(search.attempts)} attempts loses {best.drop:.3g}, above {search.target_drop:g}"
        )
    return AutoResult(
        model=written,
        attempts=tuple(attempt for attempt, _, _ in search.attempts),
        chosen=best.name,
        drop=best.drop,
        target_drop=search.target_drop,
        measure=search.measure,
        score=search.scored(path),
        float_accuracy=search.judge.float_accuracy,
        samples=search.judge.samples,
        validation=proof,
        bundle=bundle,
        failures=tuple(failures),
        remarks=tuple(dict.fromkeys(search.remarks)),
        seconds=search.clock.spent,
        cut_short=search.cut_short,
    )
